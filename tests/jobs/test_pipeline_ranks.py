"""Ranks that each have some layers: the numbers of one rank."""

import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

SHARDED = {"ranksPerReplica": 4, "parallelism": {"pipeline": 2}}
WITH_SEQUENCES = {"ranksPerReplica": 4, "parallelism": {"pipeline": 2, "sequence": 2}}


def test_stages_of_four_models_give_the_numbers_of_one_rank(finished, even_folder):
    """Micro-batches are cut, so that both stages have some under way; the reference is apart."""
    job = {
        **tiny_jobs.PPO,
        "steps": {"total": 3, "validateEvery": 3},
        "training": {"autocast": "none", "microBatchTokens": 40},
        "rewards": [],
        "rewardModel": {"path": str(even_folder / "classifier"), "dtype": "float32"},
    }
    roles = {"actorRollout": SHARDED, "reference": {"colocateWith": "none", **WITH_SEQUENCES}}
    traces = {"steps": [2], "ranks": [0, 1, 2, 3]}
    one, stages = finished("one", **job), finished("stages", **job, roles=roles, profile=traces)
    run_folders.assert_close(stages, one)
    first, second = (run_folders.metrics(output)[-1] for output in (one, stages))
    for name in ("actor/grad_norm", "critic/grad_norm"):
        assert second[name] == pytest.approx(first[name], rel=1e-5)
