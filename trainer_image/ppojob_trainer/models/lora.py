"""LoRA: low-rank adapters beside the weights of linear layers (Hu et al., arXiv:2106.09685).

A chosen layer stays where it is, under its name and with its `weight`, which is frozen. Beside it
come the adapter's two matrices, which alone are trained::

    y = W x + scale B (A x)       scale: alpha / rank, lora_a: A (rank, in), lora_b: B (out, rank)

B begins at zero, so a job begins with the model as it is. Experts of one tensor have such matrices
stacked as they are themselves: lora_a (e, rank, in), lora_b (e, out, rank).

With `weightDecomposed` (DoRA: Liu et al., arXiv:2402.09353) the lengths of rows are trained too,
and begin as those of W; what they are divided by is a constant to the backward pass (section 4.3)::

    y = m / |W + scale B A| (W x + scale B (A x))       lora_m: m (out,)
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

from ppojob_api.v1alpha1.training import LoraSpec
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
from ppojob_trainer.models.experts import (
    ByExpert,
    Experts,
    Matrix,
    StackedExperts,
    in_products,
    mixture_of,
    stacked_product,
)
from ppojob_trainer.models.in_first import InFirstLinear
from ppojob_trainer.models.mixtures import STACKS
from ppojob_trainer.models.nf4 import Nf4Linear, dequantised, quantise_layers
from ppojob_trainer.parallel.boxes import detached, local_part, whole
from ppojob_trainer.parallel.fsdp import fill
from ppojob_trainer.parallel.tensor_styles import TensorLayer, summed

VALUE_HEAD: Final = "score"
"""transformers' name of the layer of a classifier's outputs."""


class LoraLinear(nn.Linear):
    """A linear layer with an adapter; `add_adapters` makes it of a plain one, in place."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_m: nn.Parameter  # where lengths of rows are trained
    lora: LoraSpec
    is_adapted: bool

    def matrix(self) -> Tensor:
        """W, or what this rank has of it."""
        return local_part(self.weight.detach())

    def lengths(self, matrix: Tensor) -> Tensor:
        """The length of each row of a matrix that is cut as W is; a collective over its columns."""
        own = _lengths(matrix)
        if isinstance(self, TensorLayer) and self.style.cuts.get("weight") == "columns":
            return summed(own.square(), self.ranks).sqrt()
        return own

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """`W x + scale B (A x)`, and within `adapters_off` the first term alone.

        (..., in) -> (..., out), in the type that the layer without an adapter gives. In training
        the adapter sees x without what is dropped, drawn from torch's global generator.
        """
        output = super().forward(input)
        if not self.is_adapted:
            return output
        # Adapters are float32, also where weights and x are bfloat16; autocast sees to that itself.
        is_cast = torch.is_autocast_enabled(input.device.type)
        x = input if is_cast else input.to(self.lora_a.dtype)
        if self.lora.dropout > 0.0:
            x = functional.dropout(x, self.lora.dropout, self.training)
        change = functional.linear(functional.linear(x, self.lora_a), self.lora_b)
        if not self.lora.weight_decomposed:
            return torch.add(output, change.to(output.dtype), alpha=self.lora.scale)
        is_dropped = self.lora.dropout > 0.0 and self.training
        seen = super().forward(x.to(input.dtype)) if is_dropped else output
        return output + self._decomposed(seen, change).to(output.dtype)

    def _decomposed(self, seen: Tensor, change: Tensor) -> Tensor:
        """What an adapter and lengths add to `W x`: nothing at all where none has changed yet.

        `seen` is the layer's output, (..., out), of what the adapter sees, and `change` B (A x).
        """
        with torch.no_grad(), torch.autocast(seen.device.type, enabled=False):
            made = self.lora_b @ self.lora_a
            torch.add(self.matrix(), made, alpha=self.lora.scale, out=made)  # no second one
            lengths = self.lengths(made)
        ratio = self.lora_m / lengths
        plain = seen if self.bias is None else seen - self.bias
        return (ratio - 1.0) * plain + ratio * self.lora.scale * change


class LoraNf4Linear(LoraLinear, Nf4Linear):
    """A layer with an adapter, whose weight is in NF4."""

    def matrix(self) -> Tensor:
        """As that of `LoraLinear`: what the codes stand for."""
        codes, scales = (local_part(one.detach()) for one in (self.weight, self.weight_scales))
        return dequantised(codes, scales, self.in_features, self.dtype)


class LoraInFirstLinear(LoraLinear, InFirstLinear):
    """A layer with an adapter, whose weight has its inputs in front of its outputs."""


class LoraMatrix(Matrix):
    """A matrix of an expert with an adapter, which is multiplied together with those of others."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora: LoraSpec
    is_adapted: bool

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """As that of `Matrix`; within `adapters_off` the matrix alone."""
        said = super().forward(rows)
        if not self.is_adapted:
            return said
        return *said, in_products(self.lora_a, rows), in_products(self.lora_b, rows)


class LoraStacks(StackedExperts):
    """Experts of one tensor each way, of which each has adapters of its own."""

    lora: LoraSpec
    is_adapted: bool

    def product(self, rows: Tensor, by_expert: ByExpert, name: str) -> Tensor:
        """As that of `StackedExperts`; within `adapters_off` the experts alone."""
        said = super().product(rows, by_expert, name)
        a, b = (self.held(one) for one in matrix_names(name))
        if a is None or b is None or not self.is_adapted:
            return said
        change = stacked_product(rows, by_expert.ends, a.mT)
        change = stacked_product(change, by_expert.ends, b.mT)
        return torch.add(said, change.to(said.dtype), alpha=self.lora.scale)


_ADAPTED: Final[Mapping[type[nn.Module], type[LoraLinear | LoraMatrix | LoraStacks]]] = {
    Nf4Linear: LoraNf4Linear,
    InFirstLinear: LoraInFirstLinear,
    nn.Linear: LoraLinear,
    Matrix: LoraMatrix,
    StackedExperts: LoraStacks,
}
"""What layers become that get adapters."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of a weight: A (rank, in) and B (out, rank), float32, cut where the model is.

    Of experts of one tensor stacks of such. The weight may have its inputs in front of its outputs.
    `m` (out,) are the lengths of the rows of the weight, where these are trained.
    """

    a: Tensor
    b: Tensor
    lora: LoraSpec
    is_in_first: bool = False
    m: Tensor | None = None

    def named(self, weight: str) -> dict[str, Tensor]:
        """Its tensors by their names, which follow from that of the weight."""
        a, b = matrix_names(weight)
        own = {a: self.a, b: self.b}
        return own if self.m is None else {**own, magnitude_name(weight): self.m}

    def merged(self, weight: Tensor) -> Tensor:
        """`W + scale B A`, float32, whole, with rows of its lengths where it has such.

        A collective where the model is cut.
        """
        a, b, weight = whole(self.a), whole(self.b), whole(weight)
        if a.ndim == 2:
            made = self._added(weight, a, b)
            return made if self.m is None else made * (whole(self.m) / _lengths(made))[:, None]
        merged = torch.empty_like(weight, dtype=torch.float32)
        for expert, *own in zip(merged, weight, a, b, strict=True):  # no second whole stack
            expert.copy_(self._added(*own))
        return merged

    def _added(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        change = (b @ a).mT if self.is_in_first else b @ a
        return torch.add(weight.float(), change, alpha=self.lora.scale)


def _lengths(matrix: Tensor) -> Tensor:
    """(out,) the length of each row of a matrix (out, in), float32."""
    lengths: Tensor = torch.linalg.vector_norm(matrix.float(), dim=1)
    return lengths


def add_adapters(
    model: PreTrainedModel, lora: LoraSpec, device: torch.device | None = None
) -> None:
    """Freeze a model and put adapters into it, whose values `draw_adapters` sets.

    The model is one of transformers, not cut yet, on the meta device or with weights. Without
    targets all linear layers of the decoder layers get one: neither the embedding nor the head, no
    router, and experts where it is asked for.
    A head of a single output, which begins as nothing, is trained whole, in float32 as well.
    `device` is where weights in four bits are made, if they are; absent: the CPU.
    """
    model.requires_grad_(False)
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
        is_linear = isinstance(layer, nn.Linear) and not (router and router in name)
        if (is_linear or is_expert) and lora.adapts(name):
            _add_adapter(layer, "weight", lora)
        elif isinstance(layer, Experts) and lora.experts:
            layer.adapter_scale = lora.scale
        elif isinstance(layer, StackedExperts) and lora.experts:
            for stack in STACKS:
                if lora.adapts(f"{name}.{stack}"):
                    _add_adapter(layer, stack, lora)


def _add_adapter(layer: nn.Linear | Matrix | StackedExperts, name: str, lora: LoraSpec) -> None:
    """Put an adapter beside the weight of this name, or beside each of those stacked in it."""
    weight = layer.get_parameter(name)
    *stack, out, into = weight.shape
    if isinstance(layer, Nf4Linear):
        out, into = layer.out_features, layer.in_features
    if _is_in_first(layer):
        into, out = out, into
    layer.__class__ = next(own for plain, own in _ADAPTED.items() if isinstance(layer, plain))
    assert isinstance(layer, LoraLinear | LoraMatrix | LoraStacks), "it was made one"
    shapes = (*stack, lora.rank, into), (*stack, out, lora.rank)
    named = dict(zip(matrix_names(name), shapes, strict=True))
    if lora.weight_decomposed:
        named[magnitude_name(name)] = (out,)
    for own, shape in named.items():
        values = torch.zeros(shape, dtype=torch.float32, device=weight.device)
        setattr(layer, own, nn.Parameter(values))
    layer.lora, layer.is_adapted = lora, True


def draw_adapters(model: nn.Module, seed: int) -> None:
    """Set adapters to their beginning: A Kaiming-uniform with a = √5, as in PEFT, B zero.

    Each A has a random stream of its own, so it is the same over any number of ranks. Lengths are
    those of the weight's rows, of which a rank measures its own.
    """
    for layer in model.modules():
        if isinstance(layer, LoraLinear) and layer.lora.weight_decomposed:
            local_part(layer.lora_m.detach()).copy_(layer.lengths(layer.matrix()))
    for name, parameter in model.named_parameters():
        if not is_adapter(name) or is_magnitude(name):
            continue
        values = torch.zeros(parameter.shape)
        if name.endswith(A):
            drawn(values.flatten(0, -2), seed, name)  # of a stack each matrix, by its own width
        fill(parameter, values)


def drawn(values: Tensor, seed: int, name: str) -> Tensor:
    """Draw a matrix in place, Kaiming-uniform with a = √5, by a stream of its name's own."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    stream = torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
    return nn.init.kaiming_uniform_(values, a=math.sqrt(5.0), generator=stream)


def adapters_of(model: nn.Module) -> dict[str, Adapter]:
    """The adapters of a model by the names of the weights that they change; empty without LoRA."""
    found: dict[str, Adapter] = {}
    for at, layer in model.named_modules():
        if not isinstance(layer, LoraLinear | LoraMatrix | LoraStacks):
            continue
        own = {f"{at}.{name}": detached(one) for name, one in layer.named_parameters(recurse=False)}
        weights = 2 if isinstance(layer, LoraLinear) else 3
        found |= adapters_in(own, layer.lora, in_first=weights if _is_in_first(layer) else 0)
    return found


def _is_in_first(layer: nn.Module) -> bool:
    """Whether the weights of a layer have their inputs in front of their outputs."""
    if isinstance(layer, StackedExperts):
        return not layer.is_out_first
    return isinstance(layer, InFirstLinear)


def adapters_in(
    tensors: Mapping[str, Tensor], lora: LoraSpec, *, in_first: int = 0
) -> dict[str, Adapter]:
    """The same from tensors by their names, as those of a checkpoint.

    `in_first` says which weights have their inputs in front of their outputs, by their dimensions:
    2 of matrices, 3 of stacks, 0 of none.
    """
    found: dict[str, Adapter] = {}
    for weight in (weight_of(name) for name in sorted(tensors) if name.endswith(A)):
        a, b = (tensors[name] for name in matrix_names(weight))
        lengths = tensors.get(magnitude_name(weight))
        found[weight] = Adapter(a, b, lora, a.ndim == in_first, lengths)
    return found


def in_peft_form(name: str, matrix: Tensor) -> Tensor:
    """A tensor of an adapter, by its name here, as PEFT's files have it: stacks in one matrix."""
    is_turned = matrix.ndim > 2 and name.endswith(B)
    parts = matrix.permute(1, 2, 0) if is_turned else matrix
    return parts.reshape(peft_shape(name, tuple(matrix.shape)))


def of_peft_form(name: str, stored: Tensor, shape: torch.Size) -> Tensor:
    """The other way round: the tensor of a name and shape here."""
    if len(shape) > 2 and name.endswith(B):
        experts, out, rank = shape
        return stored.reshape(out, rank, experts).permute(2, 0, 1)
    return stored.reshape(shape)


def replaced(
    adapters: Mapping[str, Adapter],
    tensors: Mapping[str, Tensor],
    on_device: Callable[[Tensor], Tensor],
) -> dict[str, Adapter]:
    """Adapters of other values, those of `tensors` by their names, as `on_device` has them."""

    def other(weight: str, own: Adapter) -> Adapter:
        names = own.named(weight)
        if not names.keys() <= tensors.keys():
            return own
        a, b, *lengths = (on_device(tensors[name]) for name in names)
        return replace(own, a=a, b=b, m=lengths[0] if lengths else None)

    return {name: other(name, own) for name, own in adapters.items()}


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Compute with the frozen weights alone: the model as it was before training."""
    kinds = LoraLinear | LoraMatrix | LoraStacks
    layers = [layer for layer in model.modules() if isinstance(layer, kinds)]
    for layer in layers:
        layer.is_adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_adapted = True
