import pytest
from pod_plans import pod_plan

from ppojob_api import contract


@pytest.mark.parametrize(
    ("pod_sees", "has_gpus", "ranks_see"),
    [
        (None, True, ["0", "1"]),
        ("6,7", True, ["6", "7"]),
        ("GPU-3f2,MIG-9a1", True, ["GPU-3f2", "MIG-9a1"]),
        ("6", True, ["6", ""]),
        ("", False, ["", ""]),
        (None, False, [None, None]),
    ],
)
def test_a_rank_is_told_who_it_is_and_sees_its_own_gpu_alone(pod_sees, has_gpus, ranks_see):
    given = {"HOME": "/h"} | ({} if pod_sees is None else {"CUDA_VISIBLE_DEVICES": pod_sees})
    shape = {"pod": 1, "ranks": 2, "first_rank": 2, "has_gpus": has_gpus}
    plan = pod_plan("actorRollout", environment=given, **shape)
    told = [plan.rank_environment(5, rank) for rank in range(2)]
    assert [rank.pop("CUDA_VISIBLE_DEVICES", None) for rank in told] == ranks_see
    names = (contract.ENV_RANK, contract.ENV_LOCAL_RANK, contract.ENV_ATTEMPT)
    for rank, numbers in zip(told, ("205", "315"), strict=True):
        assert rank == {"HOME": "/h", **dict(zip(names, numbers, strict=True))}
