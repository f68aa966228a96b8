"""The train rows of a step on one rank: its own, and the way to those of the role's other ranks.

Models see rows only through here, so none of them knows how many ranks there are or who owns what.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.link import Link
from ppojob_trainer.rows.assignment import assign
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.exchange import (
    gather_columns,
    hand_on,
    move_rows,
    own_tokens,
    return_columns,
)
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rows.group_cost import group_costs
from ppojob_trainer.rows.transfer import TransferPlan


@dataclass(frozen=True)
class GroupCosts:
    """What groups cost those who compute them.

    Attributes:
        linear: cost of a token in the model's weights, see `rows.group_cost`. Of the policy, for
            all models: what matters is that all ranks of all roles plan alike.
        share_prompts: whether a group's prompt is computed once.
    """

    linear: int
    share_prompts: bool

    def assigned(self, index: BatchIndex, dims: ParallelDims) -> tuple[int, ...]:
        """(groups,) the data-parallel coordinate that computes each: all have about as much to do.

        Args:
            index: of the batch.
            dims: the layout of the role that computes.
        """
        costs = group_costs(index, self.linear, share_prompts=self.share_prompts)
        return assign(costs, dims.data_size)

    def leaders(self, index: BatchIndex, dims: ParallelDims) -> tuple[int, ...]:
        """(groups,) the rank that gets each group, to share it with those of its coordinate."""
        leaders = dims.leaders
        return tuple(leaders[coordinate] for coordinate in self.assigned(index, dims))


@dataclass
class BatchRows:
    """Rows by batch position.

    Attributes:
        index: of all rows of the step, owned by the ranks of this role.
        mine: the rows of this rank, group after group in batch order.
        link: to the other ranks of this role.
        costs: by which work is balanced.
        dims: the layout of the role.
        within: to the other ranks of this rank's data-parallel coordinate.
    """

    index: BatchIndex
    mine: Experience
    link: Link
    costs: GroupCosts
    dims: ParallelDims
    within: Link

    def staged(self, positions: Sequence[int], columns: Sequence[str]) -> Experience:
        """The rows of a mini-batch that this rank computes, in the order of the mini-batch.

        What a rejection left out of the updates is left out of their mask. The mask of the rows
        themselves stays, so a model that reads them again reads what it read before. A row that
        was drawn several times stands there as often.

        Args:
            positions: batch positions of the mini-batch's groups.
            columns: what goes along with tokens and mask, where the job has it.
        """
        index = self.index.select(positions)
        plan = self._balanced(index)
        present = [
            name
            for name in (*columns, "update_mask", "copies")
            if getattr(self.mine, name) is not None
        ]
        staged = self._staged(index, plan, self._held(positions), present)
        if staged.update_mask is not None:
            staged.mask = staged.update_mask
        return staged if staged.copies is None else _repeated(staged, staged.copies)

    def fill(
        self, column: str, compute: Callable[[Experience], TokenOutputs], *further: str
    ) -> tuple[Experience, TokenOutputs]:
        """Compute a per-token column of all rows, each row where it is balanced, for its owner.

        Args:
            column: its name.
            compute: says something of rows; the first of its outputs is the column.
            further: names of columns that the outputs behind it are kept as too.

        Returns:
            The rows that this rank has computed, and all that was said of them.
        """
        plan = self._balanced(self.index)
        staged = self._staged(self.index, plan, self.mine)
        outputs = compute(staged)
        columns = (column, *further)
        for name, output in zip(columns, outputs, strict=False):
            setattr(staged, name, output)
        # All ranks of a coordinate have computed the same; its leader answers.
        answer = staged if self._leads else None
        return_columns(self.link, self.index, plan, columns, staged=answer, owned=self.mine)
        return staged, outputs

    def whole(self, columns: Sequence[str]) -> list[Tensor]:
        """Per-token columns of all rows, in batch order: (tokens of the batch,) each."""
        mine = [getattr(self.mine, name) for name in columns]
        return gather_columns(self.link, self.index, mine)

    def keep(self, column: str, values: Tensor) -> None:
        """Keep a per-token column of the whole batch for the rows of this rank."""
        setattr(self.mine, column, own_tokens(self.index, self.link.member, values))

    def tokens_owned(self) -> list[int]:
        """(ranks,) tokens of the rows that each rank holds."""
        return self.index.tokens_by_part(self.index.owners, self.link.size)

    def tokens_computed(self) -> list[int]:
        """(data-parallel coordinates,) tokens of the rows that each computes, all rows at once."""
        assigned = self.costs.assigned(self.index, self.dims)
        return self.index.tokens_by_part(assigned, self.dims.data_size)

    @property
    def _leads(self) -> bool:
        """Whether this rank is the one of its coordinate that gets rows, and answers."""
        return self.within.member == 0

    def _balanced(self, index: BatchIndex) -> TransferPlan:
        return TransferPlan(index.owners, self.costs.leaders(index, self.dims))

    def _staged(
        self, index: BatchIndex, plan: TransferPlan, held: Experience, columns: Sequence[str] = ()
    ) -> Experience:
        """The rows that the coordinate of this rank computes, by a plan for its leader."""
        moved = move_rows(self.link, index, plan, held, columns)
        positions = plan.needed_by(self.dims.leader_of(self.link.member))
        return hand_on(self.within, index, positions, moved if self._leads else None, columns)

    def _held(self, positions: Sequence[int]) -> Experience:
        """Of the groups at some positions, those that this rank owns, in the same order."""
        samples = self.index.samples
        own = {p: number for number, p in enumerate(self.index.owned_by(self.link.member))}
        groups = [own[p] for p in positions if p in own]
        return self.mine.select([g * samples + sample for g in groups for sample in range(samples)])


def _repeated(rows: Experience, copies: Tensor) -> Experience:
    """Each row as often as its tokens say."""
    times = torch.zeros(rows.num_rows, dtype=torch.int64)
    times[rows.token_rows] = copies
    return rows.select(torch.arange(rows.num_rows).repeat_interleave(times))
