"""Cases 1 to 48, 84, 101 to 112, by `ppojob run`: the job, this machine, the run folder."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
from click.testing import CliRunner
from job_runs import Run
from refused_jobs import RefusedJob, check, read_lines

from ppojob_api import contract
from ppojob_api.run_config import EngineFacts, resolve
from ppojob_cli import gpus, machine_checks, output_checks
from ppojob_cli import run as run_command
from ppojob_cli.main import main
from ppojob_cli.run_folder import locked
from ppojob_cli.validate import load_job
from ppojob_trainer.checkpoint.commit import CommitStore
from ppojob_trainer.checkpoint.manifest import DataCursor, Progress
from ppojob_trainer.models import memory

LINES = read_lines(Path(__file__).with_suffix(".txt"))

Spoil = Callable[[RefusedJob], object]
Start = Callable[..., Run]


def setting(path: str, value: object) -> Spoil:
    return lambda wrong: wrong.set(path, value)


def several(wrong: RefusedJob) -> None:
    wrong.set("spec.optimizer.lerning_rate", 1e-6)
    wrong.set("spec.algorithm.samplesPerPrompt", 1)
    wrong.set("spec.rollout.temperature", 0)


def all_at_once(wrong: RefusedJob) -> None:
    wrong.edit("config.json", {"model_type": "gpt2"})
    (wrong.model / "tokenizer.json").unlink()
    wrong.set("spec.data.train", [{"path": str(wrong.files / "none.jsonl")}])
    wrong.set("spec.data.validation", [{"path": str(wrong.files / "none.parquet")}])
    wrong.reward.write_text("import no_such_package\n")
    wrong.set("spec.roles.actorRollout", {"gpusPerReplica": 1})
    wrong.output = wrong.model


def warm_up_of_epochs(wrong: RefusedJob) -> None:
    wrong.set("spec.steps", {"epochs": 1})
    wrong.set("spec.optimizer.warmupSteps", 100)


def output_is_model(wrong: RefusedJob) -> None:
    wrong.output = wrong.model


def output_exports_over_model(wrong: RefusedJob) -> None:
    wrong.output.mkdir()
    wrong.model = wrong.model.rename(wrong.output / "export")
    wrong.set("spec.model.path", str(wrong.model))


def output_below_a_file(wrong: RefusedJob) -> None:
    wrong.output = wrong.train / "run"


def output_not_writable(wrong: RefusedJob) -> None:
    wrong.output = Path("/proc/run")  # not even root may write there


def never_resume(wrong: RefusedJob) -> None:
    """Leave a commit of this job in the run folder, and ask never to go on with one."""
    wrong.set("spec.checkpoint", {"every": 2, "resume": "never"})
    commit(2)(wrong)


def commit(step: int, **changes: object) -> Spoil:
    """Leave a commit of this job in the run folder, made with other settings where given."""

    def leave(wrong: RefusedJob) -> None:
        given = {path: wrong.get(path) for path in changes}
        for path, value in changes.items():
            wrong.set(path, value)
        config = resolve(load_job(wrong.write_manifest()))
        for path, value in given.items():
            wrong.set(path, value)
        store = CommitStore(
            wrong.output / "checkpoints", job_uid=config.uid, config=config.trajectory_json()
        )
        progress = Progress(
            step=step,
            policy_version=step,
            data=DataCursor(epoch=0, cursor=0, sha256="0" * 64),
            kl_coefficient=None,
            metrics_lines=step,
            tokens=0,
            seconds=0.0,
            roles=(),
        )
        store.seal(store.begin(step), progress, [])

    return leave


CASES: dict[str, Spoil] = {
    "1 name": setting("metadata.name", "A_b"),
    "2 unknown field": setting("spec.optimizer.lerning_rate", 1e-6),
    "3 no model": lambda wrong: wrong.job["spec"].pop("model"),
    "4 replicas": setting("spec.roles.reward", {"replicas": 0}),
    "5 algorithm": setting("spec.algorithm.type", "grp0"),
    "6 critic": setting("spec.roles.critic", {"replicas": 1}),
    "8 group of one": setting("spec.algorithm.samplesPerPrompt", 1),
    "13 mini-batch above batch": setting("spec.algorithm.miniBatchPrompts", 32),
    "14 mini-batch not dividing": setting("spec.algorithm.miniBatchPrompts", 3),
    "15 learning rate": setting("spec.optimizer.learningRate", 0),
    "16 clip": setting("spec.algorithm.policyLoss", {"clipLow": 1.0}),
    "18 KL": setting("spec.algorithm.kl", {"in": "loss", "coefficient": -0.1}),
    "19 greedy group": setting("spec.rollout.temperature", 0),
    "20 top k": setting("spec.rollout.topK", 0),
    "21 model length": setting("spec.rollout.maxModelTokens", 71),
    "22 no steps": setting("spec.steps.total", 0),
    "22 warm-up": setting("spec.optimizer.warmupSteps", 100),
    "22 warm-up of epochs": warm_up_of_epochs,
    "23 commit never": setting("spec.checkpoint.every", 7),
    "24 keep one": setting("spec.checkpoint.keepLast", 1),
    "27 time": setting("spec.timeouts.stageSeconds", "5 minutes"),
    "38 all weights": setting("spec.rewards", [{"function": "gsm8k", "weight": 0}]),
    "43 version": setting("apiVersion", "ppojob.dev/v1"),
    "45 text for a boolean": setting("spec.checkpoint.export", "false"),
    "several in one spec": several,
    "101 other settings": commit(
        2, **{"spec.steps": {"total": 9}, "spec.optimizer": {"learningRate": 1e-5}}
    ),
    "101 other job": commit(2, **{"metadata.name": "other"}),
    "101 never resume": never_resume,
    "102 commit beyond the end": commit(8),
    "103 output is the model": output_is_model,
    "103 export would replace the model": output_exports_over_model,
    "103 output below a file": output_below_a_file,
    "103 output not writable": output_not_writable,
    "all at once": all_at_once,
}


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices = tmp_path / "dev"
    devices.mkdir()
    (devices / "nvidiactl").touch()
    monkeypatch.setattr(gpus, "DEVICES", devices)
    monkeypatch.delenv(contract.ENV_VISIBLE_GPUS, raising=False)


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_refused(name: str, wrong: RefusedJob) -> None:
    CASES[name](wrong)
    check(wrong, LINES[name])


def test_validate_finds_what_run_finds_in_the_inputs(wrong: RefusedJob) -> None:
    all_at_once(wrong)
    outcome = CliRunner().invoke(main, ["validate", str(wrong.write_manifest())])
    of_this_machine = ("spec.roles", "--output")
    expected = [line for line in LINES["all at once"] if not line.startswith(of_this_machine)]
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert wrong.bare(outcome.stderr).splitlines() == expected


def test_every_line_has_its_case() -> None:
    assert LINES.keys() == CASES.keys()


# 103 to 105: what this machine has


def test_less_space_than_a_commit_needs(wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_checks, "COMMIT_BYTES", 2**50)
    (line,) = wrong.refused()
    assert line.startswith("--output: got run: ")
    assert line.endswith(" GiB; more free space, or a folder on another volume")
    assert " GiB are free at ., and a commit and the export need " in line


def test_a_run_folder_in_memory_is_warned_of(
    wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_checks, "MOUNTS", wrong.folder / "mounts")
    mounts = f"disk / ext4 rw 0 0\nmemory {wrong.folder} tmpfs rw 0 0\n"
    (wrong.folder / "mounts").write_text(mounts)
    wrong.reward.write_text("letters = 1")
    wrong.refused()
    assert wrong.warnings == [
        "warning: --output: got run: it lies in memory: a restart of the machine loses the run; "
        "a folder on a disk"
    ]


def test_more_threads_than_cores_are_warned_of(
    wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks.os, "sched_getaffinity", lambda _: {0, 1})
    wrong.set("spec.roles", {"actorRollout": {"threadsPerRank": 3}})
    wrong.reward.write_text("letters = 1")
    wrong.refused()
    assert wrong.warnings == [
        "warning: spec.roles.actorRollout.threadsPerRank: got 3: 1 x 3 = 3 threads share 2 cores; "
        "quickest is 2"
    ]


def test_updates_that_get_lost_in_weights_of_few_digits_are_warned_of(wrong: RefusedJob) -> None:
    wrong.set("spec.model.dtype", "bfloat16")
    wrong.reward.write_text("letters = 1")
    wrong.refused()
    assert (
        'warning: spec.model.dtype: got "bfloat16": an update as large as learningRate 0.001 is '
        "rounded away in every weight above 0.51; float32, with training.autocast: bfloat16 for "
        "speed"
    ) in wrong.warnings


def test_models_that_this_machine_cannot_hold(
    wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wrong.folder / "meminfo").write_text("MemTotal: 1024 kB\n")
    monkeypatch.setattr(memory, "MEMORY_INFO", wrong.folder / "meminfo")
    assert wrong.refused() == [
        "spec.model.path: got models of 0.00 GiB in training: this machine has 0.00 GiB of memory, "
        "and the roles hold at least: policy 0.00, rollout engine 0.00; a smaller model, or "
        "a machine with more memory"
    ]


def test_two_jobs_in_one_folder(wrong: RefusedJob) -> None:
    with locked(wrong.output):
        assert wrong.refused() == [
            f"--output: got run: process {os.getpid()} runs a job there; wait for it, end it, or "
            "give another folder"
        ]


def test_old_and_absent_libraries(wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "engine_facts", lambda: EngineFacts(torch="2.9.1+cpu"))
    wrong.set("spec.rollout", {"engine": "vllm", "dtype": "float32"})
    assert wrong.refused() == [
        "torch: got 2.9.1+cpu: before 2.10.0 a file of weights can run code (CVE-2026-24747); "
        "2.10.0 or later",
        "vllm: got nothing: the job needs it; 0.14.1 or later",
    ]


# 112: the command line, and files that are none


BAD_FILES = {
    b"": "job.yaml:1:1: got nothing: the file is empty; one PPOJob",
    b"metadata: {name: a}\n---\nmetadata: {name: b}\n": (
        "job.yaml:2:1: got 2 documents: a file holds one job, and none of these is run; one "
        "PPOJob a file"
    ),
    b"a: [1\n": (
        "job.yaml:2:1: got malformed YAML: expected ',' or ']', but got '<stream end>'; "
        "well-formed YAML"
    ),
    b"a: \xff\n": "job.yaml:1:4: got byte 0xff: the file is not UTF-8; text in UTF-8",
    b"spec: 1\nspec: 2\n": (
        'job.yaml:2:1: got "spec": the key is in line 1 already; each key once'
    ),
}


@pytest.mark.parametrize("content", BAD_FILES)
def test_files_that_are_no_job(content: bytes, wrong: RefusedJob) -> None:
    wrong.manifest.write_bytes(content)
    assert wrong.refused(wrong.manifest)[0] == BAD_FILES[content]


def test_an_empty_standard_input(wrong: RefusedJob) -> None:
    assert wrong.refused("-") == ["<stdin>:1:1: got nothing: the file is empty; one PPOJob"]


def test_an_unknown_flag(wrong: RefusedJob) -> None:
    (*_, line) = wrong.refused(wrong.write_manifest(), "--resume")
    assert line.startswith("Error: No such option '--resume'.")


def test_overrides_are_judged_with_the_file(wrong: RefusedJob) -> None:
    wrong.set("spec.rollout.topP", 0)
    total = "--set spec.steps.total=0: got 0: the number is too small; an integer from 1 to "
    assert wrong.refused(wrong.write_manifest(), "--set", "spec.steps.total=0") == [
        "spec.rollout.topP: got 0: the number is too small; a number above 0 and at most 1",
        f"{total}1000000000, or remove it",
    ]


def test_two_files_of_one_job(wrong: RefusedJob) -> None:
    files = [str(wrong.write_manifest())] * 2
    outcome = CliRunner().invoke(main, ["validate", *files])
    assert outcome.exit_code == 2
    assert wrong.bare(outcome.output).splitlines() == [
        "job.yaml: ok: PPOJob default/tiny",
        'job.yaml: metadata.name: got "tiny": job.yaml describes the job default/tiny already; '
        "another name",
    ]


# On real processes


@pytest.mark.timeout(300)
def test_other_rows_than_the_run_began_with(wrong: RefusedJob, start: Start) -> None:
    commit(2)(wrong)
    run = start(wrong.write_manifest(), wrong.output)
    assert run.wait() == 2
    (line,) = [line for line in run.lines if "digest" in line]
    assert "spec.data.train: got prompts with digest " in line
    assert line.endswith(
        ": the run began with 000000000000; bring the files back, or begin a run of its own in "
        "another folder"
    )


def test_a_refused_job_leaves_nothing(wrong: RefusedJob, start: Start) -> None:
    all_at_once(wrong)
    wrong.output = wrong.folder / "run"
    run = start(wrong.write_manifest(), wrong.output)
    assert run.wait() == 2
    expected = [line for line in LINES["all at once"] if not line.startswith("--output")]
    assert [wrong.bare(line) for line in run.lines] == expected
    assert not wrong.output.exists()
    run_folders.wait_until_gone(wrong.output)


ODD = {
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "TZ": "Nowhere/Else",
    "HOME": "/no/such/home",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HF_HUB_OFFLINE": "1",
    "ODD": "\udcff",
}


def test_an_odd_environment_changes_nothing(wrong: RefusedJob, start: Start) -> None:
    wrong.set("spec.optimizer.lerning_rate", 1e-6)
    run = start(wrong.write_manifest(), wrong.output, **ODD)
    assert run.wait() == 2
    assert run.lines == LINES["2 unknown field"]


ODD_USER = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
"""Runs a command as a user that no file knows, where the kernel lets a user do so."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*ODD_USER, "true"], check=False, capture_output=True).returncode != 0,
    reason="no user namespaces here",
)
def test_a_user_without_name_home_and_locale_can_run_a_job(tiny_job, tmp_path: Path) -> None:
    manifest = tiny_job(steps={"total": 2}, checkpoint={"every": 1})
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = [sys.executable, "-m", "ppojob_cli", "run", manifest, "--output", tmp_path / "run"]
    done = subprocess.run(
        [*ODD_USER, *command], env={**kept, **ODD}, umask=0o077, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert (tmp_path / "run" / "export" / "config.json").exists()


@pytest.mark.timeout(300)
def test_ctrl_c_while_the_input_is_read_starts_nothing(wrong: RefusedJob, start: Start) -> None:
    reached = wrong.folder / "reached"
    wrong.reward.write_text(f"open({str(reached)!r}, 'w').close()\nwhile True:\n    pass\n")
    run = start(wrong.write_manifest(), wrong.output)
    deadline = time.monotonic() + 50
    while not reached.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.lines == []
    assert not wrong.output.exists()
