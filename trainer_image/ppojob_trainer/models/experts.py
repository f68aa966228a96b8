"""Experts of a mixture as they lie in files: three matrices of each, under their names there.

transformers stacks the matrices of a layer's experts in two tensors. Here each stays a parameter of
its own, so that loading, ranks, checkpoints, exports and engines know of nothing else.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ppojob_trainer.models.families import FAMILIES, Mixture
from ppojob_trainer.models.mixtures import CORRECTION
from ppojob_trainer.models.routes import follow_routes


class Matrix(nn.Module):
    """A matrix of an expert, which is multiplied together with those of others."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, rows: Tensor) -> Tensor:
        """The matrix, (out, in), in the type that products with such rows are computed in."""
        device = rows.device.type
        is_cast = torch.is_autocast_enabled(device)
        return self.weight.to(torch.get_autocast_dtype(device) if is_cast else self.weight.dtype)


class Expert(nn.Module):
    """The matrices of an expert: those of its gate and inner layer (i, h), and that back (h, i)."""

    def __init__(self, names: Sequence[str], matrices: Sequence[Tensor]) -> None:
        super().__init__()
        for name, weight in zip(names, matrices, strict=True):
            setattr(self, name, Matrix(weight))


class Experts(nn.ModuleList):
    """The experts of a layer, called as those of transformers are."""

    def __init__(self, stacked: Any, names: tuple[str, str, str]) -> None:
        """Take the matrices apart that a module of transformers holds stacked, and name them."""
        gates_and_ups, downs = stacked.gate_up_proj.detach(), stacked.down_proj.detach()
        super().__init__(
            Expert(names, [part.clone() for part in (*pair.chunk(2), down)])
            for pair, down in zip(gates_and_ups, downs, strict=True)
        )
        self._names = names

    def forward(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """What the chosen experts say of each token, weighted and summed.

        Every expert is computed, maybe of no token: ranks add up the gradients of all of them.

        Args:
            states: (t, h) of the tokens.
            chosen: (t, k) int64, the numbers of each token's experts.
            weights: (t, k) how much each counts.
        """
        tokens, count = chosen.shape
        # Each token once for each of its experts, expert by expert.
        order = chosen.flatten().argsort(stable=True)
        ends = torch.bincount(chosen.flatten(), minlength=len(self)).cumsum(0, dtype=torch.int32)
        rows = states.repeat_interleave(count, dim=0)[order]

        def product(rows: Tensor, name: str) -> Tensor:
            matrices = [getattr(expert, name)(rows) for expert in self]
            return grouped_product(rows, ends, matrices)

        gate, up, down = self._names
        said = product(functional.silu(product(rows, gate)) * product(rows, up), down)
        in_turn = torch.empty_like(order)
        in_turn[order] = torch.arange(len(order), device=order.device)
        weighted = said[in_turn].view(tokens, count, -1) * weights[..., None]
        return weighted.sum(dim=1).to(states.dtype)


def split_experts(model: PreTrainedModel) -> None:
    """Let the layers of a model of transformers hold each expert by itself, and follow routes.

    The model is whole, on the meta device or with weights. One without experts stays as it is.
    """
    mixture = mixture_of(model)
    if mixture is None:
        return
    base: Any = model.base_model
    for number, layer in enumerate(base.layers):
        follow_routes(layer, number, model.config.num_experts_per_tok)
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts = Experts(layer.mlp.experts, mixture.matrices)
            _keep_correction(layer.mlp.gate)
            _rename(layer, mixture.block)


def _keep_correction(router: nn.Module) -> None:
    """Let the bias by which a router chooses, if any, go wherever weights go; nobody trains it."""
    bias = getattr(router, CORRECTION, None)
    if bias is not None:
        delattr(router, CORRECTION)
        setattr(router, CORRECTION, nn.Parameter(bias.detach().float(), requires_grad=False))
        kind = type(router)
        router.__class__ = type(f"Exact{kind.__name__}", (_Exact, kind), {})


class _Exact(nn.Module):
    """A router that computes in float32 under autocast too, as those of engines do."""

    def forward(self, states: Tensor, *args: Any) -> Any:
        """What the router says of states."""
        with torch.autocast(states.device.type, enabled=False):
            return super().forward(states, *args)


def _rename(layer: nn.Module, block: str) -> None:
    """Let the feed-forward block of a layer have its name in files; transformers calls it `mlp`."""
    if block != "mlp":
        module = layer.mlp
        del layer.mlp
        setattr(layer, block, module)
        layer.__dict__["mlp"] = module  # found by the layer, and by nobody who asks for modules


def mixture_of(model: PreTrainedModel) -> Mixture | None:
    """What its family says of the mixtures of a model; None of one without experts."""
    return FAMILIES[model.config.model_type].mixture


def freeze_routers(model: PreTrainedModel) -> None:
    """Let the routers of a mixture stay as they are, and what weighs its shared expert."""
    mixture = mixture_of(model)
    assert mixture is not None, "other models are refused"
    ends = tuple(f".{mixture.block}.{one}.weight" for one in ("gate", mixture.shared_gate) if one)
    for name, weight in model.named_parameters():
        if name.endswith(ends):
            weight.requires_grad_(False)


def grouped_product(rows: Tensor, ends: Tensor, matrices: list[Tensor]) -> Tensor:
    """Multiply each run of rows by a matrix of its own: (s, in) -> (s, out).

    Args:
        rows: (s, in), run by run.
        ends: (e,) int32, the row behind each run, which may be empty.
        matrices: e of them, (out, in).
    """
    product: Tensor = _GroupedProduct.apply(rows, ends, *matrices)  # type: ignore[no-untyped-call]
    return product


class _GroupedProduct(torch.autograd.Function):
    """PyTorch's grouped product wants matrices stacked; here a stack lives no longer than it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ends: Tensor, *matrices: Tensor) -> Tensor:
        stack = torch.stack(matrices)
        rows = rows.to(stack.dtype)
        ctx.save_for_backward(rows, ends, *matrices)
        return functional.grouped_mm(rows, stack.mT, offs=ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, ends, *matrices = ctx.saved_tensors
        needs_rows, _, *needs_matrices = ctx.needs_input_grad
        grad = grads[0].contiguous()
        of_rows: Tensor | None = None
        of_matrices: Sequence[Tensor | None] = [None] * len(matrices)
        if needs_rows:
            of_rows = functional.grouped_mm(grad, torch.stack(matrices), offs=ends)
        if any(needs_matrices):
            of_matrices = functional.grouped_mm(grad.mT, rows, offs=ends).unbind()
        return of_rows, None, *of_matrices
