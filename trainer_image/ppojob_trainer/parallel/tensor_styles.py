"""Layers whose weights are cut over tensor ranks (Shoeybi et al. 2019, arXiv:1909.08053).

All tensor ranks compute the same rows. A matrix that is cut by rows gives each rank some of its
outputs; one that is cut by columns takes these and gives each rank a summand of all its outputs.
Sums over the ranks make whole, and everywhere the same, what lies between such pairs.

Layers stay the modules that they were, under their names. Their weights become DTensors, which FSDP
cuts further, and while a layer computes it sees this rank's parts as plain tensors: nothing between
two layers knows of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.nn import functional

from ppojob_trainer.parallel.boxes import Pieces, box_of

Cut = Literal["rows", "columns", "depths", "summands"]
"""What a rank has of a parameter: some of its first, second or third dimension, or all of it and a
summand of its gradient.

A parameter that is not cut is whole on every rank, and so is its gradient there.
"""

_PLACEMENTS: Final[Mapping[Cut | None, Placement]] = {
    "rows": Shard(0),
    "columns": Shard(1),
    "depths": Shard(2),
}


@dataclass(frozen=True, slots=True)
class Style:
    """How a layer of a model is cut, and what is summed over the ranks around it.

    Attributes:
        layer: what it becomes.
        cuts: what a rank has of its parameters, by their names.
        shares: of those that are several, one behind another where they are cut, how long these
            are to each other.
        counts: numbers of the module, or of its `config.`, of which a rank has its share.
    """

    layer: type[TensorLayer]
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    counts: tuple[str, ...] = ()


class TensorLayer(nn.Module):
    """What a layer becomes, in front of its own class: its weights are whole, or cut by rows."""

    style: Style
    ranks: DeviceMesh  # the tensor ranks

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """As the layer's own class, of this rank's parts of its weights."""
        return self._compute(*inputs, **options)

    def _compute(self, *inputs: Any, absent: str = "", **options: Any) -> Any:
        """Let parts stand in for parameters, as torch's `functional_call` does, and compute."""
        held = dict(self._parameters)
        for name in held:
            self._parameters[name] = None if name == absent else self._part(name)
        try:
            return super().forward(*inputs, **options)
        finally:
            self._parameters.update(held)

    def _part(self, name: str) -> Any:
        """This rank's part of a parameter; None where the layer has none of that name."""
        parameter, cut = self._parameters[name], self.style.cuts.get(name)
        if parameter is None:
            return None
        assert isinstance(parameter, DTensor), "cut_layers has made it one"
        return parameter.to_local(grad_placements=[Partial()] if cut == "summands" else None)


class BeforeRows(TensorLayer):
    """A layer that is whole, and whose outputs go into matrices that are cut by rows."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """The gradients of its outputs, a summand from each rank, are added up once."""
        output: Tensor = _SumOfGradients.apply(self._compute(input), self.ranks)  # type: ignore[no-untyped-call]
        return output


class OfStates(TensorLayer):
    """A module whose matrices, cut by rows, read states with no norm between."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """As `BeforeRows` does behind it; states come first, or under their name."""
        if inputs:
            inputs = (_SumOfGradients.apply(inputs[0], self.ranks), *inputs[1:])  # type: ignore[no-untyped-call]
        else:
            states = _SumOfGradients.apply(options["hidden_states"], self.ranks)  # type: ignore[no-untyped-call]
            options = {**options, "hidden_states": states}
        return self._compute(*inputs, **options)


class OverAllHeads(TensorLayer):
    """An RMSNorm over the heads of all ranks, of which each has as many, and so its weight."""

    variance_epsilon: float

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """What the layer's own class says takes the mean of squares of a rank's heads for all."""
        own = input.float().square().mean(-1, keepdim=True)
        total = _Sum.apply(own, self.ranks)  # type: ignore[no-untyped-call]
        mean = _SumOfGradients.apply(total, self.ranks) / self.ranks.size()  # type: ignore[no-untyped-call]
        said: Tensor = self._compute(input)
        ratio = ((own + self.variance_epsilon) / (mean + self.variance_epsilon)).sqrt()
        output: Tensor = (said * ratio).to(said.dtype)
        return output


class Columns(TensorLayer):
    """A linear layer that is cut by columns."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """The bias is added once, to the sum."""
        summand, bias = self._compute(input, absent="bias"), self._part("bias")
        output: Tensor = _Sum.apply(summand, self.ranks)  # type: ignore[no-untyped-call]
        return output if bias is None else output + bias.to(output.dtype)


class Summands(TensorLayer):
    """A module whose own layers leave each rank a summand of what it says."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """All ranks give it the same. What else it says is whole."""
        said = self._compute(*inputs, **options)
        summand, *others = said if isinstance(said, tuple) else (said,)
        output = _Sum.apply(summand, self.ranks)  # type: ignore[no-untyped-call]
        return (output, *others) if others else output


class OfSummands(TensorLayer):
    """A layer that is whole, and of whose inputs each rank has a summand."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """They are summed in front of it."""
        output: Tensor = self._compute(_Sum.apply(input, self.ranks))  # type: ignore[no-untyped-call]
        return output


class Stacks(TensorLayer):
    """Experts of one tensor each way, of whose inner features a rank has some."""

    def _part(self, name: str) -> Any:
        """The bias behind the sum over ranks is in it once."""
        part = super()._part(name)
        return part / self.ranks.size() if name == "down_proj_bias" else part


class Vocabulary(TensorLayer):
    """An embedding that is cut by rows: each rank knows some tokens, and says 0 of the others."""

    weight: nn.Parameter
    padding_idx: int | None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """(...) token ids to (..., hidden)."""
        weight, first = self._part("weight"), box_of(self.weight).start[0]
        places, padding = input - first, self.padding_idx
        if padding is not None:  # its row has no gradient
            padding = padding - first if 0 <= padding - first < len(weight) else None
        is_here = (places >= 0) & (places < len(weight))
        rows = functional.embedding(places.where(is_here, 0), weight, padding)
        summand = rows.masked_fill(~is_here[..., None], 0.0)
        output: Tensor = _Sum.apply(summand, self.ranks)  # type: ignore[no-untyped-call]
        scale = getattr(self, "embed_scale", None)  # Gemma's
        return output if scale is None else output * scale.to(output.dtype)


def cut_layers(
    model: nn.Module, styles: Mapping[str, Style], ranks: DeviceMesh
) -> dict[str, Pieces]:
    """Cut the layers of a model, which is on the meta device, each by its style.

    Styles are by names of modules; those without one stay as they are. A parameter that two of them
    share stays shared.

    Returns:
        Of which pieces parameters are, by name, where they are of several.
    """
    cut: dict[nn.Parameter, nn.Parameter] = {}
    pieces: dict[str, Pieces] = {}
    for name, layer in model.named_modules():
        if name not in styles:
            continue
        style = styles[name]
        for key, parameter in dict(layer.named_parameters(recurse=False)).items():
            placement = _PLACEMENTS.get(style.cuts.get(key), Replicate())
            if parameter not in cut:
                part = distribute_tensor(parameter.detach(), ranks, [placement], src_data_rank=None)
                cut[parameter] = nn.Parameter(part, requires_grad=parameter.requires_grad)
            setattr(layer, key, cut[parameter])
            if (shares := style.shares.get(key)) and isinstance(placement, Shard):
                one = parameter.shape[placement.dim] // sum(shares)
                sizes = tuple(one * share for share in shares)
                pieces[f"{name}.{key}"] = Pieces(placement.dim, sizes, ranks.size())
        for count in style.counts:
            _share(layer, count, ranks.size())
        kind = style.layer
        layer.__class__ = type(f"{kind.__name__}{type(layer).__name__}", (kind, type(layer)), {})
        layer.style, layer.ranks = style, ranks
    return pieces


class _Seen:
    """A configuration as a module sees it that has its share of a number of it."""

    def __init__(self, config: Any, name: str, share: int) -> None:
        self._config = config
        setattr(self, name, share)

    def __getattr__(self, name: str) -> Any:
        """Everything else, as it is by then."""
        return getattr(self._config, name)


def _share(module: Any, count: str, ranks: int) -> None:
    """Let a number of a module, or of its configuration, be that of a rank."""
    holder, _, name = count.rpartition(".")
    if holder:
        config = getattr(module, holder)
        setattr(module, holder, _Seen(config, name, getattr(config, name) // ranks))
    else:
        setattr(module, name, getattr(module, name) // ranks)


class _Sum(torch.autograd.Function):
    """A summand of each rank to the sum; the gradient of the sum is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, summand: Tensor, ranks: DeviceMesh) -> Tensor:
        return summed(summand, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


class _SumOfGradients(torch.autograd.Function):
    """The same tensor on every rank, of whose gradient each has a summand."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: DeviceMesh) -> Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return summed(grads[0], ctx.ranks), None


def summed(summand: Tensor, ranks: DeviceMesh) -> Tensor:
    """The sum of a tensor of each rank, with the same bits on all of them; a collective."""
    total = summand.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=ranks.get_group())
    return total
