"""Expert parallelism: each rank holds some experts of every layer; rows are sent by all-to-all.

As in GShard (Lepikhin et al. 2020, arXiv:2006.16668), without a capacity: no row is dropped. A row
is a token for one of its experts. Gradients are sent back the same way and accumulate at the
experts, so no factor appears.

Tensor-parallel ranks have the same tokens, and each dispatches some of them: the output for its own
tokens, zero for the others, is its partial sum of the layer's output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.parallel.linear_map import linear_map
from ppojob_trainer.parallel.world import World


@dataclass(frozen=True, slots=True)
class ExpertRanks:
    """The ranks that hold the experts of each layer, equally many; by default one with all.

    All of them call each method, in the same order.
    """

    number: int = 0  # index of this rank among them
    size: int = 1
    group: dist.ProcessGroup | None = None  # None for one rank
    tensor: tuple[int, int] = (0, 1)  # index and number of the ranks with the same tokens

    @classmethod
    def of(cls, world: World) -> "ExpertRanks":
        """Return the expert-parallel ranks of this rank."""
        group = world.experts
        if group is None:
            return cls()
        return cls(group.rank(), group.size(), group, world.dims.place(world.rank, "tensor"))

    def own_tokens(self, count: int) -> slice:
        """Return the range of tokens that this rank dispatches, maybe empty."""
        number, size = self.tensor
        return slice(count * number // size, count * (number + 1) // size)

    def holder(self, expert: int, experts: int) -> int:
        """Return the rank that holds an expert; `experts` is a multiple of the ranks."""
        return expert // (experts // self.size)

    def held(self, experts: int) -> range:
        """Return the range of experts that this rank holds."""
        count = experts // self.size
        return range(self.number * count, (self.number + 1) * count)

    def plan_exchange(self, counts: Tensor) -> "RowExchange":
        """Plan the dispatch of rows, (experts,) int64 of which go to each expert; a collective."""
        if self.group is None:
            return RowExchange(counts)
        sent = counts.view(self.size, -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        send_counts, receive_counts = torch.stack([sent.sum(dim=1), received.sum(dim=1)]).tolist()
        experts = torch.arange(sent.shape[1], device=counts.device).expand_as(received).flatten()
        of_rows = experts.repeat_interleave(received.flatten(), output_size=sum(receive_counts))
        # Rows of an expert are ordered by rank, so that sums have one order.
        order = of_rows.argsort(stable=True)
        return RowExchange(received.sum(dim=0), order, send_counts, receive_counts, self.group)

    def broadcast(self, tensor: Tensor, holder: int) -> Tensor:
        """Broadcast a tensor from one rank; the others pass one of its shape, dtype and device."""
        if self.group is not None:
            dist.broadcast(tensor, group=self.group, group_src=holder)
        return tensor


ALL_EXPERTS: Final = ExpertRanks()
"""A rank that holds all experts."""


@dataclass(frozen=True, slots=True)
class RowExchange:
    """Dispatch and combine of rows sorted by expert, in one call of a layer's experts."""

    counts: Tensor  # (held experts,) int64, rows that each receives from all ranks
    _order: Tensor | None = None  # received rows, sorted by expert; None without communication
    _sent: Sequence[int] = ()  # rows for each rank
    _received: Sequence[int] = ()  # rows of each rank
    _group: dist.ProcessGroup | None = None

    def dispatch(self, rows: Tensor) -> Tensor:
        """Send (s, h) of this rank, sorted by all experts; return (r, h), sorted by held ones."""
        if self._order is None:
            return rows
        return linear_map(rows, self._send, self._send_back)[self._order]

    def combine(self, outputs: Tensor) -> Tensor:
        """Return the outputs (r, h) of received rows to their senders: (s, h), in sent order."""
        if self._order is None:
            return outputs
        places = torch.empty_like(self._order)
        places[self._order] = torch.arange(len(self._order), device=outputs.device)
        return linear_map(outputs[places], self._send_back, self._send)

    def _send(self, rows: Tensor) -> Tensor:
        return self._all_to_all(rows, self._sent, self._received)

    def _send_back(self, rows: Tensor) -> Tensor:
        return self._all_to_all(rows, self._received, self._sent)

    def _all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        output = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(output, rows.contiguous(), received, sent, group=self._group)
        return output
