"""Wrong input by `ppojob run`: the job, its data and rewards, this machine, the run folder."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
from golden_lines import read_lines
from job_runs import Run
from patience import eventually
from prompt_files import Row, good_row
from refused_jobs import RefusedJob, check
from run_progress import progress_behind

from ppojob_api import contract
from ppojob_api.run_config import EngineFacts, resolve
from ppojob_cli import gpus, machine_checks, output_checks
from ppojob_cli import run as run_command
from ppojob_cli.job_file import load_job
from ppojob_trainer.checkpoint.identity import Identity
from ppojob_trainer.checkpoint.store import CheckpointStore
from ppojob_trainer.children import pool
from ppojob_trainer.models import memory

LINES = read_lines(Path(__file__).with_suffix(".txt"))

Spoil = Callable[[RefusedJob], object]
Start = Callable[..., Run]


def several(wrong: RefusedJob) -> None:
    wrong.set("spec.optimizer.lerning_rate", 1e-6)
    wrong.set("spec.algorithm.samplesPerPrompt", 1)
    wrong.set("spec.rollout.temperature", 0)


def all_at_once(wrong: RefusedJob) -> None:
    wrong.edit("config.json", {"model_type": "bloom"})
    (wrong.model / "tokenizer.json").unlink()
    wrong.set("spec.data.train", [{"path": str(wrong.files / "none.jsonl")}])
    wrong.set("spec.data.validation", [{"path": str(wrong.files / "none.parquet")}])
    wrong.reward.write_text("import no_such_package\n")
    wrong.set("spec.roles.actorRollout", {"gpusPerReplica": 1})
    wrong.output = wrong.model


def warm_up_of_epochs(wrong: RefusedJob) -> None:
    wrong.set("spec.steps", {"epochs": 1})
    wrong.set("spec.optimizer.warmupSteps", 100)


def output(place: Callable[[RefusedJob], Path]) -> Spoil:
    return lambda wrong: setattr(wrong, "output", place(wrong))


def output_exports_over_model(wrong: RefusedJob) -> None:
    wrong.output.mkdir()
    wrong.model = wrong.model.rename(wrong.output / "export")
    wrong.set("spec.model.path", str(wrong.model))


def never_resume(wrong: RefusedJob) -> None:
    """Leave a checkpoint of this job in the run folder, and ask never to go on with one."""
    wrong.set("spec.checkpoint", {"every": 2, "resume": "never"})
    checkpoint(2)(wrong)


def checkpoint(step: int, **changes: object) -> Spoil:
    """Leave a checkpoint of this job in the run folder, made with other settings where given."""

    def leave(wrong: RefusedJob) -> None:
        given = {path: wrong.get(path) for path in changes}
        for path, value in changes.items():
            wrong.set(path, value)
        config = resolve(load_job(wrong.write_manifest()))
        for path, value in given.items():
            wrong.set(path, value)
        owner = Identity(config.uid, config.trajectory_json())
        store = CheckpointStore(wrong.output / "checkpoints", owner)
        store.complete(store.begin(step), progress_behind(step), [])

    return leave


def routed(*wrong_rows: Row) -> Spoil:
    def spoil(wrong: RefusedJob) -> None:
        wrong.set("spec.rewards", [])
        wrong.train.write_text("".join(f"{json.dumps(row)}\n" for row in wrong_rows))

    return spoil


def reward(source: str) -> Spoil:
    return lambda wrong: wrong.reward.write_text(source)


def sampler(wrong: RefusedJob) -> None:
    file = wrong.files / "order.py"
    file.write_text("def order(step, count): return range(count)\n")
    wrong.set("spec.data.sampler", {"function": "order", "source": {"path": str(file)}})


def unclaimed(wrong: RefusedJob) -> None:
    """Rows of which none of the teachers has the data source."""
    wrong.set("spec.algorithm.kl", {"in": "loss"})
    teacher = {"path": str(wrong.model), "dataSources": ["gsm8k", "aime"]}
    wrong.set("spec.reference", {"teachers": [teacher]})


def form(form: dict[str, object], **tokenizer: object) -> Spoil:
    """Ask for responses of a form, with a changed tokenizer."""

    def spoil(wrong: RefusedJob) -> None:
        wrong.edit("tokenizer.json", tokenizer)
        wrong.set("spec.rollout.structuredOutput", form)

    return spoil


NO_FUNCTION = reward("letters = 1")
"""Keeps a job from starting that is told something else."""


CASES: dict[str, Spoil] = {
    "several in one spec": several,
    "warm-up of epochs": warm_up_of_epochs,
    "other settings": checkpoint(
        2, **{"spec.steps": {"total": 9}, "spec.optimizer": {"learningRate": 1e-5}}
    ),
    "other job": checkpoint(2, **{"metadata.name": "other"}),
    "never resume": never_resume,
    "checkpoint beyond the end": checkpoint(8),
    "export would replace the model": output_exports_over_model,
    "output below a file": output(lambda wrong: wrong.train / "run"),
    "output not writable": output(lambda _: Path("/proc/run")),  # not even for root
    "no ground truth": routed(*[good_row()] * 4, good_row(reward_model={})),
    "data source": routed(*[good_row()] * 4, good_row(data_source="ppojob/division")),
    "data source without a teacher": unclaimed,
    "reward file that kills its process": reward("import os\nos.kill(os.getpid(), 9)\n"),
    "sampler that takes no rows": sampler,
    "regular expression": form({"regex": "[0-9]+("}, **tiny_jobs.WITH_BYTES),
    "JSON schema": form(
        {"jsonSchema": '{"type": "array", "uniqueItems": true}'}, **tiny_jobs.WITH_BYTES
    ),
    "JSON schema that is none": form({"jsonSchema": "{"}, **tiny_jobs.WITH_BYTES),
    "grammar": form({"grammar": "start: digit"}, **tiny_jobs.WITH_BYTES),
    "form without a first token": form({"choices": ["é"]}, **tiny_jobs.WITH_BYTES),
    "tokens of unknown bytes": form({"regex": "[0-9]+"}),
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


def test_every_line_has_its_case() -> None:
    assert LINES.keys() == CASES.keys()


def test_a_run_folder_in_memory_is_warned_of(wrong, monkeypatch) -> None:
    monkeypatch.setattr(output_checks, "MOUNTS", wrong.folder / "mounts")
    mounts = f"disk / ext4 rw 0 0\nmemory {wrong.folder} tmpfs rw 0 0\n"
    (wrong.folder / "mounts").write_text(mounts)
    NO_FUNCTION(wrong)
    wrong.refused()
    (warning,) = wrong.warnings
    assert warning.startswith("warning: --output: got run: it is in memory: ")


def test_more_threads_than_cores_are_warned_of(wrong, monkeypatch) -> None:
    monkeypatch.setattr(machine_checks.os, "sched_getaffinity", lambda _: {0, 1})
    wrong.set("spec.roles", {"actorRollout": {"threadsPerRank": 3}})
    NO_FUNCTION(wrong)
    wrong.refused()
    (warning,) = wrong.warnings
    assert warning.startswith("warning: spec.roles.actorRollout.threadsPerRank: got 3: 1 x 3 = 3 ")


def test_models_that_this_machine_cannot_hold(wrong, monkeypatch) -> None:
    (wrong.folder / "meminfo").write_text("MemTotal: 1024 kB\n")
    monkeypatch.setattr(memory, "MEMORY_INFO", wrong.folder / "meminfo")
    wrong.set("spec.rollout", {"engine": "vllm", "dtype": "float32", "kvCacheGib": 1})
    (line,) = wrong.refused()
    assert line.startswith("spec.model.path: got models and caches of 1.00 GiB: ")
    assert ": policy 0.00, rollout engine 1.00; a smaller rollout.kvCacheGib, " in line


def test_absent_libraries(wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "engine_facts", lambda: EngineFacts(torch="2.13.0+cpu"))
    wrong.set("spec.rollout", {"engine": "vllm", "dtype": "float32"})
    (vllm,) = wrong.refused()
    assert vllm.startswith("vllm: got nothing: ")


def test_a_reward_file_whose_import_does_not_end(wrong, monkeypatch) -> None:
    monkeypatch.setattr(pool, "START_SECONDS", 1.0)
    reward("while True:\n    pass\n")(wrong)
    (line,) = wrong.refused()
    assert line.startswith("spec.rewards: got reward.py: the import gave no answer in 1 s: ")


def test_rows_are_not_judged_without_a_tokenizer_but_files_are(wrong: RefusedJob) -> None:
    (wrong.model / "tokenizer.json").unlink()
    files = [{"path": str(path)} for path in (wrong.files / "none.parquet", wrong.train)]
    wrong.set("spec.data.train", files)
    tokenizer, missing = wrong.refused()
    assert tokenizer.startswith("model/tokenizer.json: ")
    assert missing.startswith("none.parquet: ")


# The command line, and files that are none: their lines are in tests/unit/api.


def test_a_file_that_is_no_job(wrong: RefusedJob) -> None:
    wrong.manifest.write_bytes(b"spec: 1\nspec: 2\n")
    assert wrong.refused(wrong.manifest)[0].startswith("job.yaml:2:1: ")
    assert wrong.refused("-")[0].startswith("<stdin>:1:1: got nothing: ")


# On real processes


@pytest.mark.timeout(300)
def test_other_rows_than_the_run_began_with(wrong: RefusedJob, start: Start) -> None:
    given = wrong.files / "given.jsonl"
    given.write_text('{"q": "3 + 5", "a": "8"}\n' * 2)
    wrong.set("spec.data.demonstrations", [{"path": str(given)}])
    wrong.set("spec.data.demonstrationPromptKey", "q")
    wrong.set("spec.data.demonstrationAnswerKey", "a")
    wrong.set("spec.algorithm.supervised", {"coefficient": 0.1, "rowsPerStep": 2})
    checkpoint(2)(wrong)
    run = start(wrong.write_manifest(), wrong.output)
    assert run.wait() == 2
    prompts, answers = [line for line in run.lines if "digest" in line]
    for field, file, line in (("train", wrong.train, prompts), ("demonstrations", given, answers)):
        assert line.startswith(f"spec.data.{field}: got {file} with digest ")
        assert ": the run began with 000000000000; " in line


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
    assert run.lines == LINES["several in one spec"][:1]


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
    eventually(reached.exists)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.lines == []
    assert not wrong.output.exists()
