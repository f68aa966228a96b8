"""LoRA: low-rank adapters of linear layers (Hu et al., arXiv:2106.09685).

A target layer has the same name and `weight`, which is frozen, and the adapter's two matrices, the
only trained ones::

    y = W x + scale B (A x)       scale: alpha / rank, lora_a: A (rank, in), lora_b: B (out, rank)

B starts at zero, so a job starts with the unchanged model. Stacked experts have stacked matrices:
lora_a (e, rank, in), lora_b (e, out, rank).

With `weightDecomposed` (DoRA: Liu et al., arXiv:2402.09353) magnitudes of rows are trained too,
and start as those of W; the norm in the denominator is detached (section 4.3)::

    y = m / |W + scale B A| (W x + scale B (A x))       lora_m: m (out,)

`adapter_starts` describes adapters that begin as a part of W.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.model import FROM_BASE, LoraSpec
from ppojob_trainer.models.adapter_dropout import dropped
from ppojob_trainer.models.adapter_names import (
    A,
    B,
    is_adapter,
    is_magnitude,
    magnitude_name,
    matrix_names,
    peft_shape,
    weight_of,
)
from ppojob_trainer.models.adapter_starts import start_of
from ppojob_trainer.models.architectures import saved_weights
from ppojob_trainer.models.experts import (
    ExpertDispatch,
    Experts,
    Matrix,
    StackedExperts,
    mixture_of,
    product_dtype,
    stacked_product,
)
from ppojob_trainer.models.mixtures import STACKS
from ppojob_trainer.models.nf4 import Nf4Linear, dequantised, quantise_layers
from ppojob_trainer.models.transformers_modules import TransposedLinear
from ppojob_trainer.parallel.boxes import detached, full_tensor, local_part
from ppojob_trainer.parallel.fsdp import fill
from ppojob_trainer.parallel.tensor_styles import TensorLayer, summed

VALUE_HEAD: Final = "score"
"""transformers' name of a classifier's output layer."""


class LoraLinear(nn.Linear):
    """A linear layer with an adapter; `add_adapters` converts a plain one in place."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_m: nn.Parameter  # with DoRA
    lora: LoraSpec
    is_adapted: bool
    dropout_seed: int  # int32, by the job's seed and the layer's name

    def matrix(self) -> Tensor:
        """Return W, or this rank's shard."""
        return local_part(self.weight.detach())

    def lengths(self, matrix: Tensor) -> Tensor:
        """Return the norm of each row of a matrix sharded as W; a collective over its columns."""
        own = _lengths(matrix)
        if isinstance(self, TensorLayer) and self.style.cuts.get("weight") == "columns":
            return summed(own.square(), self.ranks).sqrt()
        return own

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """`W x + scale B (A x)`, and within `adapters_off` the first term alone.

        (..., in) -> (..., out), in the output dtype of the plain layer. In training the adapter's
        input or output has dropout, see `adapter_dropout`.
        """
        output = super().forward(input)
        if not self.is_adapted:
            return output
        # Adapters are float32, also where weights and x are bfloat16; autocast casts by itself.
        is_cast = torch.is_autocast_enabled(input.device.type)
        x = input if is_cast else input.to(self.lora_a.dtype)
        dropout = self.lora.dropout if self.training else 0.0
        is_pre, rank = self.lora.dropout_position == "pre", self.lora.rank
        a: Tensor = self.lora_a
        b: Tensor = self.lora_b
        begun = None
        if self.lora.init in FROM_BASE:  # see `adapter_starts`
            (a, first_a), (b, first_b) = torch.split(a, rank), torch.split(b, rank, dim=1)
            begun = functional.linear(functional.linear(x, first_a.detach()), first_b.detach())
        if dropout and is_pre:
            x = self._dropped(x, A)
        change = functional.linear(functional.linear(x, a), b)
        if dropout and not is_pre:
            change = self._dropped(change, B)
        change = change if begun is None else change + begun
        if not self.lora.weight_decomposed:
            return torch.add(output, change.to(output.dtype), alpha=self.lora.scale)
        seen = super().forward(x.to(input.dtype)) if dropout and is_pre else output
        return output + self._decomposed(seen, change).to(output.dtype)

    def _dropped(self, x: Tensor, matrix: str) -> Tensor:
        """Apply dropout to the inputs of A or the outputs of B."""
        features = torch.arange(x.shape[-1], dtype=torch.int32)
        if isinstance(self, TensorLayer):
            features = self.indices(matrix, len(features))
        return dropped(x, self.lora.dropout, self.dropout_seed, features)

    def _decomposed(self, seen: Tensor, change: Tensor) -> Tensor:
        """Return DoRA's addition to `W x`: exactly nothing while nothing has been trained.

        `seen` is the layer's output of the adapter's input, (..., out), and `change` B (A x).
        """
        with torch.no_grad(), torch.autocast(seen.device.type, enabled=False):
            made = self.lora_b @ self.lora_a
            torch.add(self.matrix(), made, alpha=self.lora.scale, out=made)  # avoid another copy
            lengths = self.lengths(made)
        ratio = self.lora_m / lengths
        plain = seen if self.bias is None else seen - self.bias
        return (ratio - 1.0) * plain + ratio * self.lora.scale * change


class LoraNf4Linear(LoraLinear, Nf4Linear):
    """A layer with an adapter, whose weight is in NF4."""

    def matrix(self) -> Tensor:
        """See `LoraLinear.matrix`: the dequantized codes."""
        codes, scales = (local_part(one.detach()) for one in (self.weight, self.weight_scales))
        return dequantised(codes, scales, self.in_features, self.dtype)


class LoraTransposedLinear(LoraLinear, TransposedLinear):
    """A layer with an adapter, whose weight is stored (in, out)."""


class LoraMatrix(Matrix):
    """An expert's matrix with an adapter, multiplied in one grouped product with the others."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora: LoraSpec
    is_adapted: bool

    def forward(self) -> tuple[Tensor, ...]:
        """See `Matrix.forward`; within `adapters_off` the matrix alone."""
        matrix, own = super().forward(), (self.lora_a, self.lora_b)
        return (*matrix, *(one.to(product_dtype(one)) for one in own if self.is_adapted))


class LoraStacks(StackedExperts):
    """Stacked experts, each with adapters of its own."""

    lora: LoraSpec
    is_adapted: bool

    def product(self, rows: Tensor, dispatch: ExpertDispatch, name: str) -> Tensor:
        """See `StackedExperts.product`; within `adapters_off` the experts alone."""
        output = super().product(rows, dispatch, name)
        a, b = (self.shard(one) for one in matrix_names(name))
        if a is None or b is None or not self.is_adapted:
            return output
        change = stacked_product(rows, dispatch.ends, a.mT)
        change = stacked_product(change, dispatch.ends, b.mT)
        return torch.add(output, change.to(output.dtype), alpha=self.lora.scale)


_Adapted = LoraLinear | LoraMatrix | LoraStacks
_ADAPTED: Final[Mapping[type[nn.Module], type[_Adapted]]] = {
    Nf4Linear: LoraNf4Linear,
    TransposedLinear: LoraTransposedLinear,
    nn.Linear: LoraLinear,
    Matrix: LoraMatrix,
    StackedExperts: LoraStacks,
}
"""Classes that layers get with adapters."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of a weight, float32, sharded as the model; stacks for stacked experts."""

    a: Tensor  # (rank, in)
    b: Tensor  # (out, rank)
    lora: LoraSpec
    is_transposed: bool = False  # whether the weight is stored (in, out)
    m: Tensor | None = None  # (out,) magnitudes, with DoRA

    def named(self, weight: str) -> dict[str, Tensor]:
        """Return its tensors by name, derived from the weight's."""
        a, b = matrix_names(weight)
        own = {a: self.a, b: self.b}
        return own if self.m is None else {**own, magnitude_name(weight): self.m}

    def merged(self, weight: Tensor) -> Tensor:
        """Return `W + scale B A`, float32, unsharded, with DoRA's row magnitudes if it has them.

        A collective where the model is sharded.
        """
        a, b, weight = full_tensor(self.a), full_tensor(self.b), full_tensor(weight)
        if a.ndim == 2:
            made = self._added(weight, a, b)
            return (
                made if self.m is None else made * (full_tensor(self.m) / _lengths(made))[:, None]
            )
        merged = torch.empty_like(weight, dtype=torch.float32)
        for expert, *own in zip(merged, weight, a, b, strict=True):  # avoid another whole stack
            expert.copy_(self._added(*own))
        return merged

    def _added(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        change = (b @ a).mT if self.is_transposed else b @ a
        return torch.add(weight.float(), change, alpha=self.lora.scale)


def _lengths(matrix: Tensor) -> Tensor:
    """Return (out,) the norm of each row of a matrix (out, in), float32."""
    lengths: Tensor = torch.linalg.vector_norm(matrix.float(), dim=1)
    return lengths


def add_adapters(
    model: PreTrainedModel, lora: LoraSpec, device: torch.device | None = None
) -> None:
    """Freeze a model and add adapters, whose values `draw_adapters` sets.

    The model is unsharded, on the meta device or with weights. Without targets all linear layers of
    the decoder layers get one: not the embedding, the head or routers; experts only with `experts`.
    A new value head, in float32, and the layers of `modulesToSave`, in their dtype, are trained
    whole. `device` is where weights are quantized to NF4; default: the CPU.
    """
    model.requires_grad_(False)
    for name in saved_weights(lora):
        model.get_parameter(name).requires_grad_(True)
    head = getattr(model, VALUE_HEAD, None)
    if head is not None:
        head.float().requires_grad_(True)
    if lora.base_type is not None:
        quantise_layers(model, device or torch.device("cpu"))
    base: Any = model.base_model
    mixture = mixture_of(model)
    router = mixture and f".{mixture.within(mixture.router)}."
    for name, layer in base.layers.named_modules():
        is_expert = isinstance(layer, Matrix) and lora.experts
        is_linear = isinstance(layer, nn.Linear) and not (router and router in f"{name}.")
        if (is_linear or is_expert) and lora.adapts(name):
            _add_adapter(layer, "weight", lora)
        elif isinstance(layer, Experts) and lora.experts:
            layer.adapter_scale = lora.scale
        elif isinstance(layer, StackedExperts) and lora.experts:
            for stack in STACKS:
                if lora.adapts(f"{name}.{stack}"):
                    _add_adapter(layer, stack, lora)


def _add_adapter(layer: nn.Linear | Matrix | StackedExperts, name: str, lora: LoraSpec) -> None:
    """Add an adapter to the weight of this name, or to each of those stacked in it."""
    weight = layer.get_parameter(name)
    *stack, out, into = weight.shape
    if isinstance(layer, Nf4Linear):
        out, into = layer.out_features, layer.in_features
    if _is_transposed(layer):
        into, out = out, into
    layer.__class__ = next(own for plain, own in _ADAPTED.items() if isinstance(layer, plain))
    assert isinstance(layer, _Adapted), "it was made one"
    shapes = (*stack, lora.rows, into), (*stack, out, lora.rows)
    named = dict(zip(matrix_names(name), shapes, strict=True))
    if lora.weight_decomposed:
        named[magnitude_name(name)] = (out,)
    for own, shape in named.items():
        values = torch.zeros(shape, dtype=torch.float32, device=weight.device)
        setattr(layer, own, nn.Parameter(values))
    layer.lora, layer.is_adapted = lora, True


def seed_dropout(model: nn.Module, seed: int) -> None:
    """Give each layer its masks, by its name."""
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLinear):
            digest = hashlib.sha256(f"{seed}/{name}/dropout".encode()).digest()
            layer.dropout_seed = int.from_bytes(digest[:4], signed=True)


def has_dropout(model: nn.Module) -> bool:
    """Whether adapters of a model have dropout in training."""
    return any(isinstance(one, LoraLinear) and one.lora.dropout > 0.0 for one in model.modules())


def draw_adapters(model: nn.Module, seed: int) -> None:
    """Initialize adapters: A as `init` says, B zero, magnitudes the norms of the weight's rows.

    Each A has its own random stream, so values do not depend on the number of ranks. A collective
    if the model is sharded.
    """
    for at, layer in model.named_modules():
        if not isinstance(layer, _Adapted):
            continue
        if isinstance(layer, LoraLinear) and layer.lora.init in FROM_BASE:
            own_seed = _stream(seed, f"{at}.{A}").initial_seed()
            weight, is_turned = layer.weight, _is_transposed(layer)
            a, b = start_of(weight, layer.lora, own_seed, is_transposed=is_turned)
            fill(layer.lora_a, a)
            fill(layer.lora_b, b)
            continue
        if isinstance(layer, LoraLinear) and layer.lora.weight_decomposed:
            local_part(layer.lora_m.detach()).copy_(layer.lengths(layer.matrix()))
        for own, parameter in layer.named_parameters(at, recurse=False):
            if is_adapter(own) and not is_magnitude(own):
                fill(parameter, _drawn_adapter(own, parameter.shape, layer.lora, seed))


def _drawn_adapter(name: str, shape: torch.Size, lora: LoraSpec, seed: int) -> Tensor:
    """Return the initial A or B of this name; of a stack each A, by its own fan-in."""
    values = torch.zeros(shape)
    if not name.endswith(A):
        return values
    if lora.init == "kaiming":
        drawn(values.flatten(0, -2), seed, name)
        return values
    deviations = {
        "gaussian": 1.0 / lora.rank,
        "xavier": math.sqrt(2.0 / (shape[-1] + lora.rank)),
        "normal": 0.2,
    }
    return values.normal_(std=deviations[lora.init], generator=_stream(seed, name))


def drawn(values: Tensor, seed: int, name: str) -> Tensor:
    """Initialise a matrix in place, Kaiming-uniform, a = √5, from a stream seeded by its name."""
    return nn.init.kaiming_uniform_(values, a=math.sqrt(5.0), generator=_stream(seed, name))


def _stream(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def adapters_of(model: nn.Module) -> dict[str, Adapter]:
    """Return a model's adapters by the names of the weights they adapt; empty without LoRA."""
    found: dict[str, Adapter] = {}
    for at, layer in model.named_modules():
        if not isinstance(layer, _Adapted):
            continue
        own = {f"{at}.{name}": detached(one) for name, one in layer.named_parameters(recurse=False)}
        weights = 2 if isinstance(layer, LoraLinear) else 3
        found |= adapters_in(
            own, layer.lora, transposed_dims=weights if _is_transposed(layer) else 0
        )
    return found


def _is_transposed(layer: nn.Module) -> bool:
    """Whether a layer's weights are stored (in, out)."""
    if isinstance(layer, StackedExperts):
        return not layer.is_out_first
    return isinstance(layer, TransposedLinear)


def adapters_in(
    tensors: Mapping[str, Tensor], lora: LoraSpec, *, transposed_dims: int = 0
) -> dict[str, Adapter]:
    """As `adapters_of`, from tensors by name, such as those of a checkpoint.

    `transposed_dims` says by their dimensions which weights are stored (in, out): 2 for matrices, 3
    for stacks, 0 for none.
    """
    found: dict[str, Adapter] = {}
    for weight in (weight_of(name) for name in sorted(tensors) if name.endswith(A)):
        a, b = (tensors[name] for name in matrix_names(weight))
        lengths = tensors.get(magnitude_name(weight))
        found[weight] = Adapter(a, b, lora, a.ndim == transposed_dims, lengths)
    return found


def in_peft_form(name: str, matrix: Tensor) -> Tensor:
    """Convert an adapter tensor to PEFT's form, which flattens stacks to a matrix."""
    is_turned = matrix.ndim > 2 and name.endswith(B)
    parts = matrix.permute(1, 2, 0) if is_turned else matrix
    return parts.reshape(peft_shape(name, tuple(matrix.shape)))


def of_peft_form(name: str, stored: Tensor, shape: torch.Size) -> Tensor:
    """Convert PEFT's form to the tensor of a name and shape here."""
    if len(shape) > 2 and name.endswith(B):
        experts, out, rank = shape
        return stored.reshape(out, rank, experts).permute(2, 0, 1)
    return stored.reshape(shape)


def replaced(
    adapters: Mapping[str, Adapter],
    tensors: Mapping[str, Tensor],
    on_device: Callable[[Tensor], Tensor],
) -> dict[str, Adapter]:
    """Return the adapters with the values of `tensors` by name, each moved by `on_device`."""

    def other(weight: str, own: Adapter) -> Adapter:
        names = own.named(weight)
        if not names.keys() <= tensors.keys():
            return own
        a, b, *lengths = (on_device(tensors[name]) for name in names)
        return replace(own, a=a, b=b, m=lengths[0] if lengths else None)

    return {name: other(name, own) for name, own in adapters.items()}


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Compute with the frozen weights alone: the initial model."""
    layers = [layer for layer in model.modules() if isinstance(layer, _Adapted)]
    for layer in layers:
        layer.is_adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_adapted = True
