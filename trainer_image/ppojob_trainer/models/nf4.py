"""NF4: frozen matrices in four bits an element (QLoRA: Dettmers et al., arXiv:2305.14314).

64 elements of a row are a quantization block: each is the nearest of 16 values, quantiles of a
normal distribution, times the block's largest absolute value. A row's last block may be shorter.
Blocks never cross rows, so a rank quantizes its shard of rows as it would the whole.

A layer has the codes as its `weight`, and the scales of blocks as `weight_scales`. Each forward and
backward pass dequantizes the matrix and frees it.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ppojob_trainer.models.architectures import NF4_BLOCK as BLOCK
from ppojob_trainer.parallel.boxes import full_tensor

VALUES: Final = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The 16 values of the codes: bitsandbytes' constants, by the paper's definition."""

_SCALES: Final = "weight_scales"


def is_scales(name: str) -> bool:
    """Whether a tensor of this name holds the scales of a matrix."""
    return name.endswith(f".{_SCALES}")


def scales_of(weight: str) -> str:
    """Return the name of a matrix's scales."""
    return f"{weight}{_SCALES.removeprefix('weight')}"


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix (out, in): codes (out, b * 32), two a byte, and scales (out, b), float32.

    b: blocks of a row. An element midway between two values becomes the lower one.
    """
    rows, columns = weight.shape
    blocks = functional.pad(weight.float(), (0, -columns % BLOCK))
    blocks = blocks.view(rows, blocks.shape[1] // BLOCK, BLOCK)
    scales = blocks.abs().amax(-1)
    inverse = torch.where(scales == 0.0, 0.0, scales.reciprocal())  # as bitsandbytes divides
    middles = _middles(weight.device)
    codes = torch.bucketize(blocks * inverse[..., None], middles, out_int32=True).to(torch.uint8)
    pairs = codes.view(rows, -1, 2) if rows else codes.view(0, codes.shape[1] * BLOCK // 2, 2)
    return pairs[..., 0] << 4 | pairs[..., 1], scales


def dequantised(codes: Tensor, scales: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Dequantize to a matrix (out, columns); products in float32."""
    values = _pairs(codes.device)[codes.int()].view(*scales.shape, BLOCK)
    values.mul_(scales[..., None])
    return values.flatten(1)[:, :columns].to(dtype).contiguous()


def rounded(weight: Tensor) -> Tensor:
    """Round a matrix to what NF4 represents, in its own dtype."""
    return dequantised(*quantised(weight), weight.shape[1], weight.dtype)


@cache
def _middles(device: torch.device) -> Tensor:
    values = torch.tensor(VALUES, device=device)
    return (values[1:] + values[:-1]) / 2.0


@cache
def _pairs(device: torch.device) -> Tensor:
    """Return (256, 2) the values of each byte; its upper half is the first."""
    values = torch.tensor(VALUES, device=device)
    return torch.cartesian_prod(values, values)


class Nf4Linear(nn.Linear):
    """A frozen linear layer in NF4; `quantise_layers` converts a plain one in place."""

    weight_scales: nn.Parameter
    dtype: torch.dtype  # of the original weight

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """Apply the layer with its dequantized weight."""
        device, dtype = input.device.type, self.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        x, scales = input.to(dtype), self.weight_scales
        output: Tensor = _Product.apply(x, self.weight, scales, self.bias)  # type: ignore[no-untyped-call]
        return output

    @property
    def outline(self) -> Tensor:
        """A meta tensor of the matrix's shape (out, in) and dtype."""
        return torch.empty(self.out_features, self.in_features, dtype=self.dtype, device="meta")

    def full_matrix(self, on_device: Callable[[Tensor], Tensor]) -> Tensor:
        """All-gather and dequantize the matrix; `on_device` loads offloaded tensors."""
        parts = self.weight.detach(), self.weight_scales.detach()
        codes, scales = (full_tensor(on_device(part)) for part in parts)
        return dequantised(codes, scales, self.in_features, self.dtype)


class _Product(torch.autograd.Function):
    """`W x + b`; neither pass keeps the dequantized W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        # Not saved by save_for_backward, whose tensors may be offloaded to host memory: they are
        # constant, and FSDP all-gathers them again.
        ctx.matrix, ctx.columns = (codes, scales), x.shape[-1]
        return functional.linear(x, dequantised(codes, scales, x.shape[-1], x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        codes, scales = ctx.matrix
        return grad @ dequantised(codes, scales, ctx.columns, grad.dtype), None, None, None


def nf4_layers(model: nn.Module) -> dict[str, Nf4Linear]:
    """Return a model's NF4 layers by the names of their weights; empty without any."""
    named = model.named_modules()
    return {f"{name}.weight": layer for name, layer in named if isinstance(layer, Nf4Linear)}


def linear_layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Linear]]:
    """Return the linear layers of a model's decoder layers by name; no experts."""
    base: Any = model.base_model
    layers = {layer for layer in base.layers.modules() if isinstance(layer, nn.Linear)}
    for name, layer in model.named_modules():
        if layer in layers and isinstance(layer, nn.Linear):
            yield name, layer


def quantise_layers(model: PreTrainedModel, device: torch.device) -> None:
    """Quantize the linear layers of the decoder layers, on the meta device or by `device`."""
    for _, layer in linear_layers(model):
        weight = layer.weight.detach()
        made = quantised(weight if weight.is_meta else weight.to(device))
        codes, scales = (nn.Parameter(one, requires_grad=False) for one in made)
        layer.__class__ = Nf4Linear
        assert isinstance(layer, Nf4Linear), "it was made one"
        layer.weight, layer.weight_scales, layer.dtype = codes, scales, weight.dtype


def round_layers(model: PreTrainedModel) -> None:
    """Round linear layers to NF4, but keep them as plain weights."""
    for _, layer in linear_layers(model):
        layer.weight.data = rounded(layer.weight.data)
