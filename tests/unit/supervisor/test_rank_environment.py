"""A rank is told who it is, and sees the GPU that is its own."""

import pytest

from ppojob_api import contract
from ppojob_trainer.supervisor.pod import PodPlan


def plan(environment: dict[str, str], *, has_gpus: bool) -> PodPlan:
    """A pod of two ranks, the second of its role."""
    return PodPlan(
        role="actorRollout",
        pod=1,
        ranks=2,
        first_rank=2,
        silent_seconds=1,
        restarts_without_progress=0,
        environment=environment,
        has_gpus=has_gpus,
    )


def test_a_rank_is_told_who_it_is():
    told = plan({"HOME": "/h"}, has_gpus=False).rank_environment(5, 1)
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
    made = plan(environment, has_gpus=True)
    told = [made.rank_environment(1, local_rank) for local_rank in range(2)]
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in told] == ranks_see


def test_ranks_on_the_cpu_see_what_their_pod_sees():
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    told = plan(environment, has_gpus=False).rank_environment(1, 1)
    assert told["CUDA_VISIBLE_DEVICES"] == ""
