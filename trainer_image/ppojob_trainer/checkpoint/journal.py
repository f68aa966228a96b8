"""The controller's journal: what happened, in order, one fsynced JSON line an event.

It lies beside the checkpoints, so a restarted controller knows behind which step the living ranks
stand (what they did of the next one is in their own memory, by request id), and that commits once
existed even where all of them are gone. A torn last line was never acknowledged and is cut; any
other line that does not parse is damage.
"""

import time
from pathlib import Path
from typing import Final

import msgspec

from ppojob_trainer import durable
from ppojob_trainer.checkpoint.files import FileEntry
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.errors import DamagedCommit

JOURNAL_NAME: Final = "journal.jsonl"
JOURNAL_POINT: Final = durable.point("journal", *durable.LINE_ACTS)


class _Event(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event"
):
    """What all events have.

    Attributes:
        time: unix seconds, for people; only that of the first event decides anything, the date in
            chat templates.
    """

    time: float


class RunBegan(_Event, frozen=True, kw_only=True, tag="run_began"):
    """The first event of a run: its time is the one that chat templates see until its end."""


class ControllerStarted(_Event, frozen=True, kw_only=True, tag="controller_started"):
    """A controller took the run over.

    Attributes:
        epoch: of the controller.
        code_version: of the program.
    """

    epoch: int
    code_version: str


class EpochStarted(_Event, frozen=True, kw_only=True, tag="epoch_started"):
    """The ranks of a role are about to be started in a new epoch.

    Attributes:
        role: name of the role.
        epoch: the new one.
        world_size: ranks.
    """

    role: str
    epoch: int
    world_size: int


class RowsKept(_Event, frozen=True, kw_only=True, tag="rows_kept"):
    """The rows of a batch with their scores are on the disk, before anything is trained on them.

    Attributes:
        purpose: `train` or `validation`.
        step: of the batch.
        round: generation round of the step, from 0.
        settings: digest of what decides rows: they are of no use under other settings.
        prompts: digest of the prompts that they answer.
        files: in the folder of the batch.
    """

    purpose: str
    step: int
    round: int = 0
    settings: str
    prompts: str
    files: tuple[FileEntry, ...]


class StepDone(_Event, frozen=True, kw_only=True, tag="step_done"):
    """A step is over and its metrics are on the disk.

    Attributes:
        progress: all scalar state behind it: what a controller that comes back goes on from,
            beside ranks that live.
    """

    progress: Progress


class StepTrained(_Event, frozen=True, kw_only=True, tag="step_trained"):
    """A step has trained the models, and the validation behind it failed: the run ends in it.

    Attributes:
        progress: all scalar state behind the step; a commit of it follows.
        metrics: of the step, which has no line until a later controller has validated.
    """

    progress: Progress
    metrics: dict[str, float | None]


class Resumed(_Event, frozen=True, kw_only=True, tag="resumed"):
    """The ranks of all stateful roles hold this state, from a commit or from the base model.

    Attributes:
        progress: all scalar state.
    """

    progress: Progress


class CommitSealed(_Event, frozen=True, kw_only=True, tag="commit_sealed"):
    """A commit exists.

    Attributes:
        step: of the commit.
        size_bytes: of its files.
    """

    step: int
    size_bytes: int


class CommitRefused(_Event, frozen=True, kw_only=True, tag="commit_refused"):
    """A damaged commit was not used.

    Attributes:
        step: of the commit.
        file: what is damaged.
        reason: how.
    """

    step: int
    file: str
    reason: str


class Rewound(_Event, frozen=True, kw_only=True, tag="rewound"):
    """All stateful roles and the controller went back to a commit (or to the start).

    Attributes:
        from_step: steps that were done.
        to_step: step of the commit; 0 without one.
        reason: one line.
    """

    from_step: int
    to_step: int
    reason: str


class Exported(_Event, frozen=True, kw_only=True, tag="exported"):
    """The model was written as a Hugging Face folder.

    Attributes:
        step: whose weights.
    """

    step: int


Event = (
    RunBegan
    | ControllerStarted
    | EpochStarted
    | RowsKept
    | StepDone
    | StepTrained
    | Resumed
    | CommitSealed
    | CommitRefused
    | Rewound
    | Exported
)


class Journal:
    """One run's journal; only the controller appends.

    Args:
        path: the file; made by the first event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)

    def append(self, event: Event) -> None:
        """Write an event; when this returns it is on the disk.

        Raises:
            StorageError: the disk refused; the journal is as before.
        """
        durable.append_line(self.path, msgspec.json.encode(event), JOURNAL_POINT)

    def began(self) -> float:
        """When the run began, in unix seconds: the same for every controller that asks.

        Raises:
            DamagedCommit: see ``read``.
            StorageError: the run begins now, and the disk refused.
        """
        events = self.read()
        if not events:
            events = [RunBegan(time=time.time())]
            self.append(events[0])
        return events[0].time

    def read(self) -> list[Event]:
        """All events, oldest first; empty where there is no journal.

        Raises:
            DamagedCommit: names the line that is no event.
        """
        events = []
        for number, line in enumerate(durable.read_lines(self.path), start=1):
            try:
                events.append(self._decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DamagedCommit(f"{self.path.name}:{number}", f"no event: {error}") from error
        return events


def last_sealed(events: list[Event]) -> int | None:
    """Step of the newest commit that must exist; None where none was sealed."""
    sealed = (event.step for event in reversed(events) if isinstance(event, CommitSealed))
    return next(sealed, None)
