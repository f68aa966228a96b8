"""Whether a job may go on with the run that lies in a folder: with its commits and its steps."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.run_layout import CHECKPOINTS_FOLDER, JOB_FILE
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.figures import counted
from ppojob_cli.validate import validate_file
from ppojob_trainer.checkpoint.commit import CommitStore
from ppojob_trainer.checkpoint.identity import changed_settings
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME, Event, Journal, last_sealed
from ppojob_trainer.controller.position import read_position
from ppojob_trainer.errors import CannotResume, DamagedCommit
from ppojob_trainer.models.fingerprint import base_of


def check_commits(config: RunConfig, folder: Path) -> list[str]:
    """Why the run that lies in the folder cannot be gone on with.

    Looks at the newest commit that can be read; whether its bytes are whole is for the controller,
    which alone may use an older one. Where there is none, another job would begin anew, and the
    steps that were done would be lost.
    """
    root = folder / CHECKPOINTS_FOLDER
    if not os.path.isdir(root):
        return []
    base = base_of(config.spec.model)
    store = CommitStore(root, job_uid=config.uid, config=config.trajectory_json(), base=base)
    if config.spec.checkpoint.resume == "never" and store.steps():
        problem = Problem(
            "spec.checkpoint.resume",
            shown("never"),
            f"{folder} holds the commits of a run",
            "auto to go on with it, or another folder to begin anew",
            ReasonCode.CONFLICT,
        )
        return [str(problem)]
    made = _made_by(folder)
    if made is not None and made.uid != config.uid and store.steps():
        why = f"it holds the commits of the job {made.namespace}/{made.name}"
        allowed = "another folder, or metadata.name as it was"
        return [str(Problem("--output", str(folder), why, allowed, ReasonCode.CONFLICT))]
    for step in reversed(store.steps()):
        try:
            store.read(step)
        except CannotResume as refusal:
            return list(refusal.problems)
        except (DamagedCommit, OSError):
            continue
        return [str(problem) for problem in _beyond_end(config, folder, step)]
    return [str(problem) for problem in _steps_of_another(config, folder)]


def uncommitted_warning(folder: Path) -> Iterator[Problem]:
    """Steps behind the last commit, from which the job goes on."""
    events = _events(folder)
    lost = _steps_done(events) - (last_sealed(events) or 0)
    if lost > 0:
        yield Problem(
            "--output",
            str(folder),
            f"{counted(lost, 'step')} without a commit will be repeated",
            "spec.checkpoint.every sets how many that may be",
            ReasonCode.OUT_OF_RANGE,
        )


def _beyond_end(config: RunConfig, folder: Path, step: int) -> Iterator[Problem]:
    total = config.spec.steps.total
    if total is not None and step > total:
        yield Problem(
            "spec.steps.total",
            shown(total),
            f"the run in {folder} has done {step} steps, nothing is left to do",
            f"at least {step}, or another run folder",
            ReasonCode.OUT_OF_RANGE,
        )


def _steps_of_another(config: RunConfig, folder: Path) -> Iterator[Problem]:
    """Steps without a commit, of a job that differs: by name, or in what decides the weights."""
    done = _steps_done(_events(folder))
    made = _made_by(folder) if done else None
    if made is None:
        return
    lost = f"{counted(done, 'step')} without a commit would be lost"
    if made.uid != config.uid:
        why = f"{lost}, of the job {made.namespace}/{made.name}"
        yield Problem("--output", str(folder), why, "another folder", ReasonCode.CONFLICT)
        return
    old, new = (json.loads(one.trajectory_json())["spec"] for one in (made, config))
    for where, theirs, ours in changed_settings(old, new):
        why = f"{lost} from {folder}, done with {theirs}"
        allowed = "the old value, or another folder"
        yield Problem(where, ours, why, allowed, ReasonCode.CONFLICT)


def _made_by(folder: Path) -> RunConfig | None:
    """The job whose run the folder holds, where it can be told."""
    job = validate_file(str(folder / JOB_FILE))
    return resolve(job) if isinstance(job, PPOJob) else None


def _events(folder: Path) -> list[Event]:
    """The journal; empty where it cannot be read, of which the controller tells."""
    try:
        return Journal(folder / CHECKPOINTS_FOLDER / JOURNAL_NAME).read()
    except (DamagedCommit, OSError):
        return []


def _steps_done(events: list[Event]) -> int:
    progress = read_position(events, frozenset()).progress
    return progress.step if progress else 0
