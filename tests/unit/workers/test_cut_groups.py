from dataclasses import replace

import pytest
import torch
from queue_link import QueueLink, Queues, all_at_once

from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.workers.batch_rows import BatchRows, GroupCosts

COSTS = GroupCosts(linear=10, share_prompts=True)
INDEX = BatchIndex(
    prompt_lengths=(3, 2),
    lengths=(4, 1, 7, 1, 2, 2, 9, 3),
    samples=4,
    owners=(2, 0),
    image_bytes=(2, 0),
    later_image_bytes=(0, 1, 0, 2, 0, 0, 3, 1),
    teacher_prompt_lengths=(1, 5, 2, 1, 1, 1, 3, 1),
)
RANKS = 4


def rows_of(positions: tuple[int, ...]) -> Experience:
    """Groups of the batch, with every token another."""
    index, tokens = INDEX.select(range(2)), torch.arange(sum(INDEX.lengths))
    of_prompts = torch.arange(sum(INDEX.prompt_lengths))
    batch = Experience(
        prompts=[torch.arange(n) + 1000 * p for p, n in enumerate(index.prompt_lengths)],
        row_groups=torch.arange(2).repeat_interleave(4),
        response_tokens=tokens,
        lengths=torch.tensor(INDEX.lengths),
        mask=tokens % 3 > 0,
        rollout_logprobs=-tokens / 7.0,
        advantages=tokens / 11.0,
        experts=tokens.to(torch.int16).view(-1, 1, 1),
        prompt_experts=of_prompts.to(torch.int16).view(-1, 1, 1),
        images=[b"ab", b""],
        later_images=[bytes([row] * size) for row, size in enumerate(INDEX.later_image_bytes)],
        teacher_prompts=[
            torch.arange(n) - 1000 * row for row, n in enumerate(INDEX.teacher_prompt_lengths)
        ],
    )
    return batch.select([4 * p + sample for p in positions for sample in range(4)])


def at(link: QueueLink, costs: GroupCosts = COSTS) -> BatchRows:
    within = QueueLink(Queues(1), 0)
    mine = rows_of(INDEX.owned_by(link.member))
    return BatchRows(INDEX, mine, link, costs, ParallelDims(shard=RANKS), within)


def every_row(parts: list[Experience]) -> list[tuple[object, ...]]:
    """Prompts, tokens, experts of the prompt and images of all rows, in order of their tokens."""
    found = []
    for part in parts:
        for row in range(part.num_rows):
            one = part.select([row])
            experts = [] if one.prompt_experts is None else one.prompt_experts.flatten().tolist()
            tokens = one.response_tokens.tolist()
            shown = one.images[0], one.later_images[0]
            prompts = one.prompts[0].tolist(), one.teacher_prompts[0].tolist()
            found.append((tokens, *prompts, experts, *shown))
    return sorted(found)


def test_each_rank_has_as_many_rows_of_a_group():
    columns = ("advantages", "experts", "prompt_experts")

    def act(link: QueueLink) -> Experience:
        return at(link).mini_batch((1, 0), columns)

    parts = all_at_once(Queues(RANKS), *[act] * RANKS)
    assert [(part.num_rows, part.num_groups) for part in parts] == [(2, 1)] * RANKS
    assert every_row(parts) == every_row([rows_of((0, 1))])


def test_a_single_group_goes_to_all_ranks():
    def act(link: QueueLink) -> Experience:
        return at(link).mini_batch((0,), ("advantages",))

    parts = all_at_once(Queues(RANKS), *[act] * RANKS)
    assert sorted(part.lengths.tolist() for part in parts) == [[1], [1], [4], [7]]
    assert all(part.prompts[0].tolist() == [0, 1, 2] for part in parts)


def test_a_pair_stays_whole():
    def act(link: QueueLink) -> Experience:
        return at(link, replace(COSTS, whole_groups=True)).mini_batch((0,), ())

    parts = all_at_once(Queues(RANKS), *[act] * RANKS)
    assert sorted(part.num_rows for part in parts) == [0, 0, 0, 4]


def test_owners_get_what_was_said_of_their_rows():
    def act(link: QueueLink) -> BatchRows:
        rows = at(link)

        def compute(some: Experience) -> tuple[torch.Tensor]:
            some.prompt_experts = torch.cat(some.prompts).to(torch.int16).view(-1, 1, 1)
            return (torch.sin(some.response_tokens.float()),)

        rows.fill("ref_logprobs", compute, set_by_compute=("prompt_experts",))
        return rows

    for member, rows in enumerate(all_at_once(Queues(RANKS), *[act] * RANKS)):
        expected = rows_of(INDEX.owned_by(member))
        said = torch.sin(expected.response_tokens.float())
        assert rows.mine.ref_logprobs.tolist() == said.tolist()
        told = [token for prompt in expected.prompts for token in prompt.tolist()]
        assert rows.mine.prompt_experts.flatten().tolist() == told
        assert sum(rows.tokens_computed()) == sum(INDEX.total_tokens)
        assert all(rows.tokens_computed())


@pytest.mark.parametrize(
    ("groups", "samples", "places", "parts"),
    [(4, 6, 4, 1), (4, 6, 5, 2), (2, 6, 5, 3), (1, 6, 5, 6), (1, 6, 9, 6), (3, 1, 4, 1)],
)
def test_groups_are_cut_no_more_than_needed(groups: int, samples: int, places: int, parts: int):
    index = BatchIndex((1,) * groups, (1,) * groups * samples, samples, (0,) * groups)
    assert index.parts_for(places) == parts
    assert index.cut(parts).lengths == index.lengths
    assert index.cut(parts).total_tokens == (2 * samples // parts,) * groups * parts
