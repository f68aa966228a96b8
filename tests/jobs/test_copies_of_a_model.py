"""Ranks that hold copies of a model (HSDP): the numbers of one rank."""

import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

SHORT = {"steps": {"total": 3, "validateEvery": 3}}
TWO_COPIES = {"ranksPerReplica": 2, "parallelism": {"dataShard": 1}}
TWO_BY_TWO = {"ranksPerReplica": 4, "parallelism": {"dataShard": 2}}
WHOLE_BATCH = {
    **tiny_jobs.PPO["algorithm"],
    "miniBatchPrompts": 4,
    "shuffleMiniBatches": False,
}
"""A mini-batch has a prompt for each of four ranks."""


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param({"actorRollout": TWO_BY_TWO}, id="beside"),
        pytest.param(
            {
                "actorRollout": TWO_COPIES,
                **{
                    role: {"colocateWith": "none", **TWO_COPIES}
                    for role in ("critic", "reference", "rewardModel")
                },
            },
            id="apart",
        ),
    ],
)
def test_copies_of_four_models_give_the_numbers_of_one_rank(finished, even_folder, roles):
    job = {
        **tiny_jobs.PPO,
        **SHORT,
        "algorithm": WHOLE_BATCH,
        "rewards": [],
        "rewardModel": {"path": str(even_folder / "classifier"), "dtype": "float32"},
    }
    one, copies = finished("one", **job), finished("copies", **job, roles=roles)
    run_folders.assert_close(copies, one)
    first, second = (run_folders.metrics(output)[1] for output in (one, copies))
    assert second["critic/grad_norm"] == pytest.approx(first["critic/grad_norm"], rel=1e-5)
    (newest,) = sorted(copies.glob("checkpoints/step-*"))[-1:]
    for role in ("actorRollout", "critic"):
        shards = roles.get(role, roles["actorRollout"])["parallelism"]["dataShard"]
        assert len(list(newest.glob(f"{role}/*/model.safetensors"))) == shards, role
