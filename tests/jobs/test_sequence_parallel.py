"""Ranks that share the tokens of a micro-batch: the numbers of one rank."""

import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

SHORT = {"steps": {"total": 3, "validateEvery": 3}}
TWO = {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}
"""One coordinate; the tiny model has two query heads and one key head."""
TWO_BY_TWO = {"ranksPerReplica": 4, "parallelism": {"sequence": 2}}


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param({"actorRollout": TWO_BY_TWO}, id="beside"),
        pytest.param(
            {
                "actorRollout": TWO,
                **{
                    role: {"colocateWith": "none", **TWO}
                    for role in ("critic", "reference", "rewardModel")
                },
            },
            id="apart",
        ),
    ],
)
def test_ranks_that_share_tokens_of_four_models_give_the_numbers_of_one(
    finished, even_folder, roles
):
    """A mini-batch has two prompts, as many as there are coordinates, and micro-batches are cut."""
    job = {
        **tiny_jobs.PPO,
        **SHORT,
        "training": {"autocast": "none", "microBatchTokens": 40},
        "rewards": [],
        "rewardModel": {"path": str(even_folder / "classifier"), "dtype": "float32"},
    }
    one, shared = finished("one", **job), finished("shared", **job, roles=roles)
    run_folders.assert_close(shared, one)
    first, second = (run_folders.metrics(output)[-1] for output in (one, shared))
    for name in ("actor/grad_norm", "critic/grad_norm"):
        assert second[name] == pytest.approx(first[name], rel=1e-5)
