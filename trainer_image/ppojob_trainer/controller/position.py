"""Where a restarted controller finds its job: a pure reading of the journal."""

from collections.abc import Iterable
from dataclasses import dataclass

from ppojob_trainer.checkpoint.journal import (
    AttemptStarted,
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
    """

    controller_attempt: int
    role_attempts: dict[str, int]
    progress: Progress | None
    rewinds: int
    unvalidated: StepTrained | None = None


def read_position(events: Iterable[Event], stateful: frozenset[str]) -> Position:
    """Fold the journal.

    `stateful` are the roles whose new attempt holds no state until the job has gone back.
    """
    controller_attempt = 0
    role_attempts: dict[str, int] = {}
    progress: Progress | None = None
    rewinds = 0
    unvalidated: StepTrained | None = None
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
    return Position(controller_attempt, role_attempts, progress, rewinds, unvalidated)
