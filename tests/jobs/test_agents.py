"""Jobs whose rows are conversations: a model that calls a tool by chance, and is trained on it."""

from collections.abc import Callable
from pathlib import Path

import job_points
import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
import tiny_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOOLS = '''
import random, time

def add(a: int, b: int) -> str:
    """Adds two numbers, sometimes slowly."""
    time.sleep(random.uniform(0.0, {seconds}))
    return str(a + b)

def draw(a: int, b: int) -> str:
    """Never says the same twice."""
    with open({calls!r}, "a") as calls:
        calls.write("x")
    return str(random.randrange(10**6))
'''
REWARD = '''
def talk(data_source, solution_str, ground_truth, extra_info):
    """Turns, calls and what was written: all that a scorer is told of a conversation."""
    assert len(extra_info["tool_rewards"]) == extra_info["tool_calls"]
    digits = sum(character.isdigit() for character in solution_str)
    return {"score": extra_info["num_turns"] + digits / 100, "calls": extra_info["tool_calls"]}
'''
STOPS = [len(tiny_models.NAMES) + number for number in range(len(tiny_models.CALLS))]
ROWS = 16


@pytest.fixture(scope="session")
def talking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talking")
    tiny_jobs.make_tiny_folder(folder, model="talker")
    (folder / "talk.py").write_text(REWARD)
    return folder


@pytest.fixture
def talking_job(talking_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes the manifest of a job with a tool."""

    def make(
        tool_steps: int = 8, seconds: float = 0.0, function: str = "add", **changes: object
    ) -> Path:
        tools = tmp_path / "tools.py"
        tools.write_text(TOOLS.format(seconds=seconds, calls=str(tmp_path / "calls")))
        number = {"type": "integer"}
        tool = {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {"a": number, "b": number}},
            "source": {"path": str(tools), "function": function},
        }
        spec = tiny_jobs.make_manifest(talking_folder)["spec"]
        rollout = {**spec["rollout"], "stopTokenIds": STOPS, "maxSequences": 8}
        data = {**spec["data"], "maxResponseTokens": 96}
        reward = {"function": "talk", "source": {"path": str(talking_folder / "talk.py")}}
        sections = {
            "agent": {"tools": [tool], "toolSteps": tool_steps, "turnTokens": 24},
            "rollout": rollout,
            "data": data,
            "rewards": [reward],
            "steps": {"total": 4, "validateEvery": 4},
            "checkpoint": {"every": 2},
            "recovery": {"restartsWithoutProgress": 100},
        }
        return tiny_jobs.write_manifest(tmp_path, talking_folder, **{**sections, **changes})

    return make


@pytest.fixture(scope="session")
def undisturbed_talk() -> dict[str, dict[str, object]]:
    """Results by name, of jobs that nobody disturbed."""
    return {}


def test_what_is_trained_kept_and_told(talking_job, start, output: Path):
    start(talking_job(), output).succeed()
    table = pq.read_table(output / "rollouts" / "step-000001.parquet").to_pylist()
    assert len(table) == ROWS
    talked = [row for row in table if len(row["segments"]) > 1]
    assert talked, "no row called its tool"
    for row in table:
        drawn = [s for s in row["segments"] if s["version"] is not None]
        given = [s for s in row["segments"] if s["version"] is None]
        assert len(drawn) - len(given) in (0, 1)
        assert sum(s["tokens"] for s in row["segments"]) == row["response_tokens"] <= 96
        assert row["figures"] is not None
        start_of = 0
        for segment in row["segments"]:
            part = slice(start_of, start_of + segment["tokens"])
            start_of = part.stop
            drawn_with = row["rollout_logprobs"][part]
            assert all(value < 0 for value in drawn_with) == (segment["version"] is not None)
    line = run_folders.metrics(output)[1]
    assert line["num_turns/max"] > 2
    assert line["tool_call_counts/mean"] > 0
    assert 0 < line["response/given_share"] < 1
    assert line["reward_extra/calls/mean"] == line["tool_call_counts/mean"]
    assert any("add" in text for text in [row["response"] for row in talked])


def test_neither_latency_nor_its_jitter_changes_a_bit(talking_job, start, tmp_path: Path):
    results = []
    for name, seconds in (("quick", 0.0), ("slow", 0.2)):
        output = tmp_path / name
        start(talking_job(seconds=seconds), output).succeed()
        results.append(run_folders.result(output))
    assert results[0] == results[1]


KILLED = {
    "ranks": ("rpc.generate.answer.before@2=kill", "rpc.update.answer.before@5=kill"),
    "tools": ("rpc.act.answer.before@3=kill", "rpc.act.answer.after@9=kill"),
    "controller": ("controller.step.computed@2=kill",),
    "everything": ("rpc.act.answer.after@12=kill_group",),
}


@pytest.mark.parametrize("points", KILLED.values(), ids=KILLED)
def test_killed_anywhere_a_conversation_ends_as_if_nothing_had_been(
    points, talking_job, start, tmp_path: Path, output: Path, once: Path, undisturbed_talk
):
    job = talking_job(seconds=0.05)
    if not undisturbed_talk:
        alone = tmp_path / "alone"
        start(job, alone).succeed()
        undisturbed_talk["result"] = run_folders.result(alone)
    run = start(job, output, **job_points.armed(once, *points))
    if "kill_group" in points[0]:
        assert run.wait() == 3
        run_folders.wait_until_gone(output)
        run = start(job, output)
    run.succeed()
    assert job_points.fired(once) == {point.partition("@")[0] for point in points}
    assert run_folders.result(output) == undisturbed_talk["result"]


def test_a_lost_tools_pod_costs_no_step(talking_job, start, output: Path, once: Path):
    start(talking_job(), output, **job_points.armed(once, "rpc.act.answer.before@4=kill")).succeed()
    journal = (output / "checkpoints" / "journal.jsonl").read_text()
    assert journal.count('"rewound"') == 1, "only the start counts as one"


def test_a_tool_that_never_says_the_same_is_asked_once_for_what_was_kept(
    talking_job, start, tmp_path: Path, output: Path, once: Path
):
    job = talking_job(function="draw", checkpoint={})
    points = ("controller.step.computed@3=kill", "rpc.update.answer.before@7=kill")
    start(job, output, **job_points.armed(once, *points)).succeed()
    assert job_points.fired(once) == {point.partition("@")[0] for point in points}
    calls = (tmp_path / "calls").read_text()
    again = tmp_path / "again"
    start(job, again, options=("--replay", str(output))).succeed()
    assert run_folders.result(again) == run_folders.result(output)
    assert (tmp_path / "calls").read_text() == calls
