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
from ppojob_trainer.rows.assignment import assign, assign_kinds, group_costs
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.exchange import (
    TransferPlan,
    gather_columns,
    hand_on,
    move_rows,
    own_tokens,
    return_columns,
)
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True)
class GroupCosts:
    """What groups cost those who compute them; see `rows.assignment`.

    The linear cost is the policy's, for all models: what matters is that all ranks of all roles
    plan alike.
    """

    linear: int
    share_prompts: bool
    whole_groups: bool = False  # whether the rows of a group are computed together, as pairs are

    def parts(self, index: BatchIndex, dims: ParallelDims) -> int:
        """Into how many parts groups are cut, which are 1 unless there are too few for all."""
        return 1 if self.whole_groups else index.parts_for(dims.data_size)

    def assigned(self, index: BatchIndex, dims: ParallelDims) -> tuple[int, ...]:
        """(groups,) the data-parallel coordinate that computes each, of about equal costs.

        Of several models of a reference each takes its turn on all ranks, so its own are balanced.
        """
        costs = group_costs(index, self.linear, share_prompts=self.share_prompts)
        if index.teachers:
            return assign_kinds(costs, index.teachers, dims.data_size)
        return assign(costs, dims.data_size)

    def leaders(self, index: BatchIndex, dims: ParallelDims) -> tuple[int, ...]:
        """(groups,) the rank that gets each group, to share it with those of its coordinate."""
        leaders = dims.leaders
        return tuple(leaders[coordinate] for coordinate in self.assigned(index, dims))


@dataclass
class BatchRows:
    """Rows by batch position."""

    index: BatchIndex  # of all rows of the step, owned by the ranks of this role
    mine: Experience  # the rows of this rank, group after group in batch order
    link: Link  # to the other ranks of this role
    costs: GroupCosts  # by which work is balanced
    dims: ParallelDims  # the layout of the role
    within: Link  # to the other ranks of this rank's data-parallel coordinate

    def staged(self, positions: Sequence[int], columns: Sequence[str]) -> Experience:
        """The rows of a mini-batch that this rank computes, in the order of the mini-batch.

        Their mask is the `update_mask`, where there is one. The mask of the rows themselves stays,
        so a model that reads them again reads what it read before. A row that was drawn several
        times comes as often. Columns come along where the job has them.
        """
        index, held = self._cut(self.index.select(positions), self._held(positions))
        plan = self._balanced(index)
        present = self._present((*columns, "update_mask", "copies"))
        staged = self._staged(index, plan, held, present)
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
        told: Sequence[str] = (),
    ) -> tuple[Experience, TokenOutputs]:
        """Compute a per-token column of all rows, balanced over the ranks, for their owners.

        The first tensor that `compute` gives is the column; those behind it are kept as the
        `further` columns, and so are those columns that it has `told` the rows themselves. It gets
        the rows with the columns that are to be `read`, where the job has them. Returns the rows
        that this rank has computed, and all tensors.
        """
        index, mine = self._cut(self.index, self.mine)
        plan = self._balanced(index)
        staged = self._staged(index, plan, mine, self._present(read))
        outputs = compute(staged)
        columns = (column, *further)
        for name, output in zip(columns, outputs, strict=False):
            setattr(staged, name, output)
        columns = (*columns, *told)
        # All ranks of a coordinate have computed the same; its leader answers.
        answer = staged if self._leads else staged.select(())
        return_columns(self.link, index, plan, columns, staged=answer, owned=mine)
        if mine is not self.mine:
            for name in columns:
                setattr(self.mine, name, self._uncut(name, mine))
        return staged, outputs

    def whole(self, columns: Sequence[str]) -> list[Tensor]:
        """Per-token columns of all rows, in batch order: (tokens of the batch,) each."""
        return self.gathered([getattr(self.mine, name) for name in columns])

    def gathered(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """The same of columns of this rank's rows: (tokens of its groups,) each."""
        return gather_columns(self.link, self.index, columns)

    def keep(self, column: str, values: Tensor) -> None:
        """Set a column of the rows of this rank from that of the whole batch."""
        setattr(self.mine, column, own_tokens(self.index, self.link.member, values))

    def tokens_owned(self) -> list[int]:
        """(ranks,) tokens of the rows that each rank holds."""
        return self.index.tokens_by_part(self.index.owners, self.link.size)

    def tokens_computed(self) -> list[int]:
        """(data-parallel coordinates,) tokens of the rows that each computes, all rows at once."""
        index = self.index.cut(self.costs.parts(self.index, self.dims))
        assigned = self.costs.assigned(index, self.dims)
        return index.tokens_by_part(assigned, self.dims.data_size)

    @property
    def _leads(self) -> bool:
        """Whether this rank is the one of its coordinate that gets rows, and answers."""
        return self.within.member == 0

    def _cut(self, index: BatchIndex, mine: Experience) -> tuple[BatchIndex, Experience]:
        """Groups as they are dealt to coordinates: in parts, where there are too few of them."""
        parts = self.costs.parts(index, self.dims)
        return (index, mine) if parts == 1 else (index.cut(parts), mine.cut(parts))

    def _uncut(self, column: str, cut: Experience) -> Tensor:
        """A column of the own rows, from groups that were cut; of prompts the first part's."""
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
        """The rows that the coordinate of this rank computes, by a plan for its leader."""
        moved = move_rows(self.link, index, plan, held, columns)
        positions = plan.needed_by(self.dims.leader_of(self.link.member))
        staged = hand_on(self.within, index, positions, moved, columns)
        staged.teachers = list(index.select(positions).teachers)
        return staged

    def _present(self, columns: Sequence[str]) -> list[str]:
        """Those of the columns that the job has."""
        return [name for name in columns if getattr(self.mine, name) is not None]

    def _held(self, positions: Sequence[int]) -> Experience:
        """Of the groups at some positions, those that this rank owns, in the same order."""
        samples = self.index.samples
        own = {p: number for number, p in enumerate(self.index.owned_by(self.link.member))}
        groups = [own[p] for p in positions if p in own]
        return self.mine.select([g * samples + sample for g in groups for sample in range(samples)])
