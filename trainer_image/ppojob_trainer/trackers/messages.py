"""What a job and the process of its tracker say to each other."""

import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from ppojob_api.run_config import RunConfig

Phase = Literal["Succeeded", "Interrupted", "Failed"]


class TrackedRun(msgspec.Struct, frozen=True):
    """A job as a tracker knows it.

    Attributes:
        tracker: the word of `spec.loggers`.
        id: the same at every start of this run, and of no other.
        folder: run folder, absolute.
    """

    tracker: str
    id: str
    name: str
    folder: str
    config: dict[str, Any]

    @classmethod
    def of(cls, tracker: str, config: RunConfig, run_folder: Path, began: float) -> "TrackedRun":
        """The run of a job in a folder.

        Args:
            tracker: the word of `spec.loggers`.
            config: of the run.
            run_folder: where it is.
            began: when it began, by its journal: on one machine jobs of one name share a uid.
        """
        text = f"{config.uid} {began!r}"
        told = config.model_dump(mode="json", include={"name", "namespace", "uid", "facts"})
        return cls(
            tracker=tracker,
            id=hashlib.sha256(text.encode()).hexdigest()[:16],
            name=config.name,
            folder=str(run_folder.absolute()),
            config={**told, **config.spec.model_dump(mode="json", exclude={"pods"})},
        )


class Open(msgspec.Struct, frozen=True, tag=True):
    """Begin the run in the tracker, or go on with it."""

    run: TrackedRun


class Send(msgspec.Struct, frozen=True, tag=True):
    """Give the tracker some of the steps that it has not."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """End the run in the tracker, once it has all that it was given."""


Request = Open | Send | Finish


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a request.

    Attributes:
        last_step: that the tracker was given; -1 for none.
        is_behind: whether metrics.jsonl has more.
        told: where people find the run.
        failure: what went wrong, in a line; empty where nothing did.
    """

    last_step: int = -1
    is_behind: bool = False
    told: str = ""
    failure: str = ""


def keep(run: TrackedRun) -> None:
    """Write down in the run folder how the tracker calls the run, for whoever sends it by hand."""
    _file(run.tracker, Path(run.folder)).write_bytes(msgspec.json.encode(run))


def kept_run(tracker: str, run_folder: Path) -> TrackedRun:
    """What `keep` wrote, wherever the run folder is now."""
    run = msgspec.json.decode(_file(tracker, run_folder).read_bytes(), type=TrackedRun)
    return msgspec.structs.replace(run, folder=str(run_folder.absolute()))


def _file(tracker: str, run_folder: Path) -> Path:
    return run_folder / f".{tracker}.json"
