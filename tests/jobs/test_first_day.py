"""A first day with a task of one's own: what was a stumble once is met here, one after the other.

Everything is done by `ppojob` as a person types it, and judged by what a person then reads.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REWARD = """
def letters(data_source, solution_str, ground_truth, extra_info):
    return {"score": sum(map(str.isalpha, solution_str)) / 8, "length": len(solution_str)}
"""
BROKEN = REWARD.replace(
    "    return",
    """\
    with open({calls!r}, "a+") as calls:
        calls.write("x")
        if calls.tell() > 8 + 3 * 16:  # in step 4, behind the first validation
            raise KeyError(ground_truth)
    return""",
)
ROWS = """\
{"data_source": "tiny", "reward_model": {"ground_truth": "2"}, "prompt": [\
{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "It is"}]}
{"data_source": "tiny", "prompt": [{"role": "user", "content": "1+1"}]}
"""
FOREIGN = {
    "adv_estimator": "write spec.algorithm.type",
    "beta": "write spec.algorithm.kl.coefficient",
    "epsilon_high": "write spec.algorithm.policyLoss.clipHigh",
    "num_generations": "write spec.algorithm.samplesPerPrompt",
    "lr": "write spec.optimizer.learningRate",
    "filterGroups": "write spec.algorithm.dynamicSampling",
    "lora_rank": "write spec.model.lora.rank",
    "use_dora": "not in this version",
}


@dataclass(frozen=True)
class Day:
    """A folder with a task, and a terminal in it."""

    folder: Path

    def ppojob(self, *words: str, status: int = 0) -> list[str]:
        """Type a command; answers the lines that it prints."""
        typed = [sys.executable, "-m", "ppojob_cli", *words]
        done = subprocess.run(
            typed, cwd=self.folder, capture_output=True, text=True, env=tiny_jobs.environment()
        )
        printed = f"{done.stdout}{done.stderr}"
        assert done.returncode == status, printed
        return printed.splitlines()

    def run(self, *words: str, status: int = 0) -> list[str]:
        return self.ppojob("run", "job.yaml", "--output=run", "--plain", *words, status=status)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


@pytest.fixture
def day(tiny_folder: Path, tmp_path: Path, fork_server: None) -> Day:
    shutil.copytree(tiny_folder, tmp_path, dirs_exist_ok=True)
    steps = {"total": 6, "validateEvery": 6}
    tiny_jobs.write_manifest(tmp_path, tmp_path, steps=steps, checkpoint={"every": 2})
    return Day(tmp_path)


def told(lines: list[str], begin: str) -> str:
    """What the one line that begins so says behind it."""
    (line,) = [line for line in lines if line.startswith(begin)]
    return line.removeprefix(begin)


def test_what_is_wrong_is_said_before_anything_starts(day: Day) -> None:
    # A manifest brought along, with the names of verl, TRL and OpenRLHF.
    lines = day.ppojob(
        "validate", "job.yaml", *(f"--set=spec.algorithm.{name}=1" for name in FOREIGN), status=2
    )
    for name, answer in FOREIGN.items():
        assert answer in told(lines, f"--set spec.algorithm.{name}=1: ")
    lines = day.ppojob("fields", "spec.algorithm.kl")
    assert told(lines, "    verl: kl_penalty kl, which is k1; ")

    # What the manifest names is looked for, except where nobody can.
    fields = ("model.path", "data.train[0].path", "rewards[0].source.path")
    missing = [f"--set=spec.{field}=/nowhere.jsonl" for field in fields]
    lines = day.ppojob("validate", "job.yaml", *missing, status=2)
    for place in ("spec.model.path", "/nowhere.jsonl", "spec.rewards[0].source.path"):
        assert "no such f" in told(lines, f"{place}: got ")
    day.ppojob("validate", "job.yaml", *missing, "--offline")

    # Rows that end in an answer, or have none to compare with.
    day.write("odd.jsonl", ROWS)
    lines = day.ppojob("validate", "job.yaml", "--set=spec.data.train[0].path=odd.jsonl", status=2)
    assert "the conversation ends in an answer" in told(lines, "odd.jsonl:1:prompt[1].role: ")
    assert "nothing" in told(lines, "warning: odd.jsonl:2:reward_model.ground_truth: ")

    # A cluster's commands stand apart, and take their options on either side.
    (here, there) = (line for line in day.ppojob("--help") if line.startswith("Commands "))
    assert ("this machine" in here, "on a cluster" in there) == (True, True)
    for words in (("-n", "team", "explain", "sums"), ("explain", "-n", "team", "sums")):
        lines = day.ppojob("--kubeconfig=none", *words, status=2)
        assert "none" in told(lines, "kubeconfig: ")


def test_nothing_is_lost_when_the_reward_function_raises(day: Day) -> None:
    day.write("reward.py", BROKEN.replace("{calls!r}", repr(str(day.folder / "calls"))))
    lines = day.run(status=3)
    assert "RewardRaised: got KeyError: " in told(lines, "failed: ")
    assert "goes on from there" in told(lines, "step 3 is saved")
    assert [line.split()[0] for line in lines if line.startswith("  ")][:3] == [
        "prompt",
        "response",
        "truth",
    ]

    # The author changes their mind; refused by the field that they wrote.
    lines = day.run("--set=spec.algorithm.type=rloo", "--set=spec.seed=5", status=2)
    assert 'got "rloo": checkpoint step-000003 was made with "grpo"' in told(
        lines, "spec.algorithm.type: "
    )
    assert "got 5: checkpoint step-000003 was made with 0" in told(lines, "spec.seed: ")

    # The function is mended, and the checkpoints are damaged: all of them, then the newest.
    day.write("reward.py", REWARD)
    weights = {
        step: day.folder
        / f"run/checkpoints/step-00000{step}/actorRollout/rank-00000/model.safetensors"
        for step in (2, 3)
    }
    whole = weights[2].read_bytes()
    for path in weights.values():
        os.truncate(path, 9)
    lines = day.run(status=3)
    assert "no checkpoint is whole: step-000003/" in told(lines, "failed: ")
    weights[2].write_bytes(whole)
    lines = day.run()
    where = weights[3].relative_to(day.folder / "run")
    assert told(lines, f"{where}: got 9 bytes").endswith("; the job goes on from step-000002")
    assert "got another content than step-000002 was made with" in told(
        lines, str(day.folder / "reward.py")
    )

    # What was made of the rows lies on disk; values beside the score are columns, and metrics.
    rows = pq.read_table(day.folder / "run/rollouts/step-000006.parquet").to_pylist()
    for row in rows:
        assert (row["step"], row["length"]) == (6, len(row["response"]))
        assert row["ground_truth"].isdigit()
    (*_, last) = run_folders.metrics(day.folder / "run")
    lengths = [row["length"] for row in rows]
    assert last["reward_extra/length/mean"] == sum(lengths) / len(lengths)
