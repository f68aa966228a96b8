"""MoE experts as they are in files: a parameter for each matrix of each expert, or stacks.

transformers stacks the experts of all families. Here separate matrices stay separate under their
names in files, so that loading, sharding, checkpoints, exports and engines need no special case.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ppojob_trainer.models.family import MixtureOfExperts
from ppojob_trainer.models.mixtures import mixture_in
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.experts import ALL_EXPERTS, ExpertRanks

_GAIN: Final = 1.702
_LIMIT: Final = 7.0
"""gpt-oss's gate factor and clamp; other values are refused."""


class ExpertDispatch:
    """Token permutation of an MoE layer: rows sorted by expert, one per token and chosen expert.

    With expert parallelism rows are exchanged (all-to-all) to the rank that holds their expert.
    """

    def __init__(self, chosen: Tensor, count: int, ranks: ExpertRanks) -> None:
        """Build from (t, k) int64, the experts of each token, out of `count`."""
        self._tokens = len(chosen)
        self._own = ranks.own_tokens(self._tokens)
        chosen = chosen[self._own]
        self._shape = chosen.shape
        self._order = chosen.flatten().argsort(stable=True)
        self._exchange = ranks.plan_exchange(torch.bincount(chosen.flatten(), minlength=count))
        self.ends = self._exchange.counts.cumsum(0, dtype=torch.int32)

    def experts(self, rows: Tensor) -> Tensor:
        """Return (r,) int64, the expert of each row, counted from the first on this rank."""
        places = torch.arange(len(rows), device=rows.device)
        return torch.bucketize(places, self.ends, right=True)

    def rows(self, states: Tensor) -> Tensor:
        """Dispatch (t, h) of the tokens to (r, h), the rows of this rank's experts."""
        own = states[self._own].repeat_interleave(self._shape[1], dim=0)
        return self._exchange.dispatch(own[self._order])

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Combine expert outputs (r, h) by weights (t, k): (t, h).

        With tensor parallelism a partial sum.
        """
        places = torch.empty_like(self._order)
        places[self._order] = torch.arange(len(self._order), device=self._order.device)
        own = self._exchange.combine(outputs)[places].view(*self._shape, outputs.shape[-1])
        combined = (own * weights[self._own, :, None]).sum(dim=1)
        if len(combined) == self._tokens:
            return combined
        return functional.pad(combined, (0, 0, self._own.start, self._tokens - self._own.stop))


class Matrix(nn.Module):
    """A matrix of an expert, multiplied in one grouped product with those of the others."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self) -> tuple[Tensor, ...]:
        """Return the matrix, (out, in), and its adapter's, (r, in) and (out, r), for products."""
        return (self.weight.to(product_dtype(self.weight)),)


def product_dtype(values: Tensor) -> torch.dtype:
    """Return the dtype of products of such values: that of autocast if it is on, or their own."""
    device = values.device.type
    is_cast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_cast else values.dtype


class Experts(nn.ModuleList):
    """The experts of a layer, with the call signature of transformers' stacked ones.

    Each has one or two up-projections (i, h) and a down-projection (h, i).
    """

    expert_ranks: ExpertRanks = ALL_EXPERTS
    """Expert-parallel ranks; experts of other ranks are None."""
    adapter_scale = 1.0
    """Scale of the adapters' output."""

    def __init__(self, stacked: Any, names: tuple[str, ...]) -> None:
        """Unstack the parameters of a transformers module under these names."""
        into = stacked.gate_up_proj if len(names) > 2 else stacked.up_proj
        super().__init__()
        for parts, down in zip(into.detach(), stacked.down_proj.detach(), strict=True):
            matrices = (Matrix(part.clone()) for part in (*parts.chunk(len(names) - 1), down))
            self.append(nn.ModuleDict(dict(zip(names, matrices, strict=True))))
        self._names = names

    def forward(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Compute the weighted sum of each token's chosen experts.

        States are (t, h), `chosen` (t, k) int64, and weights (t, k). Every expert is computed, even
        without tokens: ranks reduce the gradients of all of them.
        """
        dispatch = ExpertDispatch(chosen, len(self), self.expert_ranks)
        rows = dispatch.rows(states)
        held = [self[expert] for expert in self.expert_ranks.held(len(self))]

        def product(rows: Tensor, name: str) -> Tensor:
            found = zip(*(getattr(expert, name)() for expert in held), strict=True)
            weights, *adapter = map(list, found)
            output = grouped_product(rows, dispatch.ends, weights)
            if not adapter:
                return output
            change = rows
            for matrices in adapter:
                change = grouped_product(change, dispatch.ends, matrices)
            return torch.add(output, change.to(output.dtype), alpha=self.adapter_scale)

        *into, down = self._names
        inner = [product(rows, name) for name in into]
        active = functional.silu(inner[0]) * inner[1] if inner[1:] else inner[0].relu().square()
        output = product(active, down)
        return dispatch.combine(output, weights).to(states.dtype)


class StackedExperts(nn.Module):
    """The experts of a layer whose files stack them in one tensor per projection."""

    gate_up_proj: nn.Parameter  # (e, h, 2 i), or (e, 2 i, h) if stored (out, in)
    down_proj: nn.Parameter  # (e, i, h), or (e, h, i)
    is_out_first: bool
    expert_ranks: ExpertRanks = ALL_EXPERTS
    """Expert-parallel ranks; each stack is sharded over them by experts."""

    def __init__(self, stacked: Any, mixture: MixtureOfExperts) -> None:
        super().__init__()
        for name, parameter in stacked.named_parameters(recurse=False):
            matrix = parameter.detach()
            if not (mixture.is_clamped or mixture.is_out_first or mixture.weighs_inputs):
                matrix = matrix.mT.contiguous()  # which transformers transposes
            setattr(self, name, nn.Parameter(matrix))
        self._is_clamped, self.is_out_first = mixture.is_clamped, mixture.is_out_first
        self._weighs_inputs = mixture.weighs_inputs
        self._activation = functional.silu if mixture.is_clamped else stacked.act_fn

    def forward(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `Experts.forward`; with weighed inputs k is 1."""
        if self._weighs_inputs:
            states, weights = states * weights, torch.ones_like(weights)
        dispatch = ExpertDispatch(chosen, len(self.down_proj), self.expert_ranks)
        inner = self.product(dispatch.rows(states), dispatch, "gate_up_proj")
        gate, up = inner.chunk(2, dim=-1)
        active = _clamped(inner) if self._is_clamped else self._activation(gate) * up
        output = self.product(active, dispatch, "down_proj")
        return dispatch.combine(output, weights).to(states.dtype)

    def product(self, rows: Tensor, dispatch: ExpertDispatch, name: str) -> Tensor:
        """Multiply the rows by their experts of a stack: (r, in) -> (r, out)."""
        matrix, bias = self.shard(name), self.shard(f"{name}_bias")
        if self.is_out_first:
            matrix = matrix.mT
        output = stacked_product(rows, dispatch.ends, matrix)
        if bias is not None:
            # Cast after the selection: the gradient accumulates in the dtype of the weight.
            output = output + bias.index_select(0, dispatch.experts(rows)).to(output.dtype)
        return output

    def shard(self, name: str) -> Any:
        """Return this rank's shard of a stack or of its biases; None without one."""
        stack = getattr(self, name, None)
        return None if stack is None else local_part(stack)


def _clamped(inner: Tensor) -> Tensor:
    """Return gpt-oss's activation of interleaved gate and up."""
    gate, up = inner[..., ::2].clamp(max=_LIMIT), inner[..., 1::2].clamp(-_LIMIT, _LIMIT)
    return (up + 1.0) * (gate * torch.sigmoid(_GAIN * gate))


def experts_of(model: nn.Module) -> list[Experts | StackedExperts]:
    """Return the experts of each layer of a model or a pipeline stage."""
    return [one for one in model.modules() if isinstance(one, Experts | StackedExperts)]


def selection_biases_of(model: PreTrainedModel) -> dict[int, nn.Parameter]:
    """Return the router's selection bias of each MoE layer by layer number, if it has one.

    For a pipeline stage, those of its layers. MTP layers are not included.
    """
    mixture, base = mixture_of(model), cast("Any", model.base_model)
    layers = base.layers[: model.config.num_hidden_layers]
    if mixture is None or not mixture.selection_bias:
        return {}
    name = f"{mixture.block}.{mixture.selection_bias}"
    named = ((number, dict(layer.named_parameters())) for number, layer in enumerate(layers))
    return {number: held[name] for number, held in named if name in held}


def mixture_of(model: PreTrainedModel) -> MixtureOfExperts | None:
    """Return the family's description of a model's MoE blocks; None of a dense model."""
    return mixture_in(model.config.to_dict())


def freeze_routers(model: PreTrainedModel) -> None:
    """Freeze the routers of an MoE model, and the gate of its shared expert."""
    mixture = mixture_of(model)
    assert mixture is not None, "other models are refused"
    routers = tuple(
        f".{mixture.within(one)}." for one in (mixture.router, mixture.shared_gate) if one
    )
    for name, weight in model.named_parameters():
        if any(router in name for router in routers):
            weight.requires_grad_(False)


def grouped_product(rows: Tensor, ends: Tensor, matrices: list[Tensor]) -> Tensor:
    """Multiply each run of rows by its own matrix (grouped GEMM): (s, in) -> (s, out).

    `ends` (e,) int32 are those of the runs, which may be empty; the e matrices are (out, in).
    """
    product: Tensor = _GroupedProduct.apply(rows, ends, *matrices)  # type: ignore[no-untyped-call]
    return product


def stacked_product(rows: Tensor, ends: Tensor, stack: Tensor) -> Tensor:
    """As `grouped_product` of a stack (e, in, out), in the dtype of products."""
    dtype = product_dtype(stack)
    product: Tensor = _StackedProduct.apply(rows, ends, stack, dtype)  # type: ignore[no-untyped-call]
    return product


class _StackedProduct(torch.autograd.Function):
    """Grouped product whose cast of the stack is freed right after it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ends: Tensor, stack: Tensor, kind: torch.dtype) -> Tensor:
        rows = rows.to(kind)
        ctx.save_for_backward(rows, ends, stack)
        return functional.grouped_mm(rows, stack.to(kind), offs=ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, ends, stack = ctx.saved_tensors
        needs_rows, _, needs_stack, _ = ctx.needs_input_grad
        grad = grads[0].contiguous()
        of_rows = of_stack = None
        if needs_rows:
            of_rows = functional.grouped_mm(grad, stack.to(rows.dtype).mT, offs=ends)
        if needs_stack:
            of_stack = functional.grouped_mm(rows.mT, grad, offs=ends).to(stack.dtype)
        return of_rows, None, of_stack, None


class _GroupedProduct(torch.autograd.Function):
    """Grouped product of separate matrices; PyTorch's needs a stack, freed right after it."""

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
