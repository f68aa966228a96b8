"""The training rows of a step on one rank, and their exchange with the role's other ranks.

Models access rows only through this module, so they need not know ranks or owners.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.link import Link
from ppojob_trainer.rows.assignment import assign, assign_kinds, group_costs
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.exchange import (
    TransferPlan,
    broadcast_rows,
    gather_columns,
    move_rows,
    own_tokens,
    return_columns,
)
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True)
class GroupCosts:
    """Cost model of groups for load balancing; see `rows.assignment`.

    The linear cost is the policy's, for all models: all roles must compute the same plan.
    """

    linear: int
    share_prompts: bool
    whole_groups: bool = False  # whether groups are never split, as pairs

    def parts(self, index: BatchIndex, dims: ParallelDims) -> int:
        """Return into how many parts groups are split: 1 unless there are too few groups."""
        return 1 if self.whole_groups else index.parts_for(dims.data_size)

    def assigned(self, index: BatchIndex, dims: ParallelDims) -> tuple[int, ...]:
        """Return (groups,) the data-parallel coordinate of each, at about equal cost.

        With several reference models, which run one after the other, the rows of each are balanced.
        """
        costs = group_costs(index, self.linear, share_prompts=self.share_prompts)
        if index.teachers:
            return assign_kinds(costs, index.teachers, dims.data_size)
        return assign(costs, dims.data_size)

    def leaders(self, index: BatchIndex, dims: ParallelDims) -> tuple[int, ...]:
        """Return (groups,) the rank that receives each group for its coordinate."""
        leaders = dims.leaders
        return tuple(leaders[coordinate] for coordinate in self.assigned(index, dims))


@dataclass
class BatchRows:
    """Rows of a batch, addressed by batch position."""

    index: BatchIndex  # of all rows of the step, owned by the ranks of this role
    mine: Experience  # the rows of this rank, group after group in batch order
    link: Link  # to the other ranks of this role
    costs: GroupCosts  # the cost model of load balancing
    dims: ParallelDims  # the layout of the role
    within: Link  # to the other ranks of this rank's data-parallel coordinate

    def mini_batch(self, positions: Sequence[int], columns: Sequence[str]) -> Experience:
        """Return the rows of a mini-batch that this rank computes, in mini-batch order.

        Their mask is the `update_mask`, if there is one; stored rows keep theirs. Resampled rows
        are repeated. Columns that the job does not have are left out.
        """
        index, own = self._cut(self.index.select(positions), self._held(positions))
        plan = self._balanced(index)
        present = self._present((*columns, "update_mask", "copies"))
        staged = self._staged(index, plan, own, present)
        if staged.update_mask is not None:
            staged.mask = staged.update_mask
        if staged.copies is None:
            return staged
        times = torch.zeros(staged.num_rows, dtype=torch.int64)
        times[staged.token_rows] = staged.copies
        return staged.select(torch.arange(staged.num_rows).repeat_interleave(times))

    def fill(
        self,
        column: str,
        compute: Callable[[Experience], TokenOutputs],
        *further: str,
        read: Sequence[str] = (),
        set_by_compute: Sequence[str] = (),
    ) -> tuple[Experience, TokenOutputs]:
        """Compute per-token columns of all rows, balanced over the ranks, for the owners.

        `compute` gets rows with the columns `read`, if the job has them. The tensors that it
        returns are stored as `column` and `further`; the columns `set_by_compute` it sets on the
        rows itself. Returns the rows that this rank has computed, and all tensors.
        """
        index, mine = self._cut(self.index, self.mine)
        plan = self._balanced(index)
        staged = self._staged(index, plan, mine, self._present(read))
        outputs = compute(staged)
        columns = (column, *further)
        for name, output in zip(columns, outputs, strict=False):
            setattr(staged, name, output)
        columns = (*columns, *set_by_compute)
        # All ranks of a coordinate have computed the same.
        sent = staged if self.within.member == 0 else staged.select(())
        return_columns(self.link, index, plan, columns, staged=sent, owned=mine)
        if mine is not self.mine:
            for name in columns:
                setattr(self.mine, name, self._uncut(name, mine))
        return staged, outputs

    def gather(self, columns: Sequence[str]) -> list[Tensor]:
        """Gather per-token columns of all rows, in batch order: (tokens of the batch,) each."""
        return self.gather_tensors([getattr(self.mine, name) for name in columns])

    def gather_tensors(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Gather columns of this rank's rows, (tokens of its groups,) each."""
        return gather_columns(self.link, self.index, columns)

    def set_column(self, column: str, values: Tensor) -> None:
        """Set a column of this rank's rows from that of the whole batch."""
        setattr(self.mine, column, own_tokens(self.index, self.link.member, values))

    def tokens_owned(self) -> list[int]:
        """Return (ranks,) the number of tokens that each rank owns."""
        return self.index.tokens_by_part(self.index.owners, self.link.size)

    def tokens_computed(self) -> list[int]:
        """Return (data-parallel coordinates,) the tokens that each computes."""
        index = self.index.cut(self.costs.parts(self.index, self.dims))
        assigned = self.costs.assigned(index, self.dims)
        return index.tokens_by_part(assigned, self.dims.data_size)

    def _cut(self, index: BatchIndex, mine: Experience) -> tuple[BatchIndex, Experience]:
        """Split groups into parts, if there are too few of them."""
        parts = self.costs.parts(index, self.dims)
        return (index, mine) if parts == 1 else (index.cut(parts), mine.cut(parts))

    def _uncut(self, column: str, cut: Experience) -> Tensor:
        """Return a column of split groups for the own rows; a prompt's is in its first part."""
        values: Tensor = getattr(cut, column)
        if column != "prompt_experts":
            return values
        parts = self.costs.parts(self.index, self.dims)
        return values[cut.prompt_index(torch.arange(0, cut.num_groups, parts))]

    def _balanced(self, index: BatchIndex) -> TransferPlan:
        return TransferPlan(index.owners, self.costs.leaders(index, self.dims))

    def _staged(
        self, index: BatchIndex, plan: TransferPlan, held: Experience, columns: Sequence[str] = ()
    ) -> Experience:
        """Move rows to this rank's coordinate, by a plan for its leader."""
        moved = move_rows(self.link, index, plan, held, columns)
        positions = plan.needed_by(self.dims.leader_of(self.link.member))
        staged = broadcast_rows(self.within, index, positions, moved, columns)
        staged.teachers = list(index.select(positions).teachers)
        return staged

    def _present(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if getattr(self.mine, name) is not None]

    def _held(self, positions: Sequence[int]) -> Experience:
        """Return the groups at these positions that this rank owns, in the same order."""
        samples = self.index.samples
        own = {p: number for number, p in enumerate(self.index.owned_by(self.link.member))}
        groups = [own[p] for p in positions if p in own]
        return self.mine.select([g * samples + sample for g in groups for sample in range(samples)])
