"""Messages between a job and its tracker process."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from ppojob_api.run_config import RunConfig

Phase = Literal["Succeeded", "Interrupted", "Failed"]


class TrackedRun(msgspec.Struct, frozen=True):
    """A job as a tracker knows it, which is a word of `spec.loggers`; the run folder is absolute.

    The id is the same at every start of this run, and of no other.
    """

    tracker: str
    id: str
    name: str
    folder: str
    config: dict[str, Any]

    @classmethod
    def of(cls, tracker: str, config: RunConfig, run_folder: Path, began: float) -> "TrackedRun":
        """The run of a job in a folder, which began when its journal says.

        Jobs of one name on one machine share a uid, so the time is part of the id.
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
    """The result of a request: the last step that the tracker has, -1 for none, and more.

    `is_behind` says that metrics.jsonl has more steps, `told` where people find the run, `failure`
    what went wrong, in a line.
    """

    last_step: int = -1
    is_behind: bool = False
    told: str = ""
    failure: str = ""


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration as parameters: `algorithm.type` -> `grpo`; lists as JSON, null left out."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return found


def keep(run: TrackedRun) -> None:
    """Save the run in its folder, for whoever sends it to the tracker by hand."""
    _file(run.tracker, Path(run.folder)).write_bytes(msgspec.json.encode(run))


def kept_run(tracker: str, run_folder: Path) -> TrackedRun:
    """What `keep` wrote, wherever the run folder is now."""
    run = msgspec.json.decode(_file(tracker, run_folder).read_bytes(), type=TrackedRun)
    return msgspec.structs.replace(run, folder=str(run_folder.absolute()))


def _file(tracker: str, run_folder: Path) -> Path:
    return run_folder / f".{tracker}.json"
