from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_link import QueueLink, Queues, all_at_once

from ppojob_trainer.rows import exchange
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import COLUMN_DTYPES, ROUTER_COLUMNS, Experience


def batch_of(index: BatchIndex) -> Experience:
    generator = torch.Generator().manual_seed(0)

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        tokens = sum(index.prompt_lengths if name == "prompt_experts" else index.lengths)
        if name in ROUTER_COLUMNS:
            return torch.randint(0, 999, (tokens, 3, 2), generator=generator).to(dtype)
        if dtype == torch.bool:
            return torch.randint(0, 2, (tokens,), generator=generator).bool()
        bits = torch.randint(-(2**31), 2**31, (tokens,), generator=generator)
        return bits if dtype == torch.int64 else bits.to(torch.int32).view(dtype)

    return Experience(
        prompts=[torch.arange(n) + 1000 * p for p, n in enumerate(index.prompt_lengths)],
        row_groups=torch.arange(index.num_groups).repeat_interleave(index.samples),
        lengths=torch.tensor(index.lengths, dtype=torch.int64),
        images=[bytes(range(p, p + n)) for p, n in enumerate(index.image_bytes)],
        later_images=[bytes([row % 256] * n) for row, n in enumerate(index.later_image_bytes)],
        teacher_prompts=[
            torch.arange(n) - 1000 * p for p, n in enumerate(index.teacher_prompt_lengths)
        ],
        **{name: column(name, dtype) for name, dtype in COLUMN_DTYPES.items()},
    )


def groups_of(batch: Experience, index: BatchIndex, positions: tuple[int, ...]) -> Experience:
    return batch.select([p * index.samples + s for p in positions for s in range(index.samples)])


def bits(column: torch.Tensor) -> bytes:
    return column.numpy().tobytes()


def assert_same(got: Experience, expected: Experience, columns: tuple[str, ...]) -> None:
    assert got.lengths.tolist() == expected.lengths.tolist()
    assert got.row_groups.tolist() == expected.row_groups.tolist()
    assert [p.tolist() for p in got.prompts] == [p.tolist() for p in expected.prompts]
    assert got.images == expected.images
    assert got.later_images == expected.later_images
    assert [p.tolist() for p in got.teacher_prompts] == [
        p.tolist() for p in expected.teacher_prompts
    ]
    for name in columns:
        assert bits(getattr(got, name)) == bits(getattr(expected, name)), name


@st.composite
def batches(draw: st.DrawFn) -> tuple[BatchIndex, exchange.TransferPlan, int]:
    members, groups = draw(st.integers(1, 4)), draw(st.integers(0, 7))
    samples = draw(st.integers(1, 3))
    places = st.lists(st.integers(0, members - 1), min_size=groups, max_size=groups)
    rows = groups * samples
    index = BatchIndex(
        tuple(draw(st.lists(st.integers(1, 4), min_size=groups, max_size=groups))),
        tuple(draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))),
        samples,
        tuple(draw(places)),
        tuple(draw(st.lists(st.integers(0, 9), min_size=groups, max_size=groups)))
        if draw(st.booleans())
        else (),
        tuple(draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows)))
        if draw(st.booleans())
        else (),
        teacher_prompt_lengths=tuple(
            draw(st.lists(st.integers(1, 9), min_size=rows, max_size=rows))
        )
        if draw(st.booleans())
        else (),
    )
    return index, exchange.TransferPlan(index.owners, tuple(draw(places))), members


@settings(max_examples=60)
@given(batches())
def test_rows_arrive_bit_for_bit_in_batch_order_and_results_come_home(drawn):
    index, plan, members = drawn
    batch, shared = batch_of(index), Queues(members)

    def act(link: QueueLink) -> tuple[Experience, Experience | None]:
        held = plan.held_by(link.member)
        owned = groups_of(batch, index, held) if held else None
        moved = exchange.move_rows(link, index, plan, owned, ["old_logprobs"])
        moved.ref_logprobs = groups_of(batch, index, plan.needed_by(link.member)).ref_logprobs
        if owned is not None:
            owned.ref_logprobs = None
        exchange.return_columns(link, index, plan, ["ref_logprobs"], staged=moved, owned=owned)
        return moved, owned

    for member, (moved, owned) in enumerate(all_at_once(shared, *[act] * members)):
        came = ("response_tokens", "mask", "rollout_logprobs", "old_logprobs")
        assert_same(moved, groups_of(batch, index, plan.needed_by(member)), came)
        assert moved.values is None
        if owned is not None:
            expected = groups_of(batch, index, plan.held_by(member))
            assert_same(owned, expected, ("ref_logprobs", "old_logprobs"))


@settings(max_examples=60)
@given(batches())
def test_every_rank_sees_the_whole_batch_and_takes_its_own_part_back(drawn):
    index, _, members = drawn
    batch = batch_of(index)

    def act(link: QueueLink) -> tuple[list[torch.Tensor], Experience]:
        owned = groups_of(batch, index, index.owned_by(link.member))
        return exchange.gather_columns(link, index, [owned.mask, owned.advantages]), owned

    for member, ((mask, advantages), owned) in enumerate(
        all_at_once(Queues(members), *[act] * members)
    ):
        assert bits(mask) == bits(batch.mask)
        assert bits(advantages) == bits(batch.advantages)
        assert bits(exchange.own_tokens(index, member, advantages)) == bits(owned.advantages)


@settings(max_examples=60)
@given(batches())
def test_experts_of_prompts_and_responses_come_along_and_home(drawn):
    """Each member has a column of their shape, also one without rows."""
    index, plan, members = drawn
    batch = batch_of(index)

    def act(link: QueueLink) -> tuple[Experience, Experience]:
        owned = groups_of(batch, index, plan.held_by(link.member))
        moved = exchange.move_rows(link, index, plan, owned, ROUTER_COLUMNS)
        owned = replace(owned, experts=None, prompt_experts=None)
        exchange.return_columns(link, index, plan, ROUTER_COLUMNS, staged=moved, owned=owned)
        return moved, owned

    for member, (moved, owned) in enumerate(all_at_once(Queues(members), *[act] * members)):
        assert moved.experts.shape[1:] == owned.prompt_experts.shape[1:] == (3, 2)
        expected = groups_of(batch, index, plan.needed_by(member))
        assert_same(moved, expected, ROUTER_COLUMNS)
        assert_same(owned, groups_of(batch, index, plan.held_by(member)), ROUTER_COLUMNS)


def test_rows_that_stay_move_no_byte():
    index = BatchIndex((3, 2), (4, 5), 1, (0, 1))
    batch, shared = batch_of(index), Queues(2)
    plan = exchange.TransferPlan(index.owners, index.owners)

    def act(link: QueueLink) -> Experience:
        owned = groups_of(batch, index, (link.member,))
        moved = exchange.move_rows(link, index, plan, owned)
        moved.values = owned.values
        exchange.return_columns(link, index, plan, ["values"], staged=moved, owned=owned)
        return moved

    all_at_once(shared, act, act)
    assert shared.moved_bytes.total() == 0


def test_a_token_costs_its_columns_and_nothing_else_on_the_wire():
    index = BatchIndex((3,), (4, 5), 2, (0,))
    batch, shared = batch_of(index), Queues(2)
    plan = exchange.TransferPlan((0,), (1,))

    def act(link: QueueLink) -> Experience:
        return exchange.move_rows(
            link, index, plan, batch if link.member == 0 else None, ["values"]
        )

    all_at_once(shared, act, act)
    assert shared.moved_bytes == {(0, 1): 3 * 8 + (4 + 5) * (8 + 1 + 4 + 1 + 4)}


INDEX = BatchIndex((3, 2), (4, 5), 1, (0, 0))
HERE = exchange.TransferPlan((0, 0), (0, 0))


def test_rows_that_are_not_the_indexs_are_refused():
    link, batch = QueueLink(Queues(1), 0), batch_of(INDEX)
    for other in (batch.select([0]), batch.select([1, 0]), None):
        with pytest.raises(AssertionError, match="whole groups in order"):
            exchange.move_rows(link, INDEX, HERE, other)


def test_a_column_that_is_absent_or_of_another_dtype_is_refused():
    link, batch = QueueLink(Queues(1), 0), batch_of(INDEX)
    batch.values, batch.returns = None, batch.returns.double()
    with pytest.raises(AssertionError, match="values is sent to other ranks"):
        exchange.move_rows(link, INDEX, HERE, batch, ["values"])
    with pytest.raises(AssertionError, match=r"returns is sent .* as torch.float32"):
        exchange.move_rows(link, INDEX, HERE, batch, ["returns"])
