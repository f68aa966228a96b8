"""MoE routers: losses and bias updates in an update, and records for replay.

Losses of a row of n tokens, in each layer of E experts of which a token gets k, with logits x and
p = softmax(x), over all tokens of the row's forward pass, its prompt included:

    balance = E Σ_e f_e P_e    f_e = 1/(k n) Σ_t [the router sends t to e],  P_e = 1/n Σ_t p_te
    z       = 1/n Σ_t logsumexp(x_t)²

the sequence-wise balance loss (DeepSeek-V2: arXiv:2405.04434, section 2.1.4) and the z-loss
(ST-MoE: Zoph et al. 2022, arXiv:2202.08906, equation 5). They are summed over layers, and averaged
over the rows of the mini-batch with a trained token.

Bias updates balance loads without a loss (Wang et al. 2024, arXiv:2408.15664, algorithm 1;
DeepSeek-V3: arXiv:2412.19437, section 2.1.2). After an update in which expert e of a layer got n_e
tokens, n the mean over experts: `b_e <- b_e + r sign(n - n_e)`. Loads count the routers' own
choices, also under replay, for all tokens of each row's pass. As integers they have the same sum in
any order.
"""

from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.engine.packed_rows import PackedRows
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.architectures import sizes_by
from ppojob_trainer.models.experts import selection_biases_of
from ppojob_trainer.models.pipeline_stages import PipelineStage, layers_of
from ppojob_trainer.models.routes import (
    EXPERT_DTYPE,
    AttachLoss,
    Routes,
    expert_mask,
    experts_per_token,
)
from ppojob_trainer.parallel.boxes import box_of, local_part
from ppojob_trainer.parallel.collectives import sum_over_ranks
from ppojob_trainer.parallel.sequence import SequenceRanks
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience


class Routers:
    """The routers of a model in an update: their losses, or the loads that move their bias."""

    def __init__(
        self, spec: AlgorithmSpec, model: PreTrainedModel, world: World, ranks: SequenceRanks
    ) -> None:
        """`ranks` are the sequence-parallel ranks that share the tokens of a pass."""
        self._sizes = sizes_by(model.config.to_dict())
        self._biases = selection_biases_of(model) if spec.router_bias_rate else {}
        self._spec = spec
        self._balance, self._z = spec.router_balance_coefficient, spec.router_z_coefficient
        self._world = world
        self._ranks = ranks
        self._number, self._copies = world.dims.place(world.rank, "tensor")
        self.begin(1.0, 1.0)

    def begin(self, rows: float, scale: float) -> None:
        """Start an update of `rows` rows with a trained token; gradients have this scale."""
        # Tensor-parallel ranks have replicated routers, whose gradients are summed.
        self._share = 1.0 / (max(rows, 1.0) * self._copies)
        self._scale = scale
        self._passes: list[dict[int, Tensor]] = []  # by layer: (2,) losses or (E,) int64 loads
        self._loads: dict[int, Tensor] = {}  # of all passes and ranks

    def of_pass(self, packed: PackedRows, device: torch.device) -> AttachLoss:
        """Return the function that the routers call in the next pass, over `packed` tokens."""
        own = packed.tokens_of(self._ranks.number, self._ranks.size)
        reads, measured = _reads(packed)[:, own], dict[int, Tensor]()
        self._passes.append(measured)
        if self._spec.has_router_losses:
            return partial(self._attach_losses, measured, reads.to(device))
        return partial(_count_loads, measured, (reads > 0).sum(dim=0).to(device))

    def with_measured(self, measured: PassStatistics, area: str) -> PassStatistics:
        """Add the router metrics after all passes of an update; a collective of all ranks.

        `router_max_violation` is the mean over layers of (largest - mean load) / mean load.
        """
        values, spec = dict(measured.values), self._spec
        if spec.has_router_losses:
            parts = [part for one in self._passes for part in one.values()]
            mine = torch.stack(parts).double().sum(dim=0).tolist() if parts else (0.0, 0.0)
            balance, z = sum_over_ranks(self._world, mine)
            values[f"{area}/loss"] += self._balance * balance + self._z * z
            layers = sum(map(self._sizes.has_experts, range(self._sizes.layers)))
            values[f"{area}/router_balance_loss"] = balance / layers
            values[f"{area}/router_z_loss"] = z / layers
        if spec.router_bias_rate:
            loads = self._sum_loads()
            self._loads = {layer: loads[layer] for layer in self._biases}
            used = loads[loads.sum(dim=1) > 0].double()
            excess = used.amax(dim=1) / used.mean(dim=1) - 1.0 if len(used) else torch.zeros(1)
            values[f"{area}/router_max_violation"] = float(excess.mean())
        return msgspec.structs.replace(measured, values=values)

    def update_biases(self) -> None:
        """Move the selection biases of this rank by the loads, after the optimizer's step."""
        for layer, bias in self._biases.items():
            loads = self._loads[layer]
            # The mean times the number of experts, so that both sides are integers.
            signs = (loads.sum() - loads * len(loads)).sign().view(bias.shape)
            own = local_part(bias.detach())
            own.add_(box_of(bias).of(signs).to(own), alpha=self._spec.router_bias_rate)

    def _attach_losses(
        self,
        measured: dict[int, Tensor],
        reads: Tensor,
        layer: int,
        logits: Tensor,
        chosen: Tensor,
        carrier: Tensor,
    ) -> Tensor:
        """Add the gradient of a router's losses to the backward pass of its layer.

        The losses are computed within the layer, so activation checkpointing recomputes them, and
        no pipeline stage waits for another's. They are stored in `measured`. `reads` are (rows, t)
        of `_reads`, `logits` (t, E) and `chosen` (t, k) the router's own experts; the `carrier`, a
        tensor that the layer computes with, is returned unchanged.
        """
        with torch.autocast(logits.device.type, enabled=False):
            numbers = logits.float()
            loads = self._ranks.all_reduce_(reads @ expert_mask(logits, chosen).float())
            probabilities = reads @ numbers.softmax(dim=-1)
            balance = (loads * probabilities).sum() * (logits.shape[1] / chosen.shape[1])
            z = (reads @ numbers.logsumexp(dim=-1).square()).sum()
            balance, z = balance * self._share, z * self._share
            measured.setdefault(layer, torch.stack([balance.detach(), z.detach()]))
            loss = (self._balance * self._scale) * balance + (self._z * self._scale) * z
        attached: Tensor = _Attached.apply(carrier, loss)  # type: ignore[no-untyped-call]
        return attached

    def _sum_loads(self) -> Tensor:
        """Return (layers, E) int64 in host memory, over all ranks."""
        loads = torch.zeros((self._sizes.layers, self._sizes.experts), dtype=torch.int64)
        for layer in self._biases if self._number == 0 else ():  # tensor ranks have the same tokens
            if of_passes := [one[layer] for one in self._passes if layer in one]:
                loads[layer] = torch.stack(of_passes).sum(dim=0).cpu()
        total = sum_over_ranks(self._world, loads.flatten().tolist())
        return torch.tensor(total, dtype=torch.float64).long().view(loads.shape)


def _count_loads(
    measured: dict[int, Tensor],
    readers: Tensor,
    layer: int,
    logits: Tensor,
    chosen: Tensor,
    carrier: Tensor,
) -> Tensor:
    """Count the experts `chosen` (t, k) by a router, once per pass; returns the carrier.

    `readers` (t,) int64 are the rows that read each token.
    """
    if layer not in measured:
        measured[layer] = (readers[:, None] * expert_mask(logits, chosen)).sum(dim=0)
    return carrier


def _reads(packed: PackedRows) -> Tensor:
    """Return (rows, packed): 1/n at the n context tokens of each row with a trained token."""
    reads = torch.zeros(len(packed.readings), len(packed.input_ids))
    for row, spans in enumerate(packed.readings):
        of_row = sum(span.length for span in spans)
        for span in spans:
            reads[row, span.start : span.start + span.length] = 1.0 / of_row
    return reads


class _Attached(torch.autograd.Function):
    """Identity whose backward pass also runs through a loss."""

    @staticmethod
    def forward(_ctx: Any, carrier: Tensor, _loss: Tensor) -> Tensor:
        return carrier.view_as(carrier)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0].new_ones((), dtype=torch.float32)


class RouterRecord:
    """Experts of all tokens of some rows; prompts once per group, by their last pass.

    Padding has expert 0.
    """

    def __init__(self, rows: Experience, config: Any) -> None:
        self._rows = rows
        self._layers: int = config.num_hidden_layers
        self._sizes = [int(rows.prompt_lengths.sum()), rows.num_tokens]
        shape = (sum(self._sizes), self._layers, experts_per_token(config))
        self._experts = torch.zeros(shape, dtype=EXPERT_DTYPE)

    def add(self, rows: Tensor, routes: Routes, ranks: SequenceRanks) -> None:
        """Record the routes of a pass over some rows; a collective of the sequence ranks."""
        chosen = ranks.all_gather(routes.chosen(self._layers)).cpu()
        groups = torch.tensor(list(dict.fromkeys(self._rows.row_groups[rows].tolist())))
        of_prompts = self._rows.prompt_index(groups.to(torch.int64))
        places = torch.cat([of_prompts, self._sizes[0] + self._rows.token_index(rows)])
        packed = torch.arange(len(routes.sources))[routes.sources >= 0]
        last = torch.full(places.shape, -1)
        last.scatter_reduce_(0, routes.sources[packed], packed, "amax")
        self._experts[places[last >= 0]] = chosen[last[last >= 0]]

    def store(self, stage: PipelineStage, device: torch.device) -> None:
        """Store the record in the rows; a collective of all pipeline stages."""
        for number in range(stage.ranks.size if stage.ranks.size > 1 else 0):
            own = layers_of(number, range(stage.ranks.size), self._layers)
            part = self._experts[:, own.start : own.stop].contiguous().to(device)
            received = stage.ranks.broadcast(part.view(torch.uint8), number).view(EXPERT_DTYPE)
            self._experts[:, own.start : own.stop] = received.cpu()
        self._rows.prompt_experts, self._rows.experts = torch.split(self._experts, self._sizes)


def routes_of(
    rows: Experience,
    sources: Tensor,
    own: Tensor,
    device: torch.device,
    *,
    records: bool,
    attach: AttachLoss | None = None,
) -> Routes | None:
    """Return the routes of a pass: replayed from the rows, or recorded; None for neither.

    `sources` are of all packed tokens, `own` of those of this rank.
    """
    if rows.experts is None or rows.prompt_experts is None:
        is_asked = records or attach is not None
        return Routes(sources=sources, attach=attach) if is_asked else None
    given = torch.cat([rows.prompt_experts, rows.experts])[own]
    return Routes(given.to(device), attach=attach)
