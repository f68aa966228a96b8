from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
from tiers import first_in_test

pytestmark = pytest.mark.timeout(1_800)


def pod(ranks: int, **parallelism: int) -> dict[str, object]:
    return {"ranksPerReplica": ranks, "parallelism": parallelism}


def apart(policy: dict[str, object], **others: dict[str, object]) -> dict[str, object]:
    """`spec.roles` in which each model has pods of its own, like the policy's if not said."""
    roles = {role: others.get(role, policy) for role in ("critic", "reference", "rewardModel")}
    own = {role: {"colocateWith": "none", **layout} for role, layout in roles.items()}
    return {"actorRollout": policy, **own}


LAYOUTS: dict[str, dict[str, object]] = {
    "copies": {"actorRollout": pod(4, dataShard=2)},
    "copies, apart": apart(pod(2, dataShard=1)),
    # The model has two query heads and one key head.
    "sequence": {"actorRollout": pod(4, sequence=2)},
    "sequence, apart": apart(pod(2, sequence=2)),
    "pipeline": {
        "actorRollout": pod(4, pipeline=2),
        "reference": {"colocateWith": "none", **pod(4, pipeline=2, sequence=2)},
    },
    "tensor": {"actorRollout": pod(4, tensor=2)},
    "tensor, apart": apart(
        pod(2, tensor=2), critic={"ranksPerReplica": 2}, reference=pod(4, tensor=2)
    ),
}


def job(folder: Path) -> dict[str, object]:
    """A mini-batch has a prompt for each of four ranks, and stages have several micro-batches."""
    return {
        **tiny_jobs.PPO,
        "algorithm": {
            **tiny_jobs.PPO["algorithm"],
            "miniBatchPrompts": 4,
            "shuffleMiniBatches": False,
        },
        "training": {"autocast": "none", "microBatchTokens": 40},
        "rewards": [],
        "rewardModel": {"path": str(tiny_jobs.classifier_of(folder)), "dtype": "float32"},
        "steps": {"total": 3, "validateEvery": 3},
    }


@pytest.fixture(scope="module")
def of_one_rank(alone: Callable[..., Path], even_folder: Path) -> Path:
    return alone(even_folder, **job(even_folder))


@pytest.mark.parametrize("name", first_in_test(LAYOUTS.keys(), "sequence, apart", "pipeline"))
def test_ranks_give_the_numbers_of_one(name: str, finished, even_folder, of_one_rank):
    roles = LAYOUTS[name]
    profile = {"steps": [2], "ranks": [0, 1, 2, 3]} if name == "pipeline" else None
    several = finished("several", **job(even_folder), roles=roles, profile=profile)
    run_folders.assert_close(several, of_one_rank)
    first, second = (run_folders.metrics(output)[1] for output in (of_one_rank, several))
    assert second["critic/grad_norm"] == pytest.approx(first["critic/grad_norm"], rel=1e-5)
    if name.startswith("copies"):
        (newest,) = sorted(several.glob("checkpoints/step-*"))[-1:]
        for role in ("actorRollout", "critic"):
            shards = roles.get(role, roles["actorRollout"])["parallelism"]["dataShard"]
            assert len(list(newest.glob(f"{role}/*/model.safetensors"))) == shards, role
