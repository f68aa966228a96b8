"""State of a job as a pure function of its journal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ppojob_trainer.checkpoint.journal import (
    AttemptStarted,
    CheckpointBegun,
    CheckpointSaved,
    CheckpointSkipped,
    ControllerStarted,
    Event,
    Resumed,
    Rewound,
    StepDone,
    StepTrained,
)
from ppojob_trainer.checkpoint.manifest import Progress

_TABLES: Final = ("prompt_values", "rows_seen")
"""Per-prompt tables of `Progress`; events contain only their changed entries."""


@dataclass(frozen=True)
class JournalState:
    """The state at the end of the journal."""

    controller_attempt: int
    role_attempts: dict[str, int]
    progress: Progress | None  # of the current stateful ranks; None if they were not restored yet
    rewinds: int  # number of rewinds to a checkpoint or to the start
    unvalidated: StepTrained | None = None  # the last step, if its validation is missing
    begun: CheckpointBegun | None = None  # the background checkpoint in flight
    skipped: int | None = None  # the step whose checkpoint was skipped


def read_journal_state(events: Iterable[Event], stateful: frozenset[str]) -> JournalState:
    """Return the state after all events; `stateful` are the roles that a rewind restores."""
    controller_attempt = 0
    role_attempts: dict[str, int] = {}
    progress: Progress | None = None
    rewinds = 0
    unvalidated: StepTrained | None = None
    events = list(events)
    for event in events:
        match event:
            case ControllerStarted():
                controller_attempt = event.attempt
            case AttemptStarted():
                role_attempts[event.role] = event.attempt
                if event.role in stateful:
                    progress = None
            case Rewound():
                rewinds += 1
                progress = None
            case Resumed():
                progress = event.progress
            case StepDone():
                progress = event.progress
                unvalidated = None
            case StepTrained():
                unvalidated = event
    if progress is not None:
        progress = _with_tables(progress, events)
    found = controller_attempt, role_attempts, progress, rewinds, unvalidated
    return JournalState(*found, *_unsaved(events))


def changes(before: Progress, after: Progress) -> Progress:
    """Return the state after a step, with only the changed entries of its tables."""
    changed = {
        name: {key: value for key, value in new.items() if old.get(key) != value}
        for name, old, new in zip(_TABLES, _tables(before), _tables(after), strict=True)
    }
    return msgspec.structs.replace(after, **changed)


def without_tables(progress: Progress) -> Progress:
    """Return a state with empty tables, for events that change no table."""
    return msgspec.structs.replace(progress, **{name: {} for name in _TABLES})


def _with_tables(progress: Progress, events: Iterable[Event]) -> Progress:
    """Return a state with the tables after these events."""
    tables: list[dict[str, Any]] = [{} for _ in _TABLES]
    for event in events:
        match event:
            case Resumed():
                tables = [dict(table) for table in _tables(event.progress)]
            case StepDone():
                for table, changed in zip(tables, _tables(event.progress), strict=True):
                    table.update(changed)
    return msgspec.structs.replace(progress, **dict(zip(_TABLES, tables, strict=True)))


def _tables(progress: Progress) -> list[dict[str, Any]]:
    return [getattr(progress, name) for name in _TABLES]


def _unsaved(events: Sequence[Event]) -> tuple[CheckpointBegun | None, int | None]:
    """Return the background checkpoint in flight, and the step whose checkpoint was skipped."""
    begun: CheckpointBegun | None = None
    begun_at = 0
    skipped: int | None = None
    for position, event in enumerate(events):
        match event:
            case CheckpointBegun():
                begun, begun_at = event, position
            case CheckpointSaved():
                begun = None
            case CheckpointSkipped():
                begun, skipped = None, event.step
            case Rewound():
                begun = skipped = None
    if begun is not None:
        progress = _with_tables(begun.progress, events[:begun_at])
        begun = msgspec.structs.replace(begun, progress=progress)
    return begun, skipped
