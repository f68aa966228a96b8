"""Where a restarted controller finds its job: a pure reading of the journal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ppojob_trainer.algorithms.prompt_values import Belief
from ppojob_trainer.checkpoint.journal import (
    AttemptStarted,
    CheckpointBegun,
    CheckpointLeft,
    CheckpointSaved,
    ControllerStarted,
    Event,
    Resumed,
    Rewound,
    StepDone,
    StepTrained,
)
from ppojob_trainer.checkpoint.manifest import Progress


@dataclass(frozen=True)
class Position:
    """What the journal says at its end.

    Attributes:
        progress: state behind the last step that the present stateful ranks finished, or were
            restored to; None when they were started and never restored.
        rewinds: how often the job has gone to a checkpoint, or to its beginning.
        unvalidated: the step that was trained last, where its validation failed.
        begun: the checkpoint that ranks were writing beside the steps.
        left: the step of which no checkpoint was made, though one was due.
    """

    controller_attempt: int
    role_attempts: dict[str, int]
    progress: Progress | None
    rewinds: int
    unvalidated: StepTrained | None = None
    begun: CheckpointBegun | None = None
    left: int | None = None


def read_position(events: Iterable[Event], stateful: frozenset[str]) -> Position:
    """Fold the journal.

    `stateful` are the roles whose new attempt holds no state until the job has gone back.
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
        progress = _with_values(progress, events)
    found = controller_attempt, role_attempts, progress, rewinds, unvalidated
    return Position(*found, *_unsaved(events))


def changes(before: Progress, after: Progress) -> Progress:
    """The state behind a step as its event has it: of the values of prompts those that changed."""
    known = before.prompt_values
    changed = {at: own for at, own in after.prompt_values.items() if known.get(at) != own}
    return msgspec.structs.replace(after, prompt_values=changed)


def without_values(progress: Progress) -> Progress:
    """A state as events have it that change no values of prompts."""
    return msgspec.structs.replace(progress, prompt_values={})


def _with_values(progress: Progress, events: Iterable[Event]) -> Progress:
    """A state as it was behind these events."""
    known: dict[str, Belief] = {}
    for event in events:
        match event:
            case Resumed():
                known = dict(event.progress.prompt_values)
            case StepDone():
                known.update(event.progress.prompt_values)
    return msgspec.structs.replace(progress, prompt_values=known)


def _unsaved(events: Sequence[Event]) -> tuple[CheckpointBegun | None, int | None]:
    """What ranks were writing beside the steps, and what they left unsaved."""
    begun: int | None = None
    left: int | None = None
    for place, event in enumerate(events):
        match event:
            case CheckpointBegun():
                begun = place
            case CheckpointSaved():
                begun = None
            case CheckpointLeft():
                begun, left = None, event.step
            case Rewound():
                begun = left = None
    return None if begun is None else _whole(events, begun), left


def _whole(events: Sequence[Event], place: int) -> CheckpointBegun:
    """A checkpoint that was begun, with the values of prompts that it is to have."""
    event = events[place]
    assert isinstance(event, CheckpointBegun)
    progress = _with_values(event.progress, events[:place])
    return msgspec.structs.replace(event, progress=progress)
