import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_jobs
from run_progress import progress_behind
from small_disks import SmallDisk, small_disk

from ppojob_api.run_config import RunConfig, resolve
from ppojob_cli.input_error import InputError, output_errors
from ppojob_cli.job_file import load_job
from ppojob_cli.output_checks import check_checkpoints, check_output, unsaved_steps_warning
from ppojob_cli.run_folder import locked, refuse_owned, write_job
from ppojob_cli.summary import finished_summary, keep_model
from ppojob_trainer.checkpoint.identity import Identity
from ppojob_trainer.checkpoint.journal import (
    JOURNAL_NAME,
    CheckpointSaved,
    Journal,
    RunBegan,
    StepDone,
)
from ppojob_trainer.checkpoint.store import CheckpointStore
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


def test_answers_of_another_model_at_the_same_path_are_not_taken_for_these(folder, tmp_path):
    config = job_with(tmp_path, "spec.steps.generateOnly=true")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    keep_model(folder, config)
    (folder / "summary.json").write_text(
        json.dumps({"phase": "Succeeded", "steps": 0, "seconds": 0.0, "tokens": 0,
                    "config_sha256": config.digest()})
    )  # fmt: skip
    (tmp_path / "model" / "config.json").write_text('{"of": "another"}')
    assert finished_summary(folder, config) is not None, "nothing was answered by the first"
    (folder / "validation" / "step-000000.parquet").mkdir(parents=True)
    assert finished_summary(folder, config) is None
    (problem,) = check_output(config, folder, None)
    assert str(problem).startswith(f"--output: got {folder}: what it holds was answered by another")
    keep_model(folder, config)
    assert finished_summary(folder, config) is not None


def leave_run(folder: Path, config: RunConfig, steps: int) -> Journal:
    """What a run leaves that was killed before its first checkpoint."""
    write_job(folder, config)
    journal = Journal(folder / "checkpoints" / JOURNAL_NAME)
    journal.append(RunBegan(time=0.0))
    for step in range(1, steps + 1):
        journal.append(StepDone(time=0.0, progress=progress_behind(step)))
    return journal


def warnings(folder: Path) -> list[str]:
    return [str(problem) for problem in unsaved_steps_warning(folder)]


def test_steps_of_this_job_without_a_checkpoint_are_told(folder: Path, config: RunConfig) -> None:
    journal = leave_run(folder, config, 3)
    assert check_checkpoints(config, folder) == []
    assert warnings(folder)[0].startswith(f"--output: got {folder}: 3 steps without a checkpoint ")
    journal.append(CheckpointSaved(time=0.0, step=2, size_bytes=1))
    assert "1 step without" in warnings(folder)[0]
    journal.append(CheckpointSaved(time=0.0, step=3, size_bytes=1))
    assert warnings(folder) == []


def test_other_data_than_that_of_a_checkpoint_is_named_by_its_files(folder, config) -> None:
    owner = Identity(config.uid, config.trajectory_json())
    store = CheckpointStore(folder / "checkpoints", owner)
    store.complete(store.begin(2), progress_behind(2), [])
    assert check_checkpoints(config, folder, {"train": progress_behind(2).data.sha256}) == []
    (line,) = check_checkpoints(config, folder, {"train": "abc"})
    (file,) = config.spec.data.train
    assert line.startswith(f"spec.data.train: got {file.path} with digest abc: the run began with ")


@pytest.mark.parametrize(
    ("setting", "steps", "told"),
    [
        (
            "metadata.name=other",
            3,
            "--output: got {}: 3 steps without a checkpoint would be lost, ",
        ),
        (
            "spec.data.seed=7",
            1,
            "spec.data.seed: got 0: 1 step without a checkpoint would be lost ",
        ),
    ],
)
def test_steps_of_other_jobs_and_settings_are_not_thrown_away(
    setting: str, steps: int, told: str, folder: Path, config: RunConfig, tmp_path: Path
) -> None:
    leave_run(folder, job_with(tmp_path, setting), steps)
    (problem,) = check_checkpoints(config, folder)
    assert problem.startswith(told.format(folder))


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
def test_what_differs_is_named_as_its_author_wrote_it(changes, folder, config, tmp_path):
    leave_run(folder, job_with(tmp_path, *changes), 1)
    named = [line.partition(": got ")[0] for line in check_checkpoints(config, folder)]
    assert named == [change.partition("=")[0] for change in changes]


@pytest.mark.parametrize(
    ("other", "steps"), [("metadata.name=other", 0), ("spec.steps.total=9", 3)]
)
def test_a_run_without_steps_is_in_nobodys_way_and_a_longer_one_goes_on(
    other: str, steps: int, folder: Path, config: RunConfig, tmp_path: Path
) -> None:
    leave_run(folder, job_with(tmp_path, other), steps)
    assert check_checkpoints(config, folder) == []
    assert bool(warnings(folder)) == bool(steps)


@pytest.mark.parametrize("name", ["job.yaml", "export/model.safetensors", "config.json"])
def test_what_no_run_has_left_is_not_written_over(name: str, config: RunConfig, tmp_path: Path):
    folder = tmp_path / "mine"
    theirs = folder / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    top = folder / Path(name).parts[0]
    (problem,) = check_output(config, folder, None)
    assert (problem.where, problem.got) == ("--output", str(folder))
    assert problem.why == f"it holds {top}, and is not the folder of a run"


def test_what_a_run_has_left_is_written_over(config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name in ("checkpoints", "lost+found", "slurm-1.out", "grpo.yaml"):
        (folder / name).mkdir(parents=True)
    assert list(check_output(config, folder, None)) == []
    with locked(folder):
        write_job(folder, config)
    assert list(check_output(config, folder, None)) == []


def test_a_folder_that_is_owned_is_refused_before_it_is_read(tmp_path: Path) -> None:
    refuse_owned(tmp_path / "absent")
    with locked(tmp_path), pytest.raises(ConfigError) as caught:
        refuse_owned(tmp_path)
    assert f"process {os.getpid()} runs a job there" in str(caught.value)
    refuse_owned(tmp_path)  # the lock went with its owner


def test_what_the_system_refuses_is_one_line(folder: Path, config: RunConfig) -> None:
    (folder / "job.yaml").mkdir()
    with pytest.raises(InputError) as caught, output_errors(folder):
        write_job(folder, config)
    assert caught.value.message.startswith(f"--output: got {folder}: {folder}/.job.yaml.aside: ")


MEBI = 2**20
PARAMETERS = MEBI // 2
"""Of a checkpoint of 6 MiB and an export of 1 MiB, in bfloat16."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 16) as made:
        yield made


@pytest.mark.processes
@pytest.mark.parametrize(
    ("left", "fits"),
    [
        (".step-000004.2.partial/actorRollout/rank-00000/model.safetensors", True),
        (".step-000002.pruned/actorRollout/rank-00000/model.safetensors", True),
        ("step-000004/actorRollout/rank-00000/model.safetensors", False),
        ("journal.jsonl", False),
    ],
)
def test_what_the_next_start_removes(left, fits, disk: SmallDisk, config: RunConfig):
    checkpoints = disk.folder / "run" / "checkpoints"
    (checkpoints / "step-000002").mkdir(parents=True)
    (checkpoints / ".latest.aside").symlink_to("step-000002")
    assert list(check_output(config, disk.folder / "run", PARAMETERS)) == []
    disk.fill(checkpoints / left, leave_bytes=2 * MEBI)
    problems = [str(problem) for problem in check_output(config, disk.folder / "run", PARAMETERS)]
    assert (problems == []) == fits, problems
    if not fits:
        assert "0.00 GiB are free at" in problems[0]
