"""Branches: a run that starts from another run's checkpoint, with its own settings (ADR 90).

Weights, moments, counters and the data cursor are taken over. Settings that determine their form
must be equal; all others may differ, and differences are logged. Does not import torch: the
controller imports this module.
"""

import json
import logging
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import CHECKPOINTS_FOLDER, JOURNAL_FILE, METRICS_FILE
from ppojob_api.v1alpha1.data import DataFile
from ppojob_api.v1alpha1.estimators import ESTIMATORS
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.policy_loss import LOSSES
from ppojob_api.v1alpha1.schedule import BranchSpec
from ppojob_trainer import durable
from ppojob_trainer.checkpoint.identity import Difference, changed_settings, differences
from ppojob_trainer.checkpoint.journal import CheckpointSaved, Journal
from ppojob_trainer.checkpoint.manifest import UNREAD, Manifest, Progress, entry_of
from ppojob_trainer.checkpoint.remote_store import RUN_FOLDER, RemoteStore, complete_download
from ppojob_trainer.checkpoint.store import CONFIG_NAME, folder_name, has_checkpoint, step_of
from ppojob_trainer.errors import ConfigError, DamagedCheckpoint
from ppojob_trainer.json_value import Json
from ppojob_trainer.processor import has_native_bfloat16
from ppojob_trainer.remote_files import Log

_log = logging.getLogger(__name__)
BRANCH_FILE: Final = durable.point("branched.file", *durable.FILE_ACTS)
BRANCH_POINT: Final = durable.point("branched", "fsync", *durable.RENAME_ACTS)

FIELD: Final = "spec.checkpoint.branch"
_SHAPES_STATE: Final = (
    "spec.model",
    "spec.optimizer.type",
    "spec.optimizer.momentsDtype",
    "spec.optimizer.amsgrad",
    "spec.training.autocast",
    "spec.algorithm.kl.referenceRefresh",
    "spec.algorithm.kto.lossType",
    "spec.critic.path",
    "spec.critic.referencePath",
    "spec.critic.lora",
    "spec.critic.optimizer.type",
    "spec.critic.optimizer.momentsDtype",
    "spec.critic.optimizer.amsgrad",
    "spec.rollout.maxStaleness",
)
"""Settings that determine the files of a checkpoint, and the meaning of its numbers."""
_SHAPES_NOTHING: Final = (
    "spec.model.attentionDropout",
    "spec.model.mtp.lossCoefficient",
    "spec.model.mtp.detach",
)
"""Exceptions among them: settings of updates that do not affect a checkpoint."""
_PROMPTS_PER_STEP: Final = "spec.algorithm.promptsPerStep"
_ROWS_PER_STEP: Final = "spec.algorithm.supervised.rowsPerStep"
_MOVES_CURSOR: Final = ("spec.data.seed", "spec.data.maxTeacherPromptTokens", _ROWS_PER_STEP)
"""Settings that another one may determine, by which the data is another one or in another order."""
_DRAWS: Final = (
    _PROMPTS_PER_STEP,
    "spec.algorithm.dynamicSampling",
    "spec.algorithm.dynamicSampling.promptsPerRound",
)
"""Settings of the number of prompts per draw."""
_SHAPES_ROWS_AHEAD: Final = (
    "spec.data",
    "spec.algorithm.samplesPerPrompt",
    "spec.algorithm.guidance.samples",
    "spec.algorithm.routerReplay",
    "spec.agent",
)
"""The same, in addition to `_DRAWS`, if a checkpoint has rows of later steps or rounds."""
_OF_DEMONSTRATIONS: Final = "spec.data.demonstration"
_NOT_OF_PROMPTS: Final = (
    "spec.data.maxResponseTokens",
    "spec.data.validation",
    "spec.data.maxValidationRows",
    "spec.data.sampler",
    _OF_DEMONSTRATIONS,
)
"""Data settings that change neither the prompts nor their order."""
_OF_TOOLS: Final = re.compile(
    r"spec\.agent(\.tools(\[\d+\](\.(name|description|parameters)\b.*)?)?"
    r"|\.agents(\[\d+\](\.(name|tools)\b.*)?)?|\.default)?"
)
"""Settings of tools, and of the agents that have them, that a chat template shows in prompts."""
_NOT_OF_DEMONSTRATIONS: Final = (
    "spec.data.train",
    "spec.data.validation",
    "spec.data.maxTrainRows",
    "spec.data.maxValidationRows",
    "spec.data.answerKey",
    "spec.data.dataSource",
    "spec.data.curriculum",
    "spec.data.sampler",
    "spec.data.scoresKey",
    "spec.data.teacherPromptKey",
    "spec.data.guidanceKey",
    "spec.data.maxTeacherPromptTokens",
)
"""The same of data.demonstrations."""


def problems(
    config: RunConfig, run_folder: Path | None = None, rows: int | None = None
) -> list[str]:
    """Report why a run cannot start as a branch; nothing if it has started, or is no branch.

    `rows` is the size of the training data, if known.
    """
    branch = config.spec.checkpoint.branch
    if branch is None or (run_folder is not None and has_checkpoint(run_folder)):
        return []
    try:
        with _refusing_damage(branch):
            origin = _fitting(RemoteStore(branch.run, f"{FIELD}.run", _log.warning), branch, config)
    except ConfigError as problem:
        return list(problem.problems)
    return list(map(str, _read_already(config, origin, rows)))


def begin(config: RunConfig, run_folder: Path, tell: Log = _log.info) -> None:
    """Copy the checkpoint that a run starts from into its folder, unless it has one.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or of an incompatible run.
        JobFailed: the store did not answer after all retries.
        StorageError: the disk refused.
    """
    branch = config.spec.checkpoint.branch
    if branch is None or has_checkpoint(run_folder):
        return
    with _refusing_damage(branch):
        _copy(RemoteStore(branch.run, f"{FIELD}.run", tell), branch, config, run_folder, tell)


def _copy(
    remote: RemoteStore, branch: BranchSpec, config: RunConfig, run_folder: Path, tell: Log
) -> None:
    """Convert it to a checkpoint of this job; the last rename completes it."""
    root = run_folder / CHECKPOINTS_FOLDER
    step, found, settings, changes = _fitting(remote, branch, config)
    for where, old, new in changes:
        restart = "; the data starts again" if _restarts_data(where, config.spec) else ""
        tell(f"{where}: {old} -> {new}{restart}")
    progress = _progress(found.progress, config, [where for where, _, _ in changes])
    files = [entry for entry in found.files if entry.path != CONFIG_NAME]
    folder = remote.download(step, files, root)
    own = msgspec.structs.replace(found, job_uid=config.uid, progress=progress, files=tuple(files))
    _complete(folder, own, settings)
    # A run folder has the metrics of all steps, each copy its own.
    metrics = remote.read_run_file(METRICS_FILE) or remote.read(step, RUN_FOLDER, METRICS_FILE)
    lines = metrics.splitlines(keepends=True)[: found.progress.metrics_lines]
    durable.write_file(run_folder / METRICS_FILE, b"".join(lines), BRANCH_FILE)
    journal = Journal(root / JOURNAL_FILE)
    journal.began()
    journal.append(CheckpointSaved.of(step, files))
    durable.rename(folder, root / folder_name(step), BRANCH_POINT)
    tell(f"{remote.url}: the run starts from the checkpoint of step {step}")


@contextmanager
def _refusing_damage(branch: BranchSpec) -> Iterator[None]:
    """Turn a damaged checkpoint into an error that names the branch, not this run."""
    try:
        yield
    except DamagedCheckpoint as problem:
        raise ConfigError(f"{FIELD}: got {branch.run}: {problem}; another checkpoint") from None


class _Origin(NamedTuple):
    """Start of a run: a checkpoint, its settings with those of this job, the differences."""

    step: int
    found: Manifest
    settings: dict[str, Any]
    changes: list[Difference]


def _fitting(remote: RemoteStore, branch: BranchSpec, config: RunConfig) -> _Origin:
    """Return a branch's checkpoint, or raise ConfigError if this job cannot continue from it."""
    step, found = _chosen(remote, branch)
    theirs = remote.settings(step, found)
    here = config.on_processor(native_bfloat16=has_native_bfloat16()).trajectory_json()
    ours: dict[str, Any] = json.loads(here)
    old, new = theirs["spec"], ours["spec"]
    changes = _changes(old, new)
    if unfit := list(_unfit(remote, step, config, (_kinds(old), _kinds(new)), changes)):
        raise ConfigError(map(str, unfit))
    return _Origin(step, found, theirs | ours, changes)


def _read_already(config: RunConfig, origin: _Origin, rows: int | None) -> Iterator[Problem]:
    """Return the data epochs that were complete when the checkpoint was written."""
    passes, (_, size) = config.spec.steps.epochs, config.spec.algorithm.draw
    data = origin.found.progress.data
    over = data.epoch + (rows is not None and data.cursor + size > rows)
    if passes is not None and over >= passes:
        why = f"the run starts with {over} done, and nothing is left to do"
        allowed = f"more than {over}; ppojob export writes the model of a checkpoint"
        yield Problem("spec.steps.epochs", str(passes), why, allowed, ReasonCode.CONFLICT)


def _chosen(remote: RemoteStore, branch: BranchSpec) -> tuple[int, Manifest]:
    steps = list(remote.complete())
    if not steps:
        why = "it holds no checkpoint" if remote.exists() else "there is no such folder"
        allowed = _suggestion(branch.run) or "the run folder of a job, or its copy by copyTo"
        raise ConfigError(_wrong("run", shown(branch.run), why, allowed))
    step = steps[0] if branch.step is None else branch.step
    if step not in steps:
        there = ", ".join(map(str, sorted(steps)))
        raise ConfigError(_wrong("step", str(step), "there is no such checkpoint", there))
    return step, remote.manifest(step)


def _suggestion(path: str) -> str:
    """Suggest a spelling for verl's path of a checkpoint folder; else nothing."""
    root, _, name = path.rstrip("/").rpartition("/")
    step = step_of(name)
    is_one = step is not None and posixpath.basename(root) == CHECKPOINTS_FOLDER
    return f"run: {posixpath.dirname(root) or '.'}, step: {step}" if is_one else ""


def _wrong(name: str, got: str, why: str, allowed: str) -> str:
    return str(Problem(f"{FIELD}.{name}", got, why, allowed, ReasonCode.UNREADABLE))


def _unfit(
    remote: RemoteStore,
    step: int,
    config: RunConfig,
    kinds: tuple[Mapping[str, object], Mapping[str, object]],
    changes: Iterable[Difference],
) -> Iterator[Problem]:
    """Report settings that need other checkpoint files, or give its numbers another meaning."""
    steps = config.spec.steps
    if steps.trains and steps.total is not None and steps.total <= step:
        why = f"the run starts with {step} steps done, and nothing is left to do"
        allowed = f"more than {step}; ppojob export writes the model of a checkpoint"
        yield Problem("spec.steps.total", str(steps.total), why, allowed, ReasonCode.CONFLICT)
    is_ahead = config.spec.rollout.max_staleness > 0
    shapes = (*_SHAPES_STATE, *(_SHAPES_ROWS_AHEAD if is_ahead else ()))
    for where, old, new in changes:
        is_shape = where not in _SHAPES_NOTHING and any(
            f"{where}.".startswith(f"{one}.") for one in shapes
        )
        is_shape |= is_ahead and where in _DRAWS  # a cursor between two rounds
        is_kind = where in kinds[0] and kinds[0][where] != kinds[1][where]
        if (is_shape and not where.startswith(_OF_DEMONSTRATIONS)) or is_kind:
            why = f"the checkpoint of {shown(remote.url)} was made with {old}"
            allowed = "the old value, or start from an export of that run (spec.model.path)"
            yield Problem(where, new, why, allowed, ReasonCode.CONFLICT)
        passes = config.spec.steps.epochs
        restarts = _restarts_data(where, config.spec)
        if passes is not None and (restarts or where == _PROMPTS_PER_STEP):
            why = (
                f"{where} changes, so the epochs of the {step} steps of that run are not comparable"
            )
            where, got = "spec.steps.epochs", str(passes)
            yield Problem(where, got, why, "spec.steps.total", ReasonCode.CONFLICT)


def _changes(theirs: dict[str, Json], ours: dict[str, Json]) -> list[Difference]:
    """Return the differences, also derived ones that move a cursor."""
    derived = [one for one in differences(theirs, ours, "spec") if one[0] in _MOVES_CURSOR]
    return sorted({*changed_settings(theirs, ours), *derived})


def _kinds(spec: dict[str, Any]) -> dict[str, object]:
    """Return the models, state and rows ahead of a job, by the fields that determine them."""
    algorithm = spec["algorithm"]
    kind, loss = algorithm["type"], algorithm.get("policyLoss") or {}
    estimator = {str(name): one for name, one in ESTIMATORS.items()}.get(kind)
    state = kind  # a type that is no estimator trains on demonstrations, each in its own way
    if estimator is not None and kind != "spo":
        has_greedy = estimator.has_greedy and spec["rollout"]["maxStaleness"] > 0
        state = estimator.critic, has_greedy
    learning = [str(name) for name, one in LOSSES.items() if one.learns_log_z]
    return {
        "spec.algorithm.type": state,
        "spec.algorithm.policyLoss.type": loss.get("type") in learning,
    }


def _complete(folder: Path, own: Manifest, settings: dict[str, Any]) -> None:
    """Write the files that make the checkpoint one of this job."""
    document = json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()
    durable.write_file(folder / CONFIG_NAME, document, BRANCH_FILE)
    config = entry_of(folder, CONFIG_NAME, "controller", 0)
    files = tuple(sorted((config, *own.files), key=lambda entry: entry.path))
    manifest = msgspec.structs.replace(own, config_sha256=config.sha256, files=files)
    complete_download(folder, manifest, BRANCH_FILE, BRANCH_POINT)


def _progress(progress: Progress, config: RunConfig, changed: Collection[str]) -> Progress:
    """Return the state with this job's coefficients, if it changes how they are controlled."""
    if any(where.startswith("spec.algorithm.kl.") for where in changed):
        first = config.spec.algorithm.kl.first_coefficient
        progress = msgspec.structs.replace(progress, kl_coefficient=first)
    if any(where.startswith("spec.algorithm.entropyCo") for where in changed):
        progress = msgspec.structs.replace(progress, entropy_coefficient=None)
    data = config.spec.data
    if any(_restarts_data(where, config.spec) for where in changed):
        progress = msgspec.structs.replace(progress, data=UNREAD, rows_seen={})
    if any(where.startswith("spec.data.sampler") for where in changed):
        progress = msgspec.structs.replace(progress, sampler_state="null")
    if data.sampler is None:
        progress = msgspec.structs.replace(progress, rows_seen={})
    is_reordered = _ROWS_PER_STEP in changed and _has_weights(data.demonstrations)
    if is_reordered or any(_is_of_data(where, _NOT_OF_DEMONSTRATIONS) for where in changed):
        progress = msgspec.structs.replace(progress, demonstrations=None)
    return progress


def _has_weights(files: Sequence[DataFile]) -> bool:
    return any(file.weight is not None for file in files)


def _restarts_data(where: str, spec: PPOJobSpec) -> bool:
    """Whether a changed setting makes the data cursor meaningless.

    Files with weights, and an order by difficulty, are read by whole batches. Given responses are
    truncated as generated ones are.
    """
    data = spec.data
    if where == "spec.data.maxResponseTokens" and (data.guidance_key or spec.algorithm.given):
        return True
    is_by_batches = data.curriculum is not None or _has_weights(data.train)
    return _is_of_data(where, _NOT_OF_PROMPTS) or (is_by_batches and where in _DRAWS)


def _is_of_data(where: str, others: tuple[str, ...]) -> bool:
    """Whether a setting is one of the data, without `others`, or of tools that its texts show."""
    if _OF_TOOLS.fullmatch(where):
        return True
    return where.startswith("spec.data.") and not where.startswith(others)
