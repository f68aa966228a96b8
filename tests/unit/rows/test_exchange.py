"""Rows between fake ranks: a thread each, and a link that really copies the bytes."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.exchange import gather_columns, move_rows, own_tokens, return_columns
from ppojob_trainer.rows.experience import COLUMN_DTYPES, Experience
from ppojob_trainer.rows.transfer import TransferPlan

Result = TypeVar("Result")


@dataclass
class Mail:
    """What the members of an in-memory link share."""

    size: int
    moved_bytes: Counter[tuple[int, int]] = field(default_factory=Counter)
    letters: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=60)


@dataclass
class MemoryLink:
    mail: Mail
    member: int

    @property
    def size(self) -> int:
        return self.mail.size

    def exchange(
        self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, int]
    ) -> dict[int, torch.Tensor]:
        assert self.member not in outgoing
        for member, payload in outgoing.items():
            assert payload.dtype == torch.uint8
            self.mail.letters[self.member, member] = payload.numpy().tobytes()
            self.mail.moved_bytes[self.member, member] += payload.numel()
        self.mail.barrier.wait()
        received = {}
        for member, size in incoming.items():
            letter = self.mail.letters.pop((member, self.member))
            assert len(letter) == size
            # At an odd address: what arrives need not suit any dtype.
            received[member] = torch.tensor([0, *letter], dtype=torch.uint8)[1:]
        assert not any(to == self.member for _, to in list(self.mail.letters))
        self.mail.barrier.wait()
        return received


def together(mail: Mail, act: Callable[[MemoryLink], Result]) -> list[Result]:
    """What each member returns; all act at once, and where one fails none waits for it."""

    def act_or_release(member: int) -> Result:
        try:
            return act(MemoryLink(mail, member))
        except Exception:
            mail.barrier.abort()
            raise

    with ThreadPoolExecutor(mail.size) as threads:
        futures = [threads.submit(act_or_release, member) for member in range(mail.size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]


def batch_of(index: BatchIndex) -> Experience:
    """A whole batch of random bits: NaNs and negative zeros among the floats."""
    generator = torch.Generator().manual_seed(0)
    tokens = sum(index.lengths)

    def column(dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.randint(0, 2, (tokens,), generator=generator).bool()
        bits = torch.randint(-(2**31), 2**31, (tokens,), generator=generator)
        return bits if dtype == torch.int64 else bits.to(torch.int32).view(dtype)

    return Experience(
        prompts=[torch.arange(n) + 1000 * p for p, n in enumerate(index.prompt_lengths)],
        row_groups=torch.arange(index.num_groups).repeat_interleave(index.samples),
        lengths=torch.tensor(index.lengths, dtype=torch.int64),
        **{name: column(dtype) for name, dtype in COLUMN_DTYPES.items()},
    )


def groups_of(batch: Experience, index: BatchIndex, positions: tuple[int, ...]) -> Experience:
    return batch.select([p * index.samples + s for p in positions for s in range(index.samples)])


def bits(column: torch.Tensor) -> bytes:
    return column.numpy().tobytes()


def assert_same(got: Experience, expected: Experience, columns: tuple[str, ...]) -> None:
    assert got.lengths.tolist() == expected.lengths.tolist()
    assert got.row_groups.tolist() == expected.row_groups.tolist()
    assert [p.tolist() for p in got.prompts] == [p.tolist() for p in expected.prompts]
    for name in columns:
        assert bits(getattr(got, name)) == bits(getattr(expected, name)), name


@st.composite
def batches(draw: st.DrawFn) -> tuple[BatchIndex, TransferPlan, int]:
    members, groups = draw(st.integers(1, 4)), draw(st.integers(0, 7))
    samples = draw(st.integers(1, 3))
    places = st.lists(st.integers(0, members - 1), min_size=groups, max_size=groups)
    rows = groups * samples
    index = BatchIndex(
        tuple(draw(st.lists(st.integers(1, 4), min_size=groups, max_size=groups))),
        tuple(draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))),
        samples,
        tuple(draw(places)),
    )
    return index, TransferPlan(index.owners, tuple(draw(places))), members


@settings(max_examples=60)
@given(batches())
def test_rows_arrive_bit_for_bit_in_batch_order_and_results_come_home(drawn):
    index, plan, members = drawn
    batch, mail = batch_of(index), Mail(members)

    def act(link: MemoryLink) -> tuple[Experience, Experience | None]:
        held = plan.held_by(link.member)
        owned = groups_of(batch, index, held) if held else None
        moved = move_rows(link, index, plan, owned, ["old_logprobs"])
        moved.ref_logprobs = groups_of(batch, index, plan.needed_by(link.member)).ref_logprobs
        if owned is not None:
            owned.ref_logprobs = None
        return_columns(link, index, plan, ["ref_logprobs"], staged=moved, owned=owned)
        return moved, owned

    for member, (moved, owned) in enumerate(together(mail, act)):
        came = ("response_tokens", "mask", "rollout_logprobs", "old_logprobs")
        assert_same(moved, groups_of(batch, index, plan.needed_by(member)), came)
        assert moved.values is None
        if owned is not None:
            expected = groups_of(batch, index, plan.held_by(member))
            assert_same(owned, expected, ("ref_logprobs", "old_logprobs"))
    assert all(source != destination for source, destination in mail.moved_bytes)


@settings(max_examples=60)
@given(batches())
def test_every_rank_sees_the_whole_batch_and_takes_its_own_part_back(drawn):
    index, _, members = drawn
    batch = batch_of(index)

    def act(link: MemoryLink) -> tuple[list[torch.Tensor], Experience]:
        owned = groups_of(batch, index, index.owned_by(link.member))
        return gather_columns(link, index, [owned.mask, owned.advantages]), owned

    for member, ((mask, advantages), owned) in enumerate(together(Mail(members), act)):
        assert bits(mask) == bits(batch.mask)
        assert bits(advantages) == bits(batch.advantages)
        assert bits(own_tokens(index, member, advantages)) == bits(owned.advantages)


def test_rows_that_stay_move_no_byte():
    index = BatchIndex((3, 2), (4, 5), 1, (0, 1))
    batch, mail = batch_of(index), Mail(2)
    plan = TransferPlan(index.owners, index.owners)

    def act(link: MemoryLink) -> Experience:
        owned = groups_of(batch, index, (link.member,))
        moved = move_rows(link, index, plan, owned)
        moved.values = owned.values
        return_columns(link, index, plan, ["values"], staged=moved, owned=owned)
        return moved

    together(mail, act)
    assert mail.moved_bytes.total() == 0


def test_a_token_costs_its_columns_and_nothing_else_on_the_wire():
    index = BatchIndex((3,), (4, 5), 2, (0,))
    batch, mail = batch_of(index), Mail(2)
    plan = TransferPlan((0,), (1,))
    together(
        mail,
        lambda link: move_rows(link, index, plan, batch if link.member == 0 else None, ["values"]),
    )
    assert mail.moved_bytes == {(0, 1): 3 * 8 + (4 + 5) * (8 + 1 + 4 + 4)}


INDEX = BatchIndex((3, 2), (4, 5), 1, (0, 0))
HERE = TransferPlan((0, 0), (0, 0))


def test_rows_that_are_not_the_indexs_are_refused():
    link, batch = MemoryLink(Mail(1), 0), batch_of(INDEX)
    for other, groups in ((batch.select([0]), 1), (batch.select([1, 0]), 2), (None, 0)):
        with pytest.raises(ValueError, match=f"experience: got {groups} groups"):
            move_rows(link, INDEX, HERE, other)


def test_a_column_that_is_absent_or_of_another_dtype_is_refused():
    link, batch = MemoryLink(Mail(1), 0), batch_of(INDEX)
    batch.values, batch.returns = None, batch.returns.double()
    with pytest.raises(ValueError, match=r"values: got nothing: .*; torch.float32 a token"):
        move_rows(link, INDEX, HERE, batch, ["values"])
    with pytest.raises(ValueError, match=r"returns: got torch.float64: "):
        move_rows(link, INDEX, HERE, batch, ["returns"])
