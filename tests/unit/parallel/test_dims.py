import itertools
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ppojob_api.v1alpha1.roles import TrainingParallelism
from ppojob_trainer.parallel.dims import WITHIN, Dimension, ParallelDims

LAYOUTS = st.builds(ParallelDims, *[st.integers(1, 3)] * 5).filter(lambda dims: dims.size <= 54)


def places(dims: ParallelDims) -> list[dict[str, int]]:
    sizes = {name: getattr(dims, name) for name in get_args(Dimension)}
    found = itertools.product(*map(range, sizes.values()))
    return [dict(zip(sizes, place, strict=True)) for place in found]


@given(LAYOUTS)
def test_a_leader_is_the_first_of_those_that_compute_the_same_rows(dims):
    for rank, at in enumerate(places(dims)):
        number = at["replicate"] * dims.shard + at["shard"]
        same = {**at, **dict.fromkeys(WITHIN, 0)}
        assert dims.data_coordinate(rank) == number
        assert dims.leader_of(rank) == dims.leaders[number] == places(dims).index(same)
        last = {**same, "pipeline": dims.pipeline - 1}
        assert dims.output_ranks[number] == places(dims).index(last)
        assert places(dims)[dims.in_first_replica(rank)] == {**at, "replicate": 0}
        assert {name: dims.place(rank, name)[0] for name in at} == at
    assert len(dims.leaders) == dims.data_size


@given(LAYOUTS, st.sets(st.sampled_from(get_args(Dimension))))
def test_groups_part_the_ranks_and_differ_in_their_dimensions_alone(dims, names):
    groups = dims.groups(*names)
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(dims.size))
    assert groups == sorted(groups)
    for rank, at in enumerate(places(dims)):
        fixed = {name: place for name, place in at.items() if name not in names}
        expected = [r for r, other in enumerate(places(dims)) if fixed.items() <= other.items()]
        assert list(dims.along(rank, *names)) == expected


@given(LAYOUTS, st.integers(1, 6))
def test_neighbours_of_a_copy_and_a_stage_share_experts(dims, expert):
    together = dims.shard * dims.sequence * dims.tensor
    sharing = replace(dims, expert=expert)
    assume(together % expert == 0)
    groups = sharing.of_experts.groups("sequence")
    assert groups == [tuple(range(first, first + expert)) for first in range(0, dims.size, expert)]
    for ranks in dims.groups("shard", "sequence", "tensor"):
        same = [ranks[number::expert] for number in range(expert)]
        assert set(same) <= set(sharing.of_experts.groups("shard"))


@pytest.mark.parametrize(
    ("layout", "ranks", "expected"),
    [
        ({}, 4, ParallelDims(shard=4)),
        ({"data_shard": 4}, 4, ParallelDims(shard=4)),
        ({"data_shard": 2}, 4, ParallelDims(replicate=2, shard=2)),
        ({"data_shard": 1}, 2, ParallelDims(replicate=2)),
        ({"tensor": 2}, 4, ParallelDims(shard=2, tensor=2)),
        ({"tensor": 2, "data_shard": 2}, 8, ParallelDims(replicate=2, shard=2, tensor=2)),
        ({"tensor": 2, "expert": 4}, 4, ParallelDims(shard=2, tensor=2, expert=4)),
        ({"sequence": 2}, 2, ParallelDims(sequence=2)),
        ({"sequence": 2}, 6, ParallelDims(shard=3, sequence=2)),
        (
            {"sequence": 2, "tensor": 2, "data_shard": 1},
            8,
            ParallelDims(replicate=2, sequence=2, tensor=2),
        ),
        ({"pipeline": 2}, 2, ParallelDims(pipeline=2)),
        ({"pipeline": 2, "data_shard": 1}, 4, ParallelDims(pipeline=2, replicate=2)),
    ],
)
def test_what_shards_and_ranks_of_a_coordinate_leave_are_copies(layout, ranks, expected):
    assert ParallelDims.of(TrainingParallelism(**layout), ranks) == expected
