"""A run folder that holds what is not this job's: nothing of it is lost without a word."""

from pathlib import Path

import pytest
import tiny_jobs

from ppojob_api.run_config import RunConfig, resolve
from ppojob_cli.commit_checks import check_commits, uncommitted_warning
from ppojob_cli.output_checks import check_output
from ppojob_cli.run import write_job
from ppojob_cli.run_folder import locked, usable
from ppojob_cli.validate import load_job
from ppojob_trainer.checkpoint.journal import (
    JOURNAL_NAME,
    CommitSealed,
    Journal,
    RunBegan,
    StepDone,
)
from ppojob_trainer.checkpoint.manifest import DataCursor, Progress
from ppojob_trainer.errors import ConfigError


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return job_with(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    (made / "checkpoints").mkdir(parents=True)
    return made


def job_with(tmp_path: Path, *settings: str) -> RunConfig:
    return resolve(load_job(tiny_jobs.write_manifest(tmp_path, tmp_path), settings))


def progress(step: int) -> Progress:
    return Progress(
        step=step,
        policy_version=step,
        data=DataCursor(epoch=0, cursor=0, sha256="0" * 64),
        kl_coefficient=None,
        metrics_lines=step,
        tokens=0,
        seconds=0.0,
        roles=(),
    )


def leave_run(folder: Path, config: RunConfig, steps: int) -> Journal:
    """What a run leaves that was killed before its first commit."""
    write_job(folder, config)
    journal = Journal(folder / "checkpoints" / JOURNAL_NAME)
    journal.append(RunBegan(time=0.0))
    for step in range(1, steps + 1):
        journal.append(StepDone(time=0.0, progress=progress(step)))
    return journal


def warnings(folder: Path) -> list[str]:
    return [str(problem) for problem in uncommitted_warning(folder)]


def test_steps_of_this_job_without_a_commit_are_told(folder: Path, config: RunConfig) -> None:
    journal = leave_run(folder, config, 3)
    assert check_commits(config, folder) == []
    assert warnings(folder) == [
        f"--output: got {folder}: 3 steps without a commit will be repeated; "
        "spec.checkpoint.every sets how many that may be"
    ]
    journal.append(CommitSealed(time=0.0, step=2, size_bytes=1))
    assert "1 step without" in warnings(folder)[0]
    journal.append(CommitSealed(time=0.0, step=3, size_bytes=1))
    assert warnings(folder) == []


def test_steps_of_another_job_are_not_thrown_away(
    folder: Path, config: RunConfig, tmp_path: Path
) -> None:
    leave_run(folder, job_with(tmp_path, "metadata.name=other"), 3)
    assert check_commits(config, folder) == [
        f"--output: got {folder}: 3 steps without a commit would be lost, of the job "
        "default/other; another folder"
    ]


def test_steps_made_with_other_settings_are_not_thrown_away(
    folder: Path, config: RunConfig, tmp_path: Path
) -> None:
    leave_run(folder, job_with(tmp_path, "spec.data.seed=7"), 1)
    assert check_commits(config, folder) == [
        f"spec.data.seed: got 0: 1 step without a commit would be lost from {folder}, done with "
        "7; the old value, or another folder"
    ]


@pytest.mark.parametrize(
    "changes",
    [
        ["spec.seed=5"],
        ["spec.data.seed=5"],
        ["spec.algorithm.type=rloo"],
        ["spec.algorithm.type=ppo"],
        ["spec.algorithm.promptsPerStep=8"],
        ["spec.algorithm.grpo.normalizeByStd=false"],
        ["spec.algorithm.kl.in=loss"],
        ["spec.algorithm.lossAggregation=sequence_mean_token_sum_norm"],
        ["spec.data.maxResponseTokens=9"],
        ["spec.rollout.temperature=0.5", "spec.seed=5"],
    ],
)
def test_what_differs_is_named_as_its_author_wrote_it(
    changes: list[str], folder: Path, config: RunConfig, tmp_path: Path
) -> None:
    leave_run(folder, job_with(tmp_path, *changes), 1)
    named = [line.partition(": got ")[0] for line in check_commits(config, folder)]
    assert named == [change.partition("=")[0] for change in changes]


def test_a_run_that_did_no_step_is_in_nobodys_way(
    folder: Path, config: RunConfig, tmp_path: Path
) -> None:
    leave_run(folder, job_with(tmp_path, "metadata.name=other"), 0)
    assert check_commits(config, folder) == warnings(folder) == []


def test_a_longer_run_of_the_same_job_goes_on(
    folder: Path, config: RunConfig, tmp_path: Path
) -> None:
    leave_run(folder, config, 3)
    assert check_commits(job_with(tmp_path, "spec.steps.total=9999"), folder) == []


@pytest.mark.parametrize("name", ["job.yaml", "export/model.safetensors", "metrics.jsonl"])
def test_what_no_run_has_left_is_not_written_over(
    name: str, config: RunConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    theirs = folder / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    top = folder / Path(name).parts[0]
    assert [str(problem) for problem in check_output(config, folder, None)] == [
        f"--output: got {folder}: {top} would be written over, and no run has left it; "
        "another folder"
    ]


def test_what_a_run_has_left_is_written_over(config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        write_job(folder, config)
    assert list(check_output(config, folder, None)) == []


def test_what_the_system_refuses_is_one_line(folder: Path, config: RunConfig) -> None:
    (folder / "job.yaml").mkdir()
    with pytest.raises(ConfigError) as caught, usable(folder):
        write_job(folder, config)
    assert str(caught.value) == (
        f"--output: got {folder}: {folder}/.job.yaml.aside: Is a directory; "
        "a folder that can be written"
    )
