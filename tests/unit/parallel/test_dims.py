import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_api.v1alpha1.roles import TrainingParallelism
from ppojob_trainer.parallel.dims import WITHIN, Coordinate, ParallelDims

LAYOUTS = st.builds(ParallelDims, *[st.integers(1, 3)] * 5).filter(lambda dims: dims.size <= 54)


@given(LAYOUTS)
def test_every_rank_has_a_place_of_its_own_and_the_last_dimension_runs_fastest(dims):
    sizes = (dims.pipeline, dims.replicate, dims.shard, dims.sequence, dims.tensor)
    places = list(itertools.product(*map(range, sizes)))
    assert [tuple(dims.coordinate(rank)) for rank in range(dims.size)] == places
    assert [dims.rank_of(Coordinate(*place)) for place in places] == list(range(dims.size))


@given(LAYOUTS)
def test_a_leader_is_the_first_of_those_that_compute_the_same_rows(dims):
    coordinates = dims.groups(*WITHIN)
    assert len(coordinates) == dims.data_size == len(dims.leaders)
    for ranks in coordinates:
        (number,) = {dims.data_coordinate(rank) for rank in ranks}
        assert dims.leaders[number] == min(ranks) == ranks[0]
        assert {dims.leader_of(rank) for rank in ranks} == {ranks[0]}


@given(LAYOUTS, st.sets(st.sampled_from(Coordinate._fields)))
def test_groups_part_the_ranks_and_differ_in_their_dimensions_alone(dims, names):
    groups = dims.groups(*names)
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(dims.size))
    still = [name for name in Coordinate._fields if name not in names]
    for ranks in groups:
        places = [dims.coordinate(rank) for rank in ranks]
        assert len({tuple(getattr(place, name) for name in still) for place in places}) == 1
        assert all(dims.along(rank, *names) == ranks for rank in ranks)


@given(LAYOUTS)
def test_what_copies_hold_is_held_by_the_first_one(dims):
    for rank in range(dims.size):
        first = dims.in_first_copy(rank)
        assert dims.coordinate(first) == dims.coordinate(rank)._replace(replicate=0)


@pytest.mark.parametrize(
    ("layout", "ranks", "expected"),
    [
        ({}, 4, ParallelDims(shard=4)),
        ({"data_shard": 4}, 4, ParallelDims(shard=4)),
        ({"data_shard": 2}, 4, ParallelDims(replicate=2, shard=2)),
        ({"data_shard": 1}, 2, ParallelDims(replicate=2)),
        ({"tensor": 2}, 4, ParallelDims(shard=2, tensor=2)),
        ({"tensor": 2, "data_shard": 2}, 8, ParallelDims(replicate=2, shard=2, tensor=2)),
    ],
)
def test_what_shards_and_tensor_ranks_leave_are_copies(layout, ranks, expected):
    assert ParallelDims.of(TrainingParallelism(**layout), ranks) == expected


def test_today_a_rank_is_a_coordinate():
    """With shards and copies alone, as long as nothing else can be asked for."""
    dims = ParallelDims(replicate=2, shard=3)
    assert dims.leaders == tuple(range(6))


@pytest.mark.parametrize(("layout", "ranks"), [({"data_shard": 3}, 4), ({"data_shard": 4}, 2)])
def test_ranks_that_do_not_fill_a_layout_are_refused(layout, ranks):
    with pytest.raises(ValueError, match=f"dims: got {ranks} ranks: .*; as many ranks as places"):
        ParallelDims.of(TrainingParallelism(**layout), ranks)


def test_a_dimension_without_ranks_is_refused():
    with pytest.raises(ValueError, match=r"dims: got .*shard=0.*all at least 1"):
        ParallelDims(shard=0)
