"""Journal state: how far a job has come, as a pure function of its journal."""

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
"""Per-prompt tables of a state, of which few entries change in a step."""


@dataclass(frozen=True)
class JournalState:
    """The state at the journal's end.

    Attributes:
        progress: state after the last step that the present stateful ranks finished, or were
            restored to; None when they were started and never restored.
        rewinds: number of rewinds to a checkpoint, or to the beginning.
        unvalidated: the step that was trained last, if its validation failed.
        begun: the background checkpoint that ranks were writing.
        left: the step whose due checkpoint was not made.
    """

    controller_attempt: int
    role_attempts: dict[str, int]
    progress: Progress | None
    rewinds: int
    unvalidated: StepTrained | None = None
    begun: CheckpointBegun | None = None
    left: int | None = None


def read_journal_state(events: Iterable[Event], stateful: frozenset[str]) -> JournalState:
    """Fold the journal.

    `stateful` are the roles whose new attempt holds no state until the job has rewound.
    """
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
    """Return the state after a step for its event: of tables only the entries that changed."""
    changed = {
        name: {at: own for at, own in after_.items() if before_.get(at) != own}
        for name, before_, after_ in zip(_TABLES, _tables(before), _tables(after), strict=True)
    }
    return msgspec.structs.replace(after, **changed)


def without_tables(progress: Progress) -> Progress:
    """Return a state for events that change no table."""
    return msgspec.structs.replace(progress, **{name: {} for name in _TABLES})


def _with_tables(progress: Progress, events: Iterable[Event]) -> Progress:
    """Return a state with its tables as of these events."""
    known: list[dict[str, Any]] = [{} for _ in _TABLES]
    for event in events:
        match event:
            case Resumed():
                known = [dict(table) for table in _tables(event.progress)]
            case StepDone():
                for table, changed in zip(known, _tables(event.progress), strict=True):
                    table.update(changed)
    return msgspec.structs.replace(progress, **dict(zip(_TABLES, known, strict=True)))


def _tables(progress: Progress) -> list[dict[str, Any]]:
    return [getattr(progress, name) for name in _TABLES]


def _unsaved(events: Sequence[Event]) -> tuple[CheckpointBegun | None, int | None]:
    """Return the background checkpoint in flight, and the step left without one."""
    begun: int | None = None
    left: int | None = None
    for place, event in enumerate(events):
        match event:
            case CheckpointBegun():
                begun = place
            case CheckpointSaved():
                begun = None
            case CheckpointSkipped():
                begun, left = None, event.step
            case Rewound():
                begun = left = None
    return None if begun is None else _whole(events, begun), left


def _whole(events: Sequence[Event], place: int) -> CheckpointBegun:
    """Return a checkpoint that was begun, with the tables that belong to it."""
    event = events[place]
    assert isinstance(event, CheckpointBegun)
    progress = _with_tables(event.progress, events[:place])
    return msgspec.structs.replace(event, progress=progress)
