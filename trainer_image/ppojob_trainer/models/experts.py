"""MoE experts as they are in files: three matrices per expert, each a parameter of its own.

transformers stacks the experts of a layer in two tensors. Here each matrix stays separate under its
name in files, so that loading, sharding, checkpoints, exports and engines need no special case.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.family import BIAS_MODULE, CORRECTION, EXPERT_BIAS, Mixture
from ppojob_trainer.models.gemma import Gemma4Router
from ppojob_trainer.models.mixtures import mixture_in
from ppojob_trainer.models.module_names import rename_modules
from ppojob_trainer.models.nemotron import NEMOTRON, take_limits_off
from ppojob_trainer.models.routes import chosen_by_a_token, follow_routes
from ppojob_trainer.models.transposed_linear import make_linear
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.experts import ALONE, ExpertRanks

# Else transformers rounds it if weights are in 16 bits and the family's class does not forbid it.
PreTrainedModel._keep_in_fp32_modules_strict = [CORRECTION, EXPERT_BIAS]

_GAIN: Final = 1.702
_LIMIT: Final = 7.0
"""gpt-oss's clamp and gate factor; other values are refused."""


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
        self._journey = ranks.journey(torch.bincount(chosen.flatten(), minlength=count))
        self.ends = self._journey.counts.cumsum(0, dtype=torch.int32)

    def experts(self, rows: Tensor) -> Tensor:
        """Return (r,) int64, the expert of each row, counted from the first on this rank."""
        places = torch.arange(len(rows), device=rows.device)
        return torch.bucketize(places, self.ends, right=True)

    def rows(self, states: Tensor) -> Tensor:
        """Dispatch (t, h) of the tokens to (r, h), the rows of this rank's experts."""
        own = states[self._own].repeat_interleave(self._shape[1], dim=0)
        return self._journey.there(own[self._order])

    def summed(self, said: Tensor, weights: Tensor) -> Tensor:
        """Combine expert outputs (r, h) by weights (t, k): (t, h).

        With tensor parallelism a partial sum.
        """
        in_turn = torch.empty_like(self._order)
        in_turn[self._order] = torch.arange(len(self._order), device=self._order.device)
        weighted = self._journey.back(said)[in_turn].view(*self._shape, said.shape[-1])
        weighted = weighted * weights[self._own, :, None]
        summed, before = weighted.sum(dim=1), self._own.start
        if len(summed) == self._tokens:
            return summed
        return functional.pad(summed, (0, 0, before, self._tokens - self._own.stop))


class Matrix(nn.Module):
    """A matrix of an expert, multiplied in one grouped product with those of the others."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the matrix, (out, in), in the dtype of products with such rows.

        With an adapter also its matrices: (r, in) and (out, r).
        """
        return (in_products(self.weight, rows),)


def in_products(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return a matrix in the dtype of products with such rows."""
    device = rows.device.type
    is_cast = torch.is_autocast_enabled(device)
    return matrix.to(torch.get_autocast_dtype(device) if is_cast else matrix.dtype)


class Expert(nn.Module):
    """The matrices of an expert: one or two up-projections (i, h), a down-projection (h, i)."""

    def __init__(self, names: Sequence[str], matrices: Sequence[Tensor]) -> None:
        super().__init__()
        for name, weight in zip(names, matrices, strict=True):
            setattr(self, name, Matrix(weight))


class Experts(nn.ModuleList):
    """The experts of a layer, with the call signature of transformers' stacked ones."""

    expert_ranks: ExpertRanks = ALONE
    """Expert-parallel ranks; experts of other ranks are None."""
    adapter_scale = 1.0
    """Scale of the adapters' output."""

    def __init__(self, stacked: Any, names: tuple[str, ...]) -> None:
        """Unstack the parameters of a transformers module under these names."""
        into = stacked.gate_up_proj if len(names) > 2 else stacked.up_proj
        super().__init__(
            Expert(names, [part.clone() for part in (*parts.chunk(len(names) - 1), down)])
            for parts, down in zip(into.detach(), stacked.down_proj.detach(), strict=True)
        )
        self._names = names

    def forward(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Compute the weighted sum of each token's chosen experts.

        Every expert is computed, even without tokens: ranks reduce the gradients of all of them.

        Args:
            states: (t, h) of the tokens.
            chosen: (t, k) int64, the experts of each token.
            weights: (t, k) router weights.
        """
        dispatch = ExpertDispatch(chosen, len(self), self.expert_ranks)
        rows = dispatch.rows(states)
        held = [self[expert] for expert in self.expert_ranks.held(len(self))]

        def product(rows: Tensor, name: str) -> Tensor:
            found = zip(*(getattr(expert, name)(rows) for expert in held), strict=True)
            weights, *adapter = map(list, found)
            said = grouped_product(rows, dispatch.ends, weights)
            if not adapter:
                return said
            change = rows
            for matrices in adapter:
                change = grouped_product(change, dispatch.ends, matrices)
            return torch.add(said, change.to(said.dtype), alpha=self.adapter_scale)

        *into, down = self._names
        said = product(_inner(*(product(rows, name) for name in into)), down)
        return dispatch.summed(said, weights).to(states.dtype)


class StackedExperts(nn.Module):
    """The experts of a layer whose files stack them in one tensor per projection."""

    gate_up_proj: nn.Parameter  # (e, h, 2 i), or (e, 2 i, h) if stored (out, in)
    down_proj: nn.Parameter  # (e, i, h), or (e, h, i)
    is_out_first: bool
    expert_ranks: ExpertRanks = ALONE
    """Expert-parallel ranks; each stack is sharded over them by experts."""

    def __init__(self, stacked: Any, mixture: Mixture) -> None:
        """Take over the parameters of a transformers module."""
        super().__init__()
        for name, parameter in stacked.named_parameters(recurse=False):
            matrix = parameter.detach()
            if not (mixture.is_clamped or mixture.is_out_first):  # transformers transposes them
                matrix = matrix.mT.contiguous()
            setattr(self, name, nn.Parameter(matrix))
        self._is_clamped, self.is_out_first = mixture.is_clamped, mixture.is_out_first
        self._activation = functional.silu if mixture.is_clamped else stacked.act_fn

    def forward(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `Experts.forward`."""
        dispatch = ExpertDispatch(chosen, len(self.down_proj), self.expert_ranks)
        inner = self.product(dispatch.rows(states), dispatch, "gate_up_proj")
        gate, up = inner.chunk(2, dim=-1)
        said = _clamped(inner) if self._is_clamped else self._activation(gate) * up
        said = self.product(said, dispatch, "down_proj")
        return dispatch.summed(said, weights).to(states.dtype)

    def product(self, rows: Tensor, dispatch: ExpertDispatch, name: str) -> Tensor:
        """Multiply the rows by their experts of a stack: (r, in) -> (r, out)."""
        matrix, bias = self.held(name), self.held(f"{name}_bias")
        if self.is_out_first:
            matrix = matrix.mT
        found = stacked_product(rows, dispatch.ends, matrix)
        if bias is not None:
            # Cast after the selection: the gradient accumulates in the dtype of the weight.
            found = found + bias.index_select(0, dispatch.experts(rows)).to(found.dtype)
        return found

    def held(self, name: str) -> Any:
        """Return this rank's shard of a stack or of its biases; None without one."""
        stack = getattr(self, name, None)
        return None if stack is None else local_part(stack)


def _inner(*products: Tensor) -> Tensor:
    """Activation: SwiGLU of gate and up, or of one projection the squared ReLU."""
    return _gated(*products) if len(products) > 1 else functional.relu(products[0]).square()


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def _clamped(inner: Tensor) -> Tensor:
    gate, up = inner[..., ::2].clamp(max=_LIMIT), inner[..., 1::2].clamp(-_LIMIT, _LIMIT)
    return (up + 1.0) * (gate * torch.sigmoid(_GAIN * gate))


def split_experts(model: PreTrainedModel) -> None:
    """Convert a transformers model to this project's form, with each expert a parameter of its own.

    The model is unsharded, on the meta device or with weights. Its modules get the common names,
    GPT-2's matrices become linear layers, and untrained values from files become parameters that
    are loaded and sharded as weights are. MoE layers get unstacked experts, and support router
    replay.
    """
    family = FAMILIES[model.config.model_type]
    rename_modules(model, family)
    make_linear(model)
    mixture = mixture_of(model)
    base: Any = model.base_model
    if model.config.model_type == NEMOTRON:
        take_limits_off(model)
    for name, layer in product(family.frozen_scalars, base.layers):
        owner, _, own = name.rpartition(".")
        _keep(layer.get_submodule(owner), own)
    if mixture is None:
        return
    for number, layer in enumerate(base.layers):
        block = layer
        if mixture.block:
            block = getattr(layer, "mlp", None) or getattr(layer, mixture.block)
        router = getattr(block, mixture.router, None)
        if mixture.has_scales:
            layer.router.__class__ = Gemma4Router
        follow_routes(layer, router, mixture, number, chosen_by_a_token(model.config))
        if hasattr(block, "experts"):
            stacked = block.experts
            block.experts = (
                StackedExperts(stacked, mixture)
                if mixture.is_stacked
                else Experts(stacked, mixture.matrices)
            )
            if mixture.selection_bias:
                _keep_correction(block, mixture)
            if block is getattr(layer, "mlp", None):
                _rename(layer, mixture.block)


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


def _keep(module: nn.Module, name: str, kind: torch.dtype | None = None) -> None:
    """Turn a buffer that files hold into a parameter without gradient."""
    values = getattr(module, name).detach().to(kind)
    delattr(module, name)
    shape = values.shape or (1,)  # FSDP2 cannot shard a 0-dimensional tensor
    setattr(module, name, nn.Parameter(values.reshape(shape), requires_grad=False))


def _keep_correction(block: Any, mixture: Mixture) -> None:
    """Turn a router's selection bias into an untrained parameter, loaded as weights are."""
    router = getattr(block, mixture.router)
    if held := getattr(router, BIAS_MODULE, None):  # in files it is beside the router
        delattr(router, BIAS_MODULE)
        setattr(block, BIAS_MODULE, held)
        router.__dict__[BIAS_MODULE] = held
    owner, _, own = mixture.selection_bias.rpartition(".")
    _keep(block.get_submodule(owner), own, torch.float32)
    kind = type(router)
    router.__class__ = type(f"Exact{kind.__name__}", (_Exact, kind), {})


class _Exact(nn.Module):
    """A router that computes in float32 under autocast too, as engines do."""

    def forward(self, states: Tensor, *args: Any) -> Any:
        """Return the router's output."""
        weight = next(self.parameters())
        states = states.to(torch.promote_types(states.dtype, weight.dtype))  # not all do it
        with torch.autocast(states.device.type, enabled=False):
            return super().forward(states, *args)


def _rename(layer: nn.Module, block: str) -> None:
    """Give a layer's feed-forward block its name in files; transformers calls it `mlp`."""
    if block != "mlp":
        module = layer.mlp
        del layer.mlp
        setattr(layer, block, module)
        layer.__dict__["mlp"] = module  # an attribute of the layer, but not one of its modules


def mixture_of(model: PreTrainedModel) -> Mixture | None:
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

    Args:
        rows: (s, in), run by run.
        ends: (e,) int32, the end of each run, which may be empty.
        matrices: e of them, (out, in).
    """
    product: Tensor = _GroupedProduct.apply(rows, ends, *matrices)  # type: ignore[no-untyped-call]
    return product


def stacked_product(rows: Tensor, ends: Tensor, stack: Tensor) -> Tensor:
    """As `grouped_product` of a stack (e, in, out), in the dtype of products."""
    device = rows.device.type
    is_cast = torch.is_autocast_enabled(device)
    kind = torch.get_autocast_dtype(device) if is_cast else stack.dtype
    product: Tensor = _StackedProduct.apply(rows, ends, stack, kind)  # type: ignore[no-untyped-call]
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
