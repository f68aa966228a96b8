"""Messages between a job and its tracker process."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from ppojob_api.run_config import RunConfig

Phase = Literal["Succeeded", "Interrupted", "Failed"]


class TrackedRun(msgspec.Struct, frozen=True):
    """A job in a tracker."""

    tracker: str  # name, as in `spec.loggers`
    id: str  # the same at every start of this run, and unique
    name: str
    folder: str  # absolute path of the run folder
    config: dict[str, Any]

    @classmethod
    def of(cls, tracker: str, config: RunConfig, run_folder: Path, began: float) -> "TrackedRun":
        """Build it from a job and the start time in its journal.

        Jobs of one name on one machine share a uid, so the time is part of the id.
        """
        text = f"{config.uid} {began!r}"
        job = config.model_dump(mode="json", include={"name", "namespace", "uid", "facts"})
        return cls(
            tracker=tracker,
            id=hashlib.sha256(text.encode()).hexdigest()[:16],
            name=config.name,
            folder=str(run_folder.absolute()),
            config={**job, **config.spec.model_dump(mode="json", exclude={"pods"})},
        )


class Upload(msgspec.Struct, frozen=True):
    """Open the run if needed, and upload some steps; with `is_last`, finish it after all."""

    run: TrackedRun
    is_last: bool


class Uploaded(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to `Upload`."""

    last_step: int = -1  # the last step that the tracker has; -1 for none
    has_more: bool = False  # whether metrics.jsonl has more steps
    location: str = ""  # where users find the run
    failure: str = ""  # error of the tracker's library in one line; empty without one


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten a configuration: `algorithm.type` -> `grpo`; lists as JSON, without null."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return found


def save_run(run: TrackedRun) -> None:
    """Save the run in its folder, for a manual upload."""
    _file(run.tracker, Path(run.folder)).write_bytes(msgspec.json.encode(run))


def load_run(tracker: str, run_folder: Path) -> TrackedRun:
    """Load a saved run, whose folder may have been moved."""
    run = msgspec.json.decode(_file(tracker, run_folder).read_bytes(), type=TrackedRun)
    return msgspec.structs.replace(run, folder=str(run_folder.absolute()))


def _file(tracker: str, run_folder: Path) -> Path:
    return run_folder / f".{tracker}.json"
