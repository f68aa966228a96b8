"""Checks of a run folder: permission, disk space, and existing content."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, counted, shown
from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.run_layout import (
    CHECKPOINTS_FOLDER,
    EXPORT_FOLDER,
    JOB_FILE,
    METRICS_FILE,
    RESPONSES_FILE,
    SUMMARY_FILE,
)
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.job_file import validate_file
from ppojob_cli.run_folder import LOCK_FILE
from ppojob_cli.summary import is_of_another_model, read_summary
from ppojob_trainer.checkpoint.identity import Identity, changed_data, changed_settings
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME, Event, Journal, last_saved
from ppojob_trainer.checkpoint.store import CheckpointStore, incomplete
from ppojob_trainer.controller.journal_state import read_journal_state
from ppojob_trainer.errors import CannotResume, DamagedCheckpoint
from ppojob_trainer.models.adapter_files import ADAPTER_FOLDER
from ppojob_trainer.models.architectures import count_adapters, count_log_partition
from ppojob_trainer.models.fingerprint import bases_of

MOUNTS: Final = Path("/proc/self/mounts")

_WRITTEN: Final = (JOB_FILE, METRICS_FILE, SUMMARY_FILE, RESPONSES_FILE, EXPORT_FOLDER)
_OF_OTHERS: Final = ("config.json", "pyproject.toml", ".git")  # of a model, of a project
_CHECKPOINT_BYTES: Final = 12
"""Size of a trained weight in a checkpoint: float32, and the two moments of AdamW."""
_EXPORT_BYTES: Final = {"float32": 4, "bfloat16": 2}
_GIB: Final = 2**30
_BLOCK_BYTES: Final = 512  # of `st_blocks`, on any file system
_WHERE: Final = "--output"
_WRITABLE: Final = "a folder that can be written"


def check_output(config: RunConfig, folder: Path, parameters: int | None) -> Iterator[Problem]:
    """Yield the reasons why the run cannot use its folder, which is not created.

    `parameters` is the number of weights of the model; None if unknown.
    """
    if why := _written_over(config, folder):
        yield Problem(_WHERE, str(folder), why, "another folder", ReasonCode.CONFLICT)
    ground = _nearest_existing(folder)
    if not ground.is_dir():
        yield Problem(_WHERE, str(folder), f"{ground} is a file", _WRITABLE, ReasonCode.UNREADABLE)
        return
    try:
        with tempfile.TemporaryFile(dir=ground) as file:
            file.write(b"\0")
    except OSError as error:
        why = f"nothing can be written in {ground} ({error.strerror})"
        yield Problem(_WHERE, str(folder), why, _WRITABLE, ReasonCode.UNREADABLE)
        return
    if parameters is not None and config.spec.steps.trains:
        yield from _space(config, folder, ground, parameters)


def volatile_warning(folder: Path) -> Iterator[Problem]:
    """Warn of a run folder in memory, which a restart of the machine would lose."""
    ground = _nearest_existing(folder)
    if _file_system(ground) in {"tmpfs", "ramfs"}:
        why = "it is in memory: a restart of the machine loses the run"
        yield Problem(_WHERE, str(folder), why, "a folder on a disk", ReasonCode.OUT_OF_RANGE)


def _written_over(config: RunConfig, folder: Path) -> str | None:
    """Describe what the run would overwrite: its initial model, or a folder of no run."""
    target = os.path.realpath(folder)
    export = os.path.join(target, EXPORT_FOLDER)
    written = {target, export, os.path.join(export, ADAPTER_FOLDER)}
    model = config.spec.model
    named = {"path": model.path, "tokenizerPath": model.tokenizer_path}
    if model.lora is not None:
        named["lora.path"] = model.lora.path
    for name, path in named.items():
        if path is not None and os.path.realpath(path) in written:
            return f"spec.model.{name} {path} would be written over"
    before = read_summary(folder) if config.spec.steps.generate_only else None
    if before is not None and before.config_sha256 != config.digest():
        return f"{folder / RESPONSES_FILE} would be written over, and is of another configuration"
    if is_of_another_model(folder, config):
        return f"what it holds was answered by another model than {model.path} is now"
    journal = folder / CHECKPOINTS_FOLDER / JOURNAL_NAME
    has_run = os.path.exists(journal) or os.path.exists(folder / LOCK_FILE)
    for name in () if has_run else (*_WRITTEN, *_OF_OTHERS):
        if os.path.lexists(folder / name):
            return f"it holds {folder / name}, and is not the folder of a run"
    return None


def _nearest_existing(folder: Path) -> Path:
    path = Path(os.path.abspath(folder))
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def _space(config: RunConfig, folder: Path, ground: Path, parameters: int) -> Iterator[Problem]:
    free = shutil.disk_usage(ground).free + _freed_at_start(folder / CHECKPOINTS_FOLDER)
    export = _EXPORT_BYTES[config.spec.model.dtype] if config.spec.checkpoint.export else 0
    model = config.spec.model
    trained = parameters if model.lora is None else count_adapters(model.lora, model.path)
    trained += count_log_partition(config.spec.algorithm.policy_loss.loss, model.path)
    needed = trained * _CHECKPOINT_BYTES + parameters * export
    if needed > free:
        what = "a checkpoint and the export need" if export else "a checkpoint needs"
        why = f"{free / _GIB:.2f} GiB are free at {ground}, and {what} {needed / _GIB:.2f} GiB"
        allowed = "more free space, or a folder on another volume"
        yield Problem(_WHERE, str(folder), why, allowed, ReasonCode.OUT_OF_RANGE)


def _freed_at_start(root: Path) -> int:
    """Return the size of an incomplete checkpoint, which the run deletes at its start."""
    if not os.path.isdir(root):
        return 0
    size_bytes = 0
    for left in incomplete(root):
        if left.is_symlink():
            continue
        for path, _, names in os.walk(left):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # another process may run the job
                    size_bytes += os.lstat(os.path.join(path, name)).st_blocks * _BLOCK_BYTES
    return size_bytes


def _file_system(path: Path) -> str:
    """Return the type of the file system of a path; empty if unknown."""
    try:
        mounts = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real, found, kind = Path(os.path.realpath(path)), "", ""
    for line in mounts:
        _, point, name, *_ = line.split(" ")
        point = point.replace(r"\040", " ")
        if real.is_relative_to(point) and len(point) >= len(found):
            found, kind = point, name
    return kind


def check_checkpoints(
    config: RunConfig, folder: Path, digests: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return the reasons why the run in the folder cannot be resumed.

    `digests` are those of the data, as `DataReport.digests`.

    Checks the newest readable checkpoint; the controller checks its files, and may use an older
    one. Without a checkpoint, another job would start from the beginning, and lose the steps.
    """
    root = folder / CHECKPOINTS_FOLDER
    if not os.path.isdir(root):
        return []
    owner = Identity(config.uid, config.trajectory_json(), bases=bases_of(config.spec))
    store = CheckpointStore(root, owner)
    if config.spec.checkpoint.resume == "never" and store.steps():
        where, why = "spec.checkpoint.resume", f"{folder} holds the checkpoints of a run"
        allowed = "auto to resume it, or another folder to start from the beginning"
        return [str(Problem(where, shown("never"), why, allowed, ReasonCode.CONFLICT))]
    made = _made_by(folder)
    if made is not None and made.uid != config.uid and store.steps():
        why = f"it holds the checkpoints of the job {made.namespace}/{made.name}"
        allowed = "another folder, or metadata.name as it was"
        return [str(Problem(_WHERE, str(folder), why, allowed, ReasonCode.CONFLICT))]
    for step in reversed(store.steps()):
        try:
            found = store.read(step)
        except CannotResume as refusal:
            return list(refusal.problems)
        except (DamagedCheckpoint, OSError):
            continue
        beyond = [str(problem) for problem in _beyond_end(config, folder, step)]
        return beyond or changed_data(config.spec.prompts, found.manifest.progress, digests)
    return [str(problem) for problem in _steps_of_another(config, folder)]


def unsaved_steps_warning(folder: Path) -> Iterator[Problem]:
    """Warn of steps after the last checkpoint, which will be repeated."""
    events = _events(folder)
    lost = _steps_done(events) - (last_saved(events) or 0)
    if lost > 0:
        why = f"{counted(lost, 'step')} without a checkpoint will be repeated"
        allowed = "spec.checkpoint.every sets how many that may be"
        yield Problem(_WHERE, str(folder), why, allowed, ReasonCode.OUT_OF_RANGE)


def _beyond_end(config: RunConfig, folder: Path, step: int) -> Iterator[Problem]:
    total = config.spec.steps.total
    if total is not None and step > total:
        why = f"the run in {folder} has done {step} steps, nothing is left to do"
        allowed = f"at least {step}, or another run folder"
        yield Problem("spec.steps.total", shown(total), why, allowed, ReasonCode.OUT_OF_RANGE)


def _steps_of_another(config: RunConfig, folder: Path) -> Iterator[Problem]:
    """Yield problems of steps without a checkpoint, of another job or with other settings."""
    done = _steps_done(_events(folder))
    made = _made_by(folder) if done else None
    if made is None:
        return
    lost = f"{counted(done, 'step')} without a checkpoint would be lost"
    if made.uid != config.uid:
        why = f"{lost}, of the job {made.namespace}/{made.name}"
        yield Problem(_WHERE, str(folder), why, "another folder", ReasonCode.CONFLICT)
        return
    old, new = (json.loads(one.trajectory_json())["spec"] for one in (made, config))
    for where, theirs, ours in changed_settings(old, new):
        why = f"{lost} from {folder}, done with {theirs}"
        allowed = "the old value, or another folder"
        yield Problem(where, ours, why, allowed, ReasonCode.CONFLICT)


def _made_by(folder: Path) -> RunConfig | None:
    job = validate_file(str(folder / JOB_FILE))
    return resolve(job) if isinstance(job, PPOJob) else None


def _events(folder: Path) -> list[Event]:
    """Read the journal; empty if it is damaged, which the controller reports."""
    try:
        return Journal(folder / CHECKPOINTS_FOLDER / JOURNAL_NAME).read()
    except (DamagedCheckpoint, OSError):
        return []


def _steps_done(events: list[Event]) -> int:
    progress = read_journal_state(events, frozenset()).progress
    return progress.step if progress else 0
