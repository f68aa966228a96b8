"""Pipeline parallelism: each rank computes a stage of the layers, micro-batch after micro-batch.

Hidden states of a micro-batch go from stage to stage, and their gradients come back. The schedule
is 1F1B (Narayanan et al. 2021, arXiv:2104.04473): a stage runs ahead by one forward pass for each
stage after it, and then alternates backward and forward passes, so it keeps the activations of as
many micro-batches as there are stages from it to the end.

The schedule cannot deadlock. Of S stages let forward pass i at stage s have the number 2i + s,
and backward pass i the number 2i + 2S - 1 - s. A pass waits for the neighbour's pass that it
receives from; for the pass before it at its own stage; and for a neighbour to receive what the pass
before it in the same direction has sent. Each of those has a smaller number, so the unfinished pass
with the smallest number can proceed. Ranks of one stage go through the same passes together.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.parallel.world import World

Direction = Literal["forward", "backward"]


def schedule_1f1b(passes: int, stages_after: int) -> Iterator[tuple[Direction, int]]:
    """Return the 1F1B order of a stage's passes."""
    for number in range(passes + stages_after):
        if number < passes:
            yield "forward", number
        if number >= stages_after:
            yield "backward", number - stages_after


@contextmanager
def _untraced() -> Iterator[None]:
    """Hide a gloo operation from torch.profiler, which crashes if it ends after the trace.

    As a send may (torch 2.13).
    """
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)


@dataclass(slots=True)
class _Lane:
    """Transfers in one direction; at most one sent tensor is in flight.

    Each direction has its own group: on a GPU a pending send blocks what follows it in a group.
    """

    group: dist.ProcessGroup
    _sent: tuple[dist.Work, Tensor] | None = None

    def send(self, tensor: Tensor, stage: int) -> None:
        if self._sent is not None:
            self._sent[0].wait()
        sent = tensor.contiguous()
        with _untraced():
            self._sent = self.group.send([sent], stage, 0), sent

    def receive(self, into: Tensor, stage: int) -> Tensor:
        with _untraced():
            self.group.recv([into], stage, 0).wait()
        return into


@dataclass(slots=True)
class PipelineRanks:
    """The pipeline stages of a data-parallel coordinate; alone a rank is the only stage."""

    number: int = 0  # this rank's stage
    size: int = 1
    _lanes: list[_Lane] = field(default_factory=list)  # forward and backward; empty for one stage

    @classmethod
    def of(cls, world: World) -> "PipelineRanks":
        """Return the pipeline of this rank."""
        number, size = world.dims.place(world.rank, "pipeline")
        groups = world.along("pipeline"), world.back
        return cls(number, size, [_Lane(group) for group in groups if group is not None])

    @property
    def is_first(self) -> bool:
        """Whether this stage has the embedding."""
        return self.number == 0

    @property
    def stages_after(self) -> int:
        """Number of stages after this one."""
        return self.size - 1 - self.number

    @property
    def is_last(self) -> bool:
        """Whether this stage has the head."""
        return self.stages_after == 0

    def send(self, states: Tensor) -> None:
        """Send hidden states to the next stage, which calls `receive`."""
        self._lanes[0].send(states, self.number + 1)

    def receive(self, into: Tensor) -> Tensor:
        """Receive hidden states from the previous stage into a tensor of their shape and dtype."""
        return self._lanes[0].receive(into, self.number - 1)

    def send_back(self, gradient: Tensor) -> None:
        """Send the gradient of received states to the previous stage."""
        self._lanes[1].send(gradient, self.number - 1)

    def receive_back(self, states: Tensor) -> Tensor:
        """Receive the gradient of sent states."""
        into = torch.empty_like(states, memory_format=torch.contiguous_format)
        return self._lanes[1].receive(into, self.number + 1)

    def broadcast(self, tensor: Tensor, stage: int) -> Tensor:
        """Broadcast a tensor from a stage; the others pass one of its shape, dtype and device."""
        if self.size > 1:
            dist.broadcast(tensor, group=self._lanes[0].group, group_src=stage)
        return tensor

    def broadcast_from_last(
        self, columns: Sequence[Tensor], length: int, device: torch.device
    ) -> tuple[Tensor, ...]:
        """Broadcast the last stage's columns (length,), float32 in host memory.

        The other stages pass none; their number is broadcast too.
        """
        if self.size == 1:
            return tuple(columns)
        last = self.size - 1
        count = int(self.broadcast(torch.tensor(len(columns), device=device), last))
        table = torch.stack(list(columns)) if self.is_last else torch.empty(count, length)
        return self.broadcast(table.to(device), last).cpu().unbind()

    def all_reduce_ends(self, gradient: Tensor) -> None:
        """Sum the gradients that the first and the last stage have of a tied weight, in place.

        Both call it; a + b has the same bits as b + a. One sends before it receives, the other
        after: nccl connects two ranks in their first send, which waits for the matching receive.
        """
        own, other = gradient.clone(), torch.empty_like(gradient)
        if self.is_first:
            self._lanes[0].send(own, self.size - 1)
            self._lanes[1].receive(other, self.size - 1)
        else:
            self._lanes[0].receive(other, 0)
            self._lanes[1].send(own, 0)
        gradient.add_(other)
