"""Row exchange between ranks: whole groups, directly from their owners, by a plan.

Each pair of members exchanges one flat buffer: the concatenated columns, each with the groups in
batch order. Both ends know the plan, the sizes (from the index) and the dtypes, so there is no
header. Rows that stay are not sent. These functions are collective: every member of the link calls
them, also without groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppojob_trainer.parallel.link import Link
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import COLUMN_DTYPES, Experience

ROLLOUT_COLUMNS = ("response_tokens", "mask", "rollout_logprobs", "context_starts")
"""Per-token columns that every row has from generation on; they are always moved with it."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Where each group of a batch is, and where it is needed.

    Places are members of one link: ranks within a role; on a channel the ranks of the first role
    and, after them, those of the second.
    """

    sources: tuple[int, ...]  # (groups,) the member that holds each group, by batch position
    destinations: tuple[int, ...]  # (groups,) the member that is to have it

    @property
    def reversed(self) -> TransferPlan:
        """Return the plan of the way back."""
        return TransferPlan(self.destinations, self.sources)

    def held_by(self, member: int) -> tuple[int, ...]:
        """Return the batch positions that a member holds before, in batch order."""
        return tuple(position for position, place in enumerate(self.sources) if place == member)

    def needed_by(self, member: int) -> tuple[int, ...]:
        """Return the batch positions that a member needs, in batch order."""
        return self.reversed.held_by(member)


_Column = tuple[Tensor, Sequence[int]]
"""Values of the groups of this member, in batch order; (groups,) entries of every group."""


@dataclass(frozen=True, slots=True)
class _Route:
    """One member's part in an exchange; all numbers are batch positions, in batch order."""

    held: Sequence[int]  # held before
    needed: Sequence[int]  # needed after
    outgoing: Mapping[int, Sequence[int]]  # sent to each other member
    incoming: Mapping[int, Sequence[int]]  # received from each other member

    @classmethod
    def of(cls, plan: TransferPlan, member: int) -> _Route:
        outgoing, incoming = dict[int, list[int]](), dict[int, list[int]]()
        places = zip(plan.sources, plan.destinations, strict=True)
        for position, (source, destination) in enumerate(places):
            if source == member != destination:
                outgoing.setdefault(destination, []).append(position)
            elif source != member == destination:
                incoming.setdefault(source, []).append(position)
        return cls(plan.held_by(member), plan.needed_by(member), outgoing, incoming)


def move_rows(
    link: Link,
    index: BatchIndex,
    plan: TransferPlan,
    experience: Experience | None,
    columns: Sequence[str] = (),
) -> Experience:
    """Move rows to the members that need them; return those of this member, in batch order.

    Index and plan are of the whole batch. `experience` has the rows of the groups that this member
    holds, in batch order, None for none; `columns` are optional ones, such as `old_logprobs`.
    """
    return _moved(link, index, _Route.of(plan, link.member), experience, columns)


def broadcast_rows(
    link: Link,
    index: BatchIndex,
    positions: Sequence[int],
    experience: Experience | None,
    columns: Sequence[str] = (),
) -> Experience:
    """Broadcast a leader's rows to all ranks of its data-parallel coordinate.

    The link is between those ranks, the leader first, which has the rows at `positions` of the
    batch; the others have none. Raises as `move_rows`.
    """
    leads = link.member == 0
    if link.size == 1 and experience is not None:
        return experience
    route = _Route(
        held=positions if leads else (),
        needed=positions,
        outgoing=dict.fromkeys(range(1, link.size), positions) if leads else {},
        incoming={} if leads else {0: positions},
    )
    return _moved(link, index, route, experience, columns)


def _moved(
    link: Link,
    index: BatchIndex,
    route: _Route,
    experience: Experience | None,
    columns: Sequence[str],
) -> Experience:
    """Return the rows that this member needs, by its route."""
    _check_rows(index, route.held, experience)
    prompts = [] if experience is None else experience.prompts
    taught = [] if experience is None else experience.teacher_prompts
    names = (*ROLLOUT_COLUMNS, *columns)
    sizes = index.image_bytes or (0,) * index.num_groups
    of_prompts = b"".join([] if experience is None else experience.images)
    of_rows = b"".join([] if experience is None else experience.later_images)
    flat_prompts, flat_taught, flat_images, flat_later, *arrived = _move(
        link,
        route,
        [
            (_concatenated(prompts, torch.int64), index.prompt_lengths),
            (_concatenated(taught, torch.int64), index.teacher_prompt_tokens),
            (_as_tensor(of_prompts), sizes),
            (_as_tensor(of_rows), index.later_bytes),
            *((_values(experience, name), _entries(index, name)) for name in names),
        ],
    )
    images = _split(flat_images, sizes, route.needed) if index.image_bytes else []
    needed = index.select(route.needed)
    later = torch.split_with_sizes(flat_later, list(needed.later_image_bytes))
    of_teacher = torch.split_with_sizes(flat_taught, list(needed.teacher_prompt_lengths))
    moved: dict[str, Any] = dict(zip(names, arrived, strict=True))
    lengths = [length for p in route.needed for length in index.group_lengths(p)]
    return Experience(
        prompts=_split(flat_prompts, index.prompt_lengths, route.needed),
        row_groups=torch.arange(len(route.needed)).repeat_interleave(index.samples),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        images=[one.numpy().tobytes() for one in images],
        later_images=[one.numpy().tobytes() for one in later],
        teacher_prompts=list(of_teacher),
        **moved,
    )


def return_columns(
    link: Link,
    index: BatchIndex,
    plan: TransferPlan,
    columns: Sequence[str],
    *,
    staged: Experience | None,
    owned: Experience | None,
) -> None:
    """Return columns that a stage has filled in, such as `values`, to the owners of the rows.

    `plan` is that by which `move_rows` moved the rows to the stage. `staged` are the rows of the
    stage at this member, `owned` those that it owns, whose columns are set; None for none.
    """
    route = _Route.of(plan.reversed, link.member)
    _check_rows(index, route.held, staged)
    _check_rows(index, route.needed, owned)
    arrived = _move(
        link, route, [(_values(staged, name), _entries(index, name)) for name in columns]
    )
    if owned is not None:
        for name, values in zip(columns, arrived, strict=True):
            setattr(owned, name, values)


def gather_columns(link: Link, index: BatchIndex, columns: Sequence[Tensor]) -> list[Tensor]:
    """All-gather the per-token columns of the whole batch over a role's ranks.

    Estimators with batch statistics see every row, in the same order under any layout, and so give
    the same bits. Columns are (tokens of this rank's groups,), and come back as (tokens of the
    batch,), both in batch order.
    """
    held = index.owned_by(link.member)
    others = [m for m in range(link.size) if m != link.member]
    route = _Route(
        held=held,
        needed=range(index.num_groups),
        outgoing=dict.fromkeys(others, held),
        incoming={m: index.owned_by(m) for m in others},
    )
    tokens = index.response_tokens
    return _move(link, route, [(column, tokens) for column in columns])


def own_tokens(index: BatchIndex, rank: int, column: Tensor) -> Tensor:
    """Return this rank's part of a per-token column of the whole batch, in batch order."""
    segments = _split(column, index.response_tokens, range(index.num_groups))
    return _concatenated([segments[p] for p in index.owned_by(rank)], column.dtype)


def _move(link: Link, route: _Route, columns: Sequence[_Column]) -> list[Tensor]:
    """Exchange segments of the columns; return each column's part for this member."""
    segments = [
        dict(zip(route.held, _split(values, sizes, route.held), strict=True))
        for values, sizes in columns
    ]
    outgoing = {
        member: _concatenated(
            [of_column[p].flatten().view(torch.uint8) for of_column in segments for p in positions],
            torch.uint8,
        )
        for member, positions in route.outgoing.items()
    }
    incoming = {
        member: [
            values.itemsize * values.shape[1:].numel() * sum(sizes[p] for p in positions)
            for values, sizes in columns
        ]
        for member, positions in route.incoming.items()
    }
    received = link.exchange(outgoing, {member: sum(parts) for member, parts in incoming.items()})
    for member, positions in route.incoming.items():
        parts = torch.split_with_sizes(received[member], incoming[member])
        for (values, sizes), of_column, part in zip(columns, segments, parts, strict=True):
            # The copy is aligned for the dtype; the part may not be.
            arrived = part.clone().view(values.dtype).view(-1, *values.shape[1:])
            of_column.update(zip(positions, _split(arrived, sizes, positions), strict=True))
    return [
        torch.cat([values[:0], *(of_column[p] for p in route.needed)])
        for (values, _), of_column in zip(columns, segments, strict=True)
    ]


def _entries(index: BatchIndex, name: str) -> Sequence[int]:
    """Return (groups,) how many entries of a column each group has."""
    return index.prompt_lengths if name == "prompt_experts" else index.response_tokens


def _split(values: Tensor, sizes: Sequence[int], positions: Sequence[int]) -> list[Tensor]:
    return list(torch.split_with_sizes(values, [sizes[p] for p in positions]))


def _as_tensor(content: bytes) -> Tensor:
    if not content:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _concatenated(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([torch.empty(0, dtype=dtype), *parts])


def _values(experience: Experience | None, name: str) -> Tensor:
    dtype = COLUMN_DTYPES[name]
    if experience is None:
        return torch.empty(0, dtype=dtype)
    values: Tensor | None = getattr(experience, name)
    assert values is not None, f"{name} is sent to other ranks"
    assert values.dtype == dtype, f"{name} is sent to other ranks as {dtype}"
    return values


def _check_rows(index: BatchIndex, positions: Sequence[int], experience: Experience | None) -> None:
    """Refuse rows that differ from the index, before buffers of other sizes are sent."""
    expected = index.select(positions)
    prompts = () if experience is None else tuple(experience.prompt_lengths.tolist())
    lengths = () if experience is None else tuple(experience.lengths.tolist())
    assert (prompts, lengths) == (expected.prompt_lengths, expected.lengths), (
        "whole groups in order"
    )
