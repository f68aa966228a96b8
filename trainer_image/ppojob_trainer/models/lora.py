"""LoRA: low-rank adapters beside the weights of linear layers (Hu et al., arXiv:2106.09685).

A chosen layer stays where it is, under its name and with its `weight`, which is frozen. Beside it
come the adapter's two matrices, which alone are trained::

    y = W x + scale B (A x)       scale: alpha / rank, lora_a: A (rank, in), lora_b: B (out, rank)

B begins at zero, so a job begins with the model as it is.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ppojob_api.v1alpha1.training import LoraSpec
from ppojob_trainer.models.experts import Experts, Matrix, in_products
from ppojob_trainer.parallel.boxes import whole
from ppojob_trainer.parallel.fsdp import fill

VALUE_HEAD: Final = "score"
"""transformers' name of the layer of a classifier's outputs."""

A: Final = "lora_a"
B: Final = "lora_b"


class LoraLinear(nn.Linear):
    """A linear layer with an adapter; `add_adapters` makes it of a plain one, in place."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora: LoraSpec
    is_adapted: bool

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
        return torch.add(output, change.to(output.dtype), alpha=self.lora.scale)


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


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of a weight: A (rank, in) and B (out, rank), float32, cut where the model is."""

    a: Tensor
    b: Tensor
    lora: LoraSpec

    def merged(self, weight: Tensor) -> Tensor:
        """`W + scale B A`, float32, whole; a collective where the model is cut."""
        change = whole(self.b) @ whole(self.a)
        return torch.add(whole(weight).float(), change, alpha=self.lora.scale)


def add_adapters(model: nn.Module, lora: LoraSpec) -> None:
    """Freeze a model and put adapters into it, whose values `draw_adapters` sets.

    The model is one of transformers, not cut yet, on the meta device or with weights. Without
    targets all linear layers of the decoder layers get one: neither the embedding nor the head, and
    experts where it is asked for.
    A head of a single output, which begins as nothing, is trained whole, in float32 as well.
    """
    model.requires_grad_(False)
    head = getattr(model, VALUE_HEAD, None)
    if head is not None:
        head.float().requires_grad_(True)
    base: Any = model.base_model
    for name, layer in base.layers.named_modules():
        is_expert = isinstance(layer, Matrix) and lora.experts
        if (isinstance(layer, nn.Linear) or is_expert) and lora.adapts(name):
            _add_adapter(layer, lora)
        elif isinstance(layer, Experts) and lora.experts:
            layer.adapter_scale = lora.scale


def _add_adapter(layer: nn.Linear | Matrix, lora: LoraSpec) -> None:
    def matrix(rows: int, columns: int) -> nn.Parameter:
        device = layer.weight.device
        return nn.Parameter(torch.zeros(rows, columns, dtype=torch.float32, device=device))

    out, into = layer.weight.shape
    layer.__class__ = LoraLinear if isinstance(layer, nn.Linear) else LoraMatrix
    assert isinstance(layer, LoraLinear | LoraMatrix), "it was made one"
    layer.lora_a = matrix(lora.rank, into)
    layer.lora_b = matrix(out, lora.rank)
    layer.lora = lora
    layer.is_adapted = True


def draw_adapters(model: nn.Module, seed: int) -> None:
    """Set adapters to their beginning: A Kaiming-uniform with a = √5, as in PEFT, B zero.

    Each A has a random stream of its own, so it is the same over any number of ranks.
    """
    for name, parameter in model.named_parameters():
        if not is_adapter(name):
            continue
        values = torch.zeros(parameter.shape)
        fill(parameter, drawn(values, seed, name) if name.endswith(A) else values)


def drawn(values: Tensor, seed: int, name: str) -> Tensor:
    """Draw a matrix in place, Kaiming-uniform with a = √5, by a stream of its name's own."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    stream = torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
    return nn.init.kaiming_uniform_(values, a=math.sqrt(5.0), generator=stream)


def is_adapter(name: str) -> bool:
    """Whether a tensor of this name belongs to an adapter."""
    return name.endswith((f".{A}", f".{B}"))


def adapters_of(model: nn.Module) -> dict[str, Adapter]:
    """The adapters of a model by the names of the weights that they change; empty without LoRA."""
    return {
        f"{name}.weight": Adapter(layer.lora_a.detach(), layer.lora_b.detach(), layer.lora)
        for name, layer in model.named_modules()
        if isinstance(layer, LoraLinear | LoraMatrix)
    }


def adapters_in(tensors: Mapping[str, Tensor], lora: LoraSpec) -> dict[str, Adapter]:
    """The same from a checkpoint's tensors by name (`<layer>.lora_a`, `<layer>.lora_b`)."""
    layers = [name.removesuffix(f".{A}") for name in sorted(tensors) if name.endswith(A)]
    return {
        f"{layer}.weight": Adapter(tensors[f"{layer}.{A}"], tensors[f"{layer}.{B}"], lora)
        for layer in layers
    }


def replaced(
    adapters: Mapping[str, Adapter],
    tensors: Mapping[str, Tensor],
    on_device: Callable[[Tensor], Tensor],
) -> dict[str, Adapter]:
    """Adapters with other matrices, those of `tensors` by their names, as `on_device` has them."""

    def other(layer: str, own: Adapter) -> Adapter:
        a, b = tensors.get(f"{layer}.{A}"), tensors.get(f"{layer}.{B}")
        return own if a is None or b is None else Adapter(on_device(a), on_device(b), own.lora)

    return {name: other(name.removesuffix(".weight"), own) for name, own in adapters.items()}


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Compute with the frozen weights alone: the model as it was before training."""
    layers = [layer for layer in model.modules() if isinstance(layer, LoraLinear | LoraMatrix)]
    for layer in layers:
        layer.is_adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_adapted = True
