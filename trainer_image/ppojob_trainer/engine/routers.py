"""MoE routers in an update: their losses, and their selection bias."""

from __future__ import annotations

import msgspec
import torch
from transformers import PreTrainedModel

from ppojob_trainer.engine.layout import PackedRows
from ppojob_trainer.engine.router_loads import RouterLoads
from ppojob_trainer.engine.router_losses import RouterCoefficients, RouterLosses
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.routes import Attach
from ppojob_trainer.parallel.collectives import sum_over_ranks
from ppojob_trainer.parallel.sequence import SequenceRanks
from ppojob_trainer.parallel.world import World


class Routers:
    """The routers of a model in one update; a collective of all ranks makes one."""

    def __init__(
        self,
        coefficients: RouterCoefficients,
        model: PreTrainedModel,
        world: World,
        ranks: SequenceRanks,
        rows: float,
        scale: float,
    ) -> None:
        """Begin an update.

        Args:
            coefficients: of the losses, and of the bias.
            model: with the routers.
            world: the ranks that compute the update.
            ranks: the sequence-parallel ranks among them.
            rows: see `RouterLosses`.
            scale: see `RouterLosses`.
        """
        self._coefficients = coefficients
        self._layers: int = model.config.num_hidden_layers
        self._world = world
        self._losses: RouterLosses | None = None
        self._loads: RouterLoads | None = None
        if coefficients.has_losses:
            _, tensor = world.dims.place(world.rank, "tensor")
            self._losses = RouterLosses(coefficients, rows, ranks, tensor, scale)
        if coefficients.bias_rate:
            self._loads = RouterLoads(model, world, ranks)

    def of_pass(self, packed: PackedRows, device: torch.device) -> Attach:
        """Return what is attached to each router in the next pass.

        A router with a selection bias has no losses (`models.layout_checks`).
        """
        part = self._losses or self._loads
        assert part is not None, "there are losses, or a bias that moves"
        return part.of_pass(packed, device).attach

    def with_measured(self, measured: PassStatistics, area: str) -> PassStatistics:
        """Add the router metrics, after all passes of an update; a collective of all ranks."""
        values, own = dict(measured.values), self._coefficients
        if self._losses is not None:
            balance, z = sum_over_ranks(self._world, self._losses.measured())
            values[f"{area}/loss"] += own.balance * balance + own.z * z
            values[f"{area}/router_balance_loss"] = balance / self._layers
            values[f"{area}/router_z_loss"] = z / self._layers
        if self._loads is not None:
            values[f"{area}/router_max_violation"] = self._loads.max_violation()
        return msgspec.structs.replace(measured, values=values)

    def follow(self) -> None:
        """Move the selection bias after the optimizer's step, if a rate is set."""
        if self._loads is not None:
            self._loads.move_biases(self._coefficients.bias_rate)
