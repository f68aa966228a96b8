"""Summary of a run, for programs and for people."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api import contract, run_layout
from ppojob_api.problem import counted, printable
from ppojob_api.run_config import RunConfig
from ppojob_cli.figures import duration, number
from ppojob_cli.run_state import short_name
from ppojob_trainer.checkpoint.store import LATEST_NAME
from ppojob_trainer.controller.progress import RunStatus
from ppojob_trainer.controller.row_tape import batches_on_disk
from ppojob_trainer.models.fingerprint import fingerprint
from ppojob_trainer.models.weight_files import BadHeader

_MODEL_FILE: Final = ".model"
_LOG_LINES: Final = 12
_LOG_LINE_CHARACTERS: Final = 300
_LOG_TAIL_BYTES: Final = 1 << 14


class RunSummary(msgspec.Struct, frozen=True):
    """`summary.json`."""

    phase: str  # `Succeeded` or `Interrupted`
    steps: int
    seconds: float  # time of the steps
    tokens: int  # prompt and response tokens of the steps
    config_sha256: str
    # The `last` one, and the `first` if there are several.
    validation: dict[str, dict[str, float | None]] = {}


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job ended."""

    exit_code: int
    reason: str = ""  # one line; empty for success or an orderly interruption
    pods: tuple[str, ...] = ()  # pods whose logs have details


def read_summary(folder: Path) -> RunSummary | None:
    """Read the summary in a run folder; None if there is no readable one."""
    try:
        return msgspec.json.decode((folder / run_layout.SUMMARY_FILE).read_bytes(), type=RunSummary)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def finished_summary(folder: Path, config: RunConfig) -> RunSummary | None:
    """Return the summary if the run of this configuration has succeeded; else None."""
    summary = read_summary(folder)
    if summary is None or summary.config_sha256 != config.digest():
        return None
    if is_of_another_model(folder, config):
        return None
    return summary if summary.phase == "Succeeded" else None


def keep_model(folder: Path, config: RunConfig) -> None:
    """Write the model's fingerprint, for a job that does not train."""
    if not config.spec.steps.trains and (found := _model_at(config)):
        (folder / _MODEL_FILE).write_text(found)


def is_of_another_model(folder: Path, config: RunConfig) -> bool:
    """Return whether a job that does not train has answers of another model than now."""
    kept = folder / _MODEL_FILE
    if not kept.is_file() or config.spec.steps.trains or not batches_on_disk(folder):
        return False
    found = _model_at(config)
    return found is not None and found != kept.read_text(errors="replace")


def _model_at(config: RunConfig) -> str | None:
    try:
        return fingerprint(Path(config.spec.model.path))
    except (OSError, BadHeader):
        return None


def ending_lines(ending: Ending, status: RunStatus, folder: Path) -> list[str]:
    """Format the end of a run for people."""
    reason = ending.reason
    # The controller's own message is best.
    if status.phase == "Failed" and status.message:
        reason = status.message
    if not ending.reason:
        summary = read_summary(folder)
        if summary is not None:
            return summary_lines(summary, folder)
        if ending.exit_code == contract.EXIT_INTERRUPTED:
            return ["interrupted while roles were starting; the same command resumes"]
        return []
    traceback = "Traceback (most recent call last)"
    kept = list(takewhile(lambda line: not line.startswith(traceback), reason.splitlines()))
    lines = [printable(line) for line in kept]
    lines += [line for pod in ending.pods for line in log_lines(folder, pod, kept)]
    if ending.exit_code == contract.EXIT_FAILED and kept:
        return [f"failed: {lines[0]}", *lines[1:], what_is_next(folder)]
    return lines


def what_is_next(folder: Path) -> str:
    """Say where the same command continues a run that has not ended."""
    if os.path.lexists(folder / run_layout.CHECKPOINTS_FOLDER / LATEST_NAME):
        return "the same command resumes from the last checkpoint"
    return "there is no checkpoint, so the same command starts from the beginning"


def summary_lines(summary: RunSummary, folder: Path) -> list[str]:
    """Format the result of a run, and the places of its files."""
    steps = counted(summary.steps, "step")
    effort = f"{steps} in {duration(summary.seconds)}, {summary.tokens:,} tokens"
    if summary.phase == "Succeeded":
        alone = _answered(folder) or "validated, nothing was trained"
        lines = [f"done: {effort if summary.steps else alone}"]
    elif summary.steps:
        lines = [f"interrupted: {effort}; the same command resumes"]
    else:
        lines = ["interrupted before the first step; the same command starts there"]
    for name, last in summary.validation.get("last", {}).items():
        first = summary.validation.get("first", {}).get(name)
        if last is not None and not name.endswith("/std"):
            values = number(last) if first is None else f"{number(first)} -> {number(last)}"
            lines.append(f"  validation  {short_name(name)}: {values}")
    return [printable(line) for line in (*lines, *_files(folder))]


def _files(folder: Path) -> Iterator[str]:
    """Yield the places of the model and other files, or the commands to view them."""
    if (folder / run_layout.EXPORT_FOLDER / "config.json").is_file():
        yield f"  model       {folder / run_layout.EXPORT_FOLDER}"
    if (folder / run_layout.PROFILE_FOLDER).is_dir():
        yield f"  traces      {folder / run_layout.PROFILE_FOLDER}"
    if (folder / run_layout.TENSORBOARD_FOLDER).is_dir():
        logs = shlex.quote(str(folder / run_layout.TENSORBOARD_FOLDER))
        yield f"  curves      tensorboard --logdir {logs}"
    for tracker, pattern, command in (
        ("wandb", f"{run_layout.WANDB_FOLDER}/offline-run-*", "wandb sync"),
        ("swanlab", f"{run_layout.SWANLAB_FOLDER}/offline-*", "swanlab sync"),
        ("clearml", f"{run_layout.CLEARML_FOLDER}/offline/*.zip", run_layout.CLEARML_IMPORT),
    ):
        for offline in sorted(folder.glob(pattern)):
            yield f"  {tracker:<11} {command} {shlex.quote(str(offline))}"
    store = folder.absolute() / run_layout.MLFLOW_FOLDER / run_layout.MLFLOW_FILE
    if store.is_file():
        uri = shlex.quote(f"sqlite:///{store}")
        yield f"  mlflow      mlflow ui --backend-store-uri {uri}"
    if (folder / run_layout.TRACKIO_FOLDER).is_dir():
        place = shlex.quote(str(folder.absolute() / run_layout.TRACKIO_FOLDER))
        yield f"  trackio     TRACKIO_DIR={place} trackio show"


def _answered(folder: Path) -> str:
    """Describe the file of responses of a job that only generates; empty without one."""
    path = folder / run_layout.RESPONSES_FILE
    if not path.is_file():
        return ""
    # Parquet takes half a second to load.
    import pyarrow.parquet as pq

    return f"{path}, responses to {counted(pq.read_metadata(path).num_rows, 'prompt')}"


def log_lines(folder: Path, pod: str, shown: Sequence[str] = ()) -> list[str]:
    """Return the path of a pod's log, and its last lines, without those that are shown already."""
    path = folder / run_layout.LOGS_FOLDER / f"{pod}.log"
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace").rstrip().splitlines()
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    if not any(tail):
        return [f"{path}: empty"]
    endings = tuple(line for line in shown if line.strip())
    tail = [line for line in tail if line.strip() and not line.endswith(endings)]
    lines = (line.expandtabs()[:_LOG_LINE_CHARACTERS] for line in tail[-_LOG_LINES:])
    return [f"{path}, its last lines:", *(f"  {printable(line)}" for line in lines)]
