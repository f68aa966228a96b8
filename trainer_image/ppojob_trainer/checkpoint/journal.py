"""Journal of the controller: the events of a run in order, one fsynced JSON line each.

A restarted controller reads from it which step the living ranks have done (their answers of the
next step are in memory, by request id), and which checkpoints existed. A torn last line was never
acknowledged and is truncated; any other line that does not parse is damage.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.run_layout import JOURNAL_FILE
from ppojob_trainer import durable
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.checkpoint.store import CheckpointStore, Latest, folder_name
from ppojob_trainer.errors import CheckpointLost, DamagedCheckpoint
from ppojob_trainer.rpc.messages.saving import FileEntry

JOURNAL_NAME: Final = JOURNAL_FILE
JOURNAL_POINT: Final = durable.point("journal", *durable.LINE_ACTS)


class _Event(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event"
):
    """Fields of all events: the time in unix seconds, for users.

    Only that of the first event has an effect, on the date in chat templates.
    """

    time: float = msgspec.field(default_factory=time.time)


class RunBegan(_Event, frozen=True, kw_only=True, tag="run_began"):
    """First event of a run; chat templates see its time until the end."""


class ControllerStarted(_Event, frozen=True, kw_only=True, tag="controller_started"):
    """A controller took over the run."""

    attempt: int = msgspec.field(name="epoch")
    code_version: str


class AttemptStarted(_Event, frozen=True, kw_only=True, tag="epoch_started"):
    """The ranks of a role are about to start in a new attempt."""

    role: str
    attempt: int = msgspec.field(name="epoch")
    world_size: int


class RowsKept(_Event, frozen=True, kw_only=True, tag="rows_kept"):
    """The scored rows of a batch are on disk, before training on them."""

    purpose: str  # `train` or `validation`
    step: int
    round: int = 0  # generation round of the step, from 0
    settings: str  # digest of the settings that determine rows: under others they are not reused
    prompts: str  # digest of their prompts
    files: tuple[FileEntry, ...]


class StepDone(_Event, frozen=True, kw_only=True, tag="step_done"):
    """A step is complete and its metrics are on disk.

    A controller that restarts while the ranks live continues from this state. Of the values of
    prompts and rows it has the step's changes.
    """

    progress: Progress


class StepTrained(_Event, frozen=True, kw_only=True, tag="step_trained"):
    """A step has trained the models; its validation failed or was aborted, which ends the run.

    A checkpoint of the state follows, with the values of prompts. The step has no metrics line
    until a later controller has validated.
    """

    progress: Progress
    metrics: dict[str, float | None]


class Resumed(_Event, frozen=True, kw_only=True, tag="resumed"):
    """The ranks of all stateful roles hold this state, from a checkpoint or from the base model."""

    progress: Progress


class CheckpointBegun(_Event, frozen=True, kw_only=True, tag="checkpoint_begun"):
    """Ranks have copied a state and write it while later steps run.

    `files` are those already on disk. The values of prompts are those of the events before.
    """

    progress: Progress
    files: tuple[FileEntry, ...]


class CheckpointSkipped(_Event, frozen=True, kw_only=True, tag="checkpoint_left"):
    """A due checkpoint could not be written, and the job continues."""

    step: int


class CheckpointSaved(_Event, frozen=True, kw_only=True, tag="commit_sealed"):
    """A checkpoint exists; its size is that of its files."""

    step: int
    size_bytes: int

    @classmethod
    def of(cls, step: int, files: Iterable[FileEntry]) -> "CheckpointSaved":
        """Return the event of a checkpoint of these files."""
        return cls(step=step, size_bytes=sum(file.size_bytes for file in files))


class CheckpointRefused(_Event, frozen=True, kw_only=True, tag="commit_refused"):
    """A damaged checkpoint was not used."""

    step: int
    file: str
    reason: str


class Rewound(_Event, frozen=True, kw_only=True, tag="rewound"):
    """All stateful roles and the controller rewound to a checkpoint, or to the start, step 0."""

    from_step: int
    to_step: int
    reason: str


class Exported(_Event, frozen=True, kw_only=True, tag="exported"):
    """The model was exported as a Hugging Face folder."""

    step: int


Event = (
    RunBegan
    | ControllerStarted
    | AttemptStarted
    | RowsKept
    | StepDone
    | StepTrained
    | Resumed
    | CheckpointBegun
    | CheckpointSkipped
    | CheckpointSaved
    | CheckpointRefused
    | Rewound
    | Exported
)


class Journal:
    """The journal of one run; only the controller appends. The first event creates the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)

    def append(self, event: Event) -> None:
        """Append an event; on return it is on disk."""
        durable.append_line(self.path, msgspec.json.encode(event), JOURNAL_POINT)

    def began(self) -> float:
        """Return the start of the run in unix seconds, the same for every controller."""
        events = self.read()
        if not events:
            events = [RunBegan()]
            self.append(events[0])
        return events[0].time

    def read(self) -> list[Event]:
        """Read all events, oldest first; DamagedCheckpoint names an invalid line."""
        events = []
        for number, line in enumerate(durable.read_lines(self.path), start=1):
            try:
                events.append(self._decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DamagedCheckpoint(
                    f"{self.path.name}:{number}", f"no event: {error}"
                ) from error
        return events


def last_saved(events: list[Event]) -> int | None:
    """Return the step of the newest checkpoint that must exist; None if none was saved."""
    saved = (event.step for event in reversed(events) if isinstance(event, CheckpointSaved))
    return next(saved, None)


def resume_point(store: CheckpointStore, events: list[Event]) -> Latest:
    """Find where to resume; never silently restarts at step 0 if checkpoints existed.

    It returns and raises as ``CheckpointStore.latest``. A complete checkpoint whose folder is
    missing is a refusal too; without any other one it raises CheckpointLost.
    """
    found = store.recover()
    saved = last_saved(events)
    if saved is None:
        return found
    if found.checkpoint is None:
        raise CheckpointLost(
            str(store.root),
            f"step {saved} was saved according to the journal, but there is no checkpoint; restore "
            "the folder, or start a new run in another folder",
        )
    if found.checkpoint.step >= saved or saved in dict(found.refusals):
        return found
    gone = DamagedCheckpoint(folder_name(saved), "the folder is missing")
    return Latest(checkpoint=found.checkpoint, refusals=((saved, gone), *found.refusals))
