"""MoE router losses: load balancing and z-loss, added to the objective.

Of a row of n tokens, in each layer of E experts of which a token gets k, with logits x and
p = softmax(x), over all tokens that the row's pass reads, its prompt's too:

    balance = E Σ_e f_e P_e    f_e = 1/(k n) Σ_t [the router sends t to e],  P_e = 1/n Σ_t p_te
    z       = 1/n Σ_t logsumexp(x_t)²

the sequence-wise balance loss (DeepSeek-V2: arXiv:2405.04434, section 2.1.4; 1 where loads are
even) and the z-loss (ST-MoE: Zoph et al. 2022, arXiv:2202.08906, equation 5). Layers are summed;
rows with a trained token are averaged over the whole mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.engine.layout import PackedRows
from ppojob_trainer.models.routes import expert_mask
from ppojob_trainer.parallel.sequence import SequenceRanks


@dataclass(frozen=True, slots=True)
class RouterCoefficients:
    """Coefficients of the router losses, and the rate of the selection bias."""

    balance: float
    z: float
    bias_rate: float = 0.0

    @classmethod
    def of(cls, spec: AlgorithmSpec) -> RouterCoefficients | None:
        """Return those of a job; None without any."""
        own = cls(spec.router_balance_coefficient, spec.router_z_coefficient, spec.router_bias_rate)
        return own if own.has_losses or own.bias_rate else None

    @property
    def has_losses(self) -> bool:
        """Whether the loss has router terms."""
        return self.balance > 0.0 or self.z > 0.0


class RouterLosses:
    """Router losses of the passes of one update; each rank measures its share."""

    def __init__(
        self,
        coefficients: RouterCoefficients,
        rows: float,
        ranks: SequenceRanks,
        tensor: int,
        scale: float = 1.0,
    ) -> None:
        """Begin an update.

        Args:
            coefficients: of both losses.
            rows: rows with a trained token in the mini-batch, over all ranks.
            ranks: the sequence-parallel ranks that share the tokens of a pass.
            tensor: ranks with replicated routers, whose gradients are summed.
            scale: of gradients, as of the other losses.
        """
        self._coefficients = RouterCoefficients(
            balance=coefficients.balance * scale, z=coefficients.z * scale
        )
        self._share = 1.0 / (max(rows, 1.0) * tensor)
        self._ranks = ranks
        self._passes: list[dict[int, Tensor]] = []

    def of_pass(self, packed: PackedRows, device: torch.device) -> PassLosses:
        """Return the losses of the next pass; `packed` are the tokens of all its ranks."""
        own = packed.tokens_of(self._ranks.number, self._ranks.size)
        reads = _reads(packed)[:, own].to(device)
        one = PassLosses(self._coefficients, self._share, reads, self._ranks)
        self._passes.append(one.measured)
        return one

    def measured(self) -> tuple[float, float]:
        """Return this rank's share of the balance and the z-loss, summed over its layers."""
        told = [part for one in self._passes for part in one.values()]
        balance, z = torch.stack(told).double().sum(dim=0).tolist() if told else (0.0, 0.0)
        return balance, z


class PassLosses:
    """Router losses of one forward pass."""

    def __init__(
        self, coefficients: RouterCoefficients, share: float, reads: Tensor, ranks: SequenceRanks
    ) -> None:
        self.measured: dict[int, Tensor] = {}  # (2,) of each layer
        self._coefficients = coefficients
        self._share = share
        self._reads = reads  # (rows, t)
        self._ranks = ranks

    def attach(self, layer: int, logits: Tensor, chosen: Tensor, carrier: Tensor) -> Tensor:
        """Add the gradient of a router's losses to the backward pass of its layer.

        The losses are computed in the layer, and recomputed with it under activation checkpointing:
        so none of them is stored, and no pipeline stage waits for another's.

        Args:
            layer: its number in the model.
            logits: (t, E) of this rank's tokens.
            chosen: (t, k) experts by the router's own choice, also under replay.
            carrier: a tensor that the layer computes with; returned unchanged.
        """
        with torch.autocast(logits.device.type, enabled=False):
            numbers = logits.float()
            loads = self._ranks.all_reduce_(self._reads @ expert_mask(logits, chosen).float())
            probabilities = self._reads @ numbers.softmax(dim=-1)
            balance = (loads * probabilities).sum() * (logits.shape[1] / chosen.shape[1])
            z = (self._reads @ numbers.logsumexp(dim=-1).square()).sum()
            balance, z = balance * self._share, z * self._share
            self.measured.setdefault(layer, torch.stack([balance.detach(), z.detach()]))
            loss = self._coefficients.balance * balance + self._coefficients.z * z
        attached: Tensor = _Attached.apply(carrier, loss)  # type: ignore[no-untyped-call]
        return attached


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
