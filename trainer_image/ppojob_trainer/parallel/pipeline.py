"""Pipeline ranks: each computes a run of a model's layers, one micro-batch after the other.

Hidden states of a micro-batch go from stage to stage, and their gradients come back. Micro-batches
take turns as in 1F1B (Narayanan et al. 2021, arXiv:2104.04473): a stage runs ahead by one forward
pass for each stage behind it and then does a backward pass for each forward pass, so it keeps the
activations of as many micro-batches as there are stages from it to the end.

No order of ranks can lock them. Of S stages let forward pass i at stage s have the number 2i + s,
and backward pass i the number 2i + 2S - 1 - s. A pass waits for what it receives, from the pass of
the neighbour; for the pass before it at its own stage; and for a neighbour to take what the pass
before it in the same direction has sent. Each of those has a smaller number, so the pass with the
smallest of all that are not done can go on. Ranks of one stage go through the same passes together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.parallel.world import World

Turn = Literal["forward", "backward"]


def turns(passes: int, behind: int) -> Iterator[tuple[Turn, int]]:
    """In which order a stage with so many behind it passes micro-batches, by their numbers."""
    for number in range(passes + behind):
        if number < passes:
            yield "forward", number
        if number >= behind:
            yield "backward", number - behind


@contextmanager
def _untraced() -> Iterator[None]:
    """Keep torch.profiler from an operation of gloo: where it ends later, the process crashes.

    A send may end behind the trace that it began in (torch 2.13).
    """
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)


@dataclass(slots=True)
class _Lane:
    """The way of tensors in one direction; at most one that was sent is not taken yet.

    Each direction has a group of its own: on a GPU what was sent holds up what comes behind it.
    """

    group: dist.ProcessGroup
    _sent: tuple[dist.Work, Tensor] | None = None

    def send(self, tensor: Tensor, stage: int) -> None:
        if self._sent is not None:
            self._sent[0].wait()
        kept = tensor.contiguous()
        with _untraced():
            self._sent = self.group.send([kept], stage, 0), kept

    def receive(self, into: Tensor, stage: int) -> Tensor:
        with _untraced():
            self.group.recv([into], stage, 0).wait()
        return into


@dataclass(slots=True)
class PipelineRanks:
    """The ranks of a data-parallel coordinate that have its stages; by itself a rank has all."""

    number: int = 0  # of this rank's stage
    size: int = 1
    _lanes: list[_Lane] = field(default_factory=list)  # onward and back; none where there is one

    @classmethod
    def of(cls, world: World) -> PipelineRanks:
        """Those of this rank."""
        number, size = world.dims.place(world.rank, "pipeline")
        groups = world.along("pipeline"), world.back
        return cls(number, size, [_Lane(group) for group in groups if group is not None])

    @property
    def is_first(self) -> bool:
        """Whether this stage has the embedding."""
        return self.number == 0

    @property
    def behind(self) -> int:
        """Stages behind this one."""
        return self.size - 1 - self.number

    @property
    def is_last(self) -> bool:
        """Whether this stage has the head."""
        return self.behind == 0

    def send(self, states: Tensor) -> None:
        """Hand hidden states on to the next stage, which calls `receive`."""
        self._lanes[0].send(states, self.number + 1)

    def receive(self, into: Tensor) -> Tensor:
        """Take hidden states from the stage before, into a tensor of their shape and type."""
        return self._lanes[0].receive(into, self.number - 1)

    def send_back(self, gradient: Tensor) -> None:
        """Give the gradient of what was received to the stage before."""
        self._lanes[1].send(gradient, self.number - 1)

    def receive_back(self, states: Tensor) -> Tensor:
        """The gradient of what was handed on."""
        into = torch.empty_like(states, memory_format=torch.contiguous_format)
        return self._lanes[1].receive(into, self.number + 1)

    def told(self, tensor: Tensor, stage: int) -> Tensor:
        """The tensor of one stage, on all; the others give one of its shape, type and device."""
        if self.size > 1:
            dist.broadcast(tensor, group=self._lanes[0].group, group_src=stage)
        return tensor

    def told_by_last(
        self, columns: Sequence[Tensor], length: int, device: torch.device
    ) -> tuple[Tensor, ...]:
        """The columns (length,) of the last stage, float32 in host memory, on all.

        The others have none, and do not know how many there are.
        """
        if self.size == 1:
            return tuple(columns)
        last = self.size - 1
        count = int(self.told(torch.tensor(len(columns), device=device), last))
        table = torch.stack(list(columns)) if self.is_last else torch.empty(count, length)
        return self.told(table.to(device), last).cpu().unbind()

    def add_ends(self, gradient: Tensor) -> None:
        """Make the gradients that the first and the last stage have of one weight their sum.

        Those two call it; a + b has the same bits as b + a. One sends before it receives, and the
        other after: nccl connects two ranks in the first send between them, which waits for the
        other's receive then.
        """
        own, other = gradient.clone(), torch.empty_like(gradient)
        if self.is_first:
            self._lanes[0].send(own, self.size - 1)
            self._lanes[1].receive(other, self.size - 1)
        else:
            self._lanes[0].receive(other, 0)
            self._lanes[1].send(own, 0)
        gradient.add_(other)
