from collections.abc import Callable
from pathlib import Path

import agent_jobs
import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1_800)]

ENGINE = {"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16}
SHARED = {**ENGINE, "parallelism": {"tensor": 2}}
TWO = {"ranksPerReplica": 2}
CHANGES = {
    "timeouts": {"livenessSeconds": 60},
    "steps": {"total": 2, "validateEvery": 2},
    "checkpoint": {"every": 1},
}


@pytest.fixture(scope="module")
def undisturbed(alone: Callable[..., Path]) -> Path:
    """The run folder of a job that nobody disturbs, whose two ranks share an engine and train."""
    return alone(**CHANGES, rollout=SHARED, roles={"actorRollout": TWO})


def drawn(output: Path) -> list[list[int]]:
    return [row["response_ids"] for row in run_folders.rows(output, 1)]


@pytest.mark.long
def test_rows_are_those_of_engines_of_one_rank(start, tiny_job, output, undisturbed):
    """Log-probabilities differ by roundings, too little for another token to be drawn here."""
    job = tiny_job(**CHANGES, rollout=ENGINE, roles={"actorRollout": TWO})
    start(job, output).succeed(600)
    assert drawn(output) == drawn(undisturbed)
    for ours, theirs in zip(
        run_folders.without_clock(output), run_folders.without_clock(undisturbed), strict=True
    ):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param({"actorRollout": {"replicas": 2}}, id="beside", marks=pytest.mark.long),
        pytest.param({"actorRollout": TWO, "rollout": {"replicas": 2}}, id="apart"),
    ],
)
def test_killed_in_generation(run_through, tiny_job, output, undisturbed, roles):
    """Pods of a rank each leave what one pod does; killed before and behind an answer."""
    points = ("rpc.generate.answer.before@2=kill", "rpc.generate.answer.after@1=kill")
    job = tiny_job(**CHANGES, rollout=SHARED, roles=roles)
    run_through(job, output, *points, seconds=1_500)
    assert run_folders.result(output) == run_folders.result(undisturbed)


@pytest.mark.long
def test_a_tool_is_called_once_for_all_ranks_of_an_engine(start, tmp_path: Path, output: Path):
    """It never says the same twice, and the ranks would go on with different rows."""
    folder = agent_jobs.make_talking_folder(tmp_path)
    source = {"path": str(agent_jobs.write_tools(folder, 0.0)), "function": "draw"}
    job = agent_jobs.talking(folder, source)
    job |= {"rollout": {**SHARED, "stopTokenIds": agent_jobs.STOPS}, "steps": {"total": 2}}
    job |= {"roles": {"actorRollout": TWO}, "data": {**job["data"], "validation": []}}
    start(tiny_jobs.write_manifest(folder, folder, **job), output).succeed(600)
    told = [float(row["calls"]) for step in (1, 2) for row in run_folders.rows(output, step)]
    assert sum(told) == len((folder / "calls").read_text()) > len(told)
