"""Auxiliary-loss-free load balancing of MoE routers: a selection bias that follows expert loads.

After an update in which expert e of a layer got n_e tokens, and n is the mean over experts,

    b_e <- b_e + r sign(n - n_e)

(Wang et al. 2024, arXiv:2408.15664, algorithm 1; DeepSeek-V3: arXiv:2412.19437, section 2.1.2).
Loads count the routers' own choices (also under replay), for all tokens of each row's pass with its
prompt. Counts are integers, so their sums do not depend on the order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_trainer.engine.layout import PackedRows
from ppojob_trainer.models.experts import selection_biases_of
from ppojob_trainer.models.mixtures import experts_key
from ppojob_trainer.models.routes import expert_mask
from ppojob_trainer.parallel.boxes import box_of, local_part
from ppojob_trainer.parallel.collectives import sum_over_ranks
from ppojob_trainer.parallel.sequence import SequenceRanks
from ppojob_trainer.parallel.world import World


class RouterLoads:
    """Tokens per expert in the passes of one update; every rank counts its own."""

    def __init__(self, model: PreTrainedModel, world: World, ranks: SequenceRanks) -> None:
        """Begin an update; `ranks` share the tokens of a pass."""
        self._biases = selection_biases_of(model)
        config: Any = model.config
        own = config.to_dict()
        self._shape = int(config.num_hidden_layers), int(own[experts_key(own)])
        self._world = world
        self._ranks = ranks
        self._passes: list[dict[int, Tensor]] = []
        self._summed: dict[int, Tensor] = {}

    def of_pass(self, packed: PackedRows, device: torch.device) -> PassLoads:
        """Return the counter of the next pass; `packed` are the tokens of all its ranks."""
        own = packed.tokens_of(self._ranks.number, self._ranks.size)
        one = PassLoads(_readers(packed)[own].to(device))
        self._passes.append(one.counted)
        return one

    def max_violation(self) -> float:
        """Return the mean over layers of (largest load - mean load) / mean load.

        A collective of all ranks, called once.
        """
        loads = self._over_ranks()
        self._summed = {layer: loads[layer] for layer in self._biases}
        used = loads[loads.sum(dim=1) > 0].double()
        if not len(used):
            return 0.0
        return float((used.amax(dim=1) / used.mean(dim=1) - 1.0).mean())

    def move_biases(self, rate: float) -> None:
        """Move each bias of this rank by the loads of all ranks."""
        for layer, bias in self._biases.items():
            loads = self._summed[layer]
            # The mean may not be a float; multiplied by the number of experts both sides are
            # integers.
            signs = (loads.sum() - loads * len(loads)).sign().view(bias.shape)
            own = local_part(bias.detach())
            own.add_(box_of(bias).of(signs).to(own), alpha=rate)

    def _over_ranks(self) -> Tensor:
        """Return (layers, E) int64 in host memory; tensor-parallel ranks have the same tokens."""
        loads = torch.zeros(self._shape, dtype=torch.int64)
        number, _ = self._world.dims.place(self._world.rank, "tensor")
        for layer in self._biases if number == 0 else ():
            if of_passes := [one[layer] for one in self._passes if layer in one]:
                loads[layer] = torch.stack(of_passes).sum(dim=0).cpu()
        told = sum_over_ranks(self._world, loads.flatten().tolist())
        return torch.tensor(told, dtype=torch.float64).long().view(self._shape)


class PassLoads:
    """Tokens per expert in one forward pass."""

    def __init__(self, readers: Tensor) -> None:
        self.counted: dict[int, Tensor] = {}  # (E,) int64 of each layer
        self._readers = readers  # (t,) int64

    def attach(self, layer: int, logits: Tensor, chosen: Tensor, carrier: Tensor) -> Tensor:
        """Count the experts `chosen` (t, k) by a layer's router; returns the carrier unchanged.

        A layer that activation checkpointing recomputes is counted once.
        """
        if layer not in self.counted:
            goes = expert_mask(logits, chosen)
            self.counted[layer] = (self._readers[:, None] * goes).sum(dim=0)
        return carrier


def _readers(packed: PackedRows) -> Tensor:
    """Return (packed,) int64: in how many rows with a trained token each token is read."""
    readers = torch.zeros(len(packed.input_ids), dtype=torch.int64)
    for spans in packed.readings:
        for span in spans:
            readers[span.start : span.start + span.length] += 1
    return readers
