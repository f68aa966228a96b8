from typing import Any

import coordinate_ranks
import pytest
from coordinate_ranks import CONSUMERS, COSTS, INDEX, MINI_BATCH, batch, groups, said_of, told

from ppojob_trainer.parallel.dims import ParallelDims

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

NEIGHBOURS = ParallelDims(shard=2, tensor=2)
APART = ParallelDims(pipeline=2, replicate=2)
"""Ranks 0 and 2 are one coordinate, 1 and 3 the other."""


@pytest.fixture(scope="module", params=[NEIGHBOURS, APART], ids=["neighbours", "apart"])
def ran(request) -> tuple[ParallelDims, dict[str, list[dict[str, Any]]]]:
    return request.param, coordinate_ranks.run(request.param)


def computed_by(dims: ParallelDims, rank: int, positions: tuple[int, ...]) -> list[int]:
    """The groups of some positions that a rank computes."""
    assigned = COSTS.assigned(INDEX.select(positions), dims)
    mine = dims.data_coordinate(rank)
    return [p for p, coordinate in zip(positions, assigned, strict=True) if coordinate == mine]


def test_all_ranks_of_a_coordinate_have_its_rows_of_a_mini_batch(ran):
    dims, answers = ran
    found = []
    for rank, answer in enumerate(answers["owner"]):
        positions = computed_by(dims, rank, MINI_BATCH)
        assert answer["staged"] == told(groups(positions), "advantages")
        found.append(tuple(positions))
    assert len(set(found)) == 2, "two coordinates, two ranks each"


def test_what_a_coordinate_says_of_rows_reaches_their_owners_once(ran):
    dims, answers = ran
    everything = tuple(range(INDEX.num_groups))
    for rank, answer in enumerate(answers["owner"]):
        assert answer["filled"] == told(groups(computed_by(dims, rank, everything)))
        owned = groups(INDEX.owned_by(rank))
        assert answer["mine"]["ref_logprobs"] == said_of(owned).tolist()
        assert answer["whole"] == said_of(batch()).tolist()


def test_a_row_counts_once_whatever_number_of_ranks_computes_it(ran):
    _, answers = ran
    for answer in answers["owner"]:
        assert answer["counted"] == [sum(INDEX.lengths)]
        assert len(answer["computed"]) == 2
        assert sum(answer["computed"]) == sum(INDEX.total_tokens)


def test_rows_of_another_role_go_to_leaders_and_from_there_to_their_coordinate(ran):
    _, answers = ran
    everything = tuple(range(INDEX.num_groups))
    for rank, answer in enumerate(answers["critic"]):
        positions = computed_by(CONSUMERS, rank, everything)
        assert answer["filled"] == told(groups(positions))
        assert answer["owners"] == COSTS.leaders(INDEX, CONSUMERS)
        leads = CONSUMERS.leader_of(rank) == rank
        assert answer["mine"] == told(groups(positions if leads else []))
    for rank, answer in enumerate(answers["owner"]):
        expected = said_of(groups(INDEX.owned_by(rank))) + 1.0
        assert answer["mine"]["values"] == expected.tolist()
