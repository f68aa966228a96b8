"""A rank is told who it is, and sees the GPU that is its own."""

import pytest
from pod_plans import pod_plan

from ppojob_api import contract


def rank_environment(
    environment: dict[str, str], local_rank: int, *, has_gpus: bool = False, epoch: int = 1
) -> dict[str, str]:
    """Of a rank of a pod of two ranks, the second of its role."""
    shape = {"pod": 1, "ranks": 2, "first_rank": 2, "has_gpus": has_gpus}
    plan = pod_plan("actorRollout", environment=environment, **shape)
    return plan.rank_environment(epoch, local_rank)


def test_a_rank_is_told_who_it_is():
    told = rank_environment({"HOME": "/h"}, 1, epoch=5)
    numbers = {contract.ENV_RANK: "3", contract.ENV_LOCAL_RANK: "1", contract.ENV_EPOCH: "5"}
    assert told == {"HOME": "/h", **numbers}


@pytest.mark.parametrize(
    ("pod_sees", "ranks_see"),
    [
        (None, ["0", "1"]),
        ("6,7", ["6", "7"]),
        ("GPU-3f2,MIG-9a1", ["GPU-3f2", "MIG-9a1"]),
        ("6", ["6", ""]),
    ],
)
def test_a_rank_sees_its_own_gpu_alone(pod_sees: str | None, ranks_see: list[str]):
    environment = {} if pod_sees is None else {"CUDA_VISIBLE_DEVICES": pod_sees}
    told = [rank_environment(environment, rank, has_gpus=True) for rank in range(2)]
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in told] == ranks_see


def test_ranks_on_the_cpu_see_what_their_pod_sees():
    told = rank_environment({"CUDA_VISIBLE_DEVICES": ""}, 1)
    assert told["CUDA_VISIBLE_DEVICES"] == ""
