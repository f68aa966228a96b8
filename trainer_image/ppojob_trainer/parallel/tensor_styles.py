"""Tensor-parallel layers (Megatron: Shoeybi et al. 2019, arXiv:1909.08053).

All tensor-parallel ranks compute the same rows. A column-parallel matrix (weight sharded by output
rows here) gives each rank some of its outputs; the row-parallel matrix after it (weight sharded by
input columns) turns these into a partial sum of all outputs. An all-reduce makes the result whole
and equal on all ranks.

Layers stay the same modules, under their names. Their weights become DTensors, which FSDP shards
further; while a layer computes it sees this rank's shards as plain tensors. Code between two layers
need not know of ranks.
"""

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

from ppojob_trainer.parallel.boxes import Pieces, box_of, local_part
from ppojob_trainer.parallel.linear_map import linear_map

Cut = Literal["rows", "columns", "depths", "partial"]
"""How a parameter is distributed: sharded by its first, second or third dimension, or replicated
with a partial sum of its gradient.

Parameters without an entry are replicated, with equal gradients.
"""

Sum = Literal["input", "input gradient", "output", "output gradient"]

_PLACEMENTS: Final[Mapping[Cut | None, Placement]] = {
    "rows": Shard(0),
    "columns": Shard(1),
    "depths": Shard(2),
}


@dataclass(frozen=True, slots=True)
class Style:
    """How a layer is sharded, and which all-reduces surround it."""

    cuts: Mapping[str, Cut] = field(default_factory=dict)  # distribution of parameters, by name
    # What is all-reduced: the states that the layer gets, the first of its outputs, or the gradient
    # of either. A bias is added after the output's.
    sums: tuple[Sum, ...] = ()
    layer: "type[TensorLayer] | None" = None  # the class that it becomes; None: `TensorLayer`
    # Relative lengths of the pieces of fused parameters along the sharded dimension.
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    counts: tuple[str, ...] = ()  # attributes of the module, or its `config.`, to divide by ranks
    head: int = 0  # width of the heads that its outputs are, if a rank needs whole ones; else 0


class TensorLayer(nn.Module):
    """Mixin before a layer's own class, with the all-reduces of its style around it."""

    style: Style = Style()  # that of modules made anew for their buffers
    ranks: DeviceMesh  # the tensor-parallel ranks

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the layer's own forward with this rank's shards of its weights."""
        if not self.style.sums:
            return self._compute(*inputs, **options)
        if inputs:
            inputs = (self._reduced(inputs[0], "input"), *inputs[1:])
        else:
            options["hidden_states"] = self._reduced(options["hidden_states"], "input")
        if "output" not in self.style.sums:
            return self._reduced(self._compute(*inputs, **options), "output")
        said, bias = self._compute(*inputs, absent="bias", **options), self._part("bias")
        first, *others = said if isinstance(said, tuple) else (said,)
        output = self._reduced(first, "output")
        output = output if bias is None else output + bias.to(output.dtype)
        return (output, *others) if others else output

    def indices(self, name: str, count: int) -> Tensor:
        """Return (count,) int32: which rows or columns of a parameter this rank's `count` are."""
        if self.style.cuts.get(name) not in _PLACEMENTS:
            return torch.arange(count, dtype=torch.int32)
        shares, ranks = self.style.shares.get(name, (1,)), self.ranks.size()
        each = count * ranks // sum(shares)
        whole = torch.arange(count * ranks, dtype=torch.int32)
        pieces = torch.split(whole, [each * share for share in shares])
        return torch.cat([piece.chunk(ranks)[self.ranks.get_local_rank()] for piece in pieces])

    def _reduced(self, states: Tensor, end: Literal["input", "output"]) -> Tensor:
        """All-reduce the states at an end of the layer, and their gradient, as its style says."""
        if end in self.style.sums:
            states = linear_map(states, self._sum, lambda grad: grad)
        if f"{end} gradient" in self.style.sums:
            states = linear_map(states, lambda own: own.view_as(own), self._sum)
        return states

    def _sum(self, partial: Tensor) -> Tensor:
        return summed(partial, self.ranks)

    def _compute(self, *inputs: Any, absent: str = "", **options: Any) -> Any:
        """Swap shards for parameters, as torch's `functional_call` does, and compute."""
        held = dict(self._parameters)
        for name in held:
            self._parameters[name] = None if name == absent else self._part(name)
        try:
            return super().forward(*inputs, **options)
        finally:
            self._parameters.update(held)

    def _part(self, name: str) -> Any:
        """Return this rank's shard of a parameter; None if the layer has none of that name."""
        parameter, cut = self._parameters.get(name), self.style.cuts.get(name)
        if parameter is None:
            return None
        assert isinstance(parameter, DTensor), "cut_layers has made it one"
        return parameter.to_local(grad_placements=[Partial()] if cut == "partial" else None)


class Heads(TensorLayer):
    """A column-parallel projection to keys or values, or to queries, keys and values in turn.

    Of a head that ranks share each computes a part, and gathers the others' (as Megatron-Core).
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map (..., in) to whole heads, of each kind (..., heads x width)."""
        output: Tensor = self._compute(input)
        shares = self.style.shares.get("weight", (1,))
        each = output.shape[-1] // sum(shares)
        if each * min(shares) >= self.style.head:
            return output
        parts = torch.split(output, [each * share for share in shares], dim=-1)
        heads = [_whole_heads(part, self.style.head, self.ranks) for part in parts]
        return torch.cat(heads, dim=-1)


class OverAllHeads(TensorLayer):
    """An RMSNorm over all heads (QK-norm), sharded over the ranks as its weight is."""

    variance_epsilon: float

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Run the own class's forward with the mean of squares over all ranks' heads."""
        own = input.float().square().mean(-1, keepdim=True)
        mean = linear_map(own, self._sum, self._sum) / self.ranks.size()
        said: Tensor = self._compute(input)
        ratio = ((own + self.variance_epsilon) / (mean + self.variance_epsilon)).sqrt()
        return _whole_heads((said * ratio).to(said.dtype), self.style.head, self.ranks)


class Stacks(TensorLayer):
    """Stacked experts, sharded by their intermediate features."""

    def _part(self, name: str) -> Any:
        """A bias after the all-reduce is included on one rank only."""
        part = super()._part(name)
        return part / self.ranks.size() if name == "down_proj_bias" else part


class Vocabulary(TensorLayer):
    """A vocabulary-parallel embedding: each rank has some tokens, and zeros for the others."""

    weight: nn.Parameter
    padding_idx: int | None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map (...) token ids to (..., hidden)."""
        weight, first = self._part("weight"), box_of(self.weight).start[0]
        places, padding = input - first, self.padding_idx
        if padding is not None:  # the padding row has no gradient
            padding = padding - first if 0 <= padding - first < len(weight) else None
        is_here = (places >= 0) & (places < len(weight))
        rows = functional.embedding(places.where(is_here, 0), weight, padding)
        partial = rows.masked_fill(~is_here[..., None], 0.0)
        output = linear_map(partial, self._sum, lambda grad: grad)
        scale = getattr(self, "embed_scale", None)  # Gemma's
        return output if scale is None else output * scale.to(output.dtype)


def cut_layers(
    model: nn.Module, styles: Mapping[str, Style], ranks: DeviceMesh
) -> dict[str, Pieces]:
    """Shard the layers of a model on the meta device, each by its style.

    Styles are by module name; layers without one stay as they are. A tied parameter stays tied.
    Returns the pieces of fused parameters, by name.
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
        kind = style.layer or TensorLayer
        layer.__class__ = type(f"{kind.__name__}{type(layer).__name__}", (kind, type(layer)), {})
        layer.style, layer.ranks = style, ranks
    return pieces


class _ConfigView:
    """A view of a configuration, for one module, with a count divided by the ranks."""

    def __init__(self, config: Any, name: str, share: int) -> None:
        self._config = config
        setattr(self, name, share)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def _share(module: Any, count: str, ranks: int) -> None:
    """Divide a count of a module, or of its configuration, by the ranks; at least 1."""
    holder, _, name = count.rpartition(".")
    owner = getattr(module, holder) if holder else module
    share = max(1, getattr(owner, name) // ranks)
    if holder:
        setattr(module, holder, _ConfigView(owner, name, share))
    else:
        setattr(module, name, share)


def _whole_heads(part: Tensor, width: int, ranks: DeviceMesh) -> Tensor:
    """Gather a head (..., width) from n neighbours that each have (..., width / n) of it.

    The gradient of a part is the sum of theirs, in the order of ranks. Whole heads stay as they
    are.
    """
    sharing = width // part.shape[-1]
    if sharing <= 1:
        return part

    def exchange(parts: Tensor) -> Tensor:  # (n, ...): part i goes to the i-th neighbour
        sent = parts.contiguous()
        arrived = torch.empty_like(sent)
        first = ranks.get_local_rank() // sharing * sharing
        counts = [int(first <= rank < first + sharing) for rank in range(ranks.size())]
        dist.all_to_all_single(arrived, sent, counts, counts, group=ranks.get_group())
        return arrived

    parts = linear_map(part.expand(sharing, *part.shape), exchange, exchange)
    return parts.movedim(0, -2).flatten(-2)


def summed(partial: Tensor, ranks: DeviceMesh) -> Tensor:
    """All-reduce a tensor, with the same bits on all ranks; a collective."""
    total = partial.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=ranks.get_group())
    return total


@dataclass(frozen=True, slots=True)
class VocabularyShard:
    """The tokens of this rank's shard of an output layer; all of them if it is not sharded."""

    size: int  # of the whole vocabulary
    first: int = 0  # first token
    ranks: DeviceMesh | None = None  # of all shards; None if not sharded

    @classmethod
    def of(cls, weight: Tensor) -> "VocabularyShard":
        """Return the shard of a matrix (V, h), sharded by rows or not."""
        if not isinstance(weight, DTensor):
            return cls(weight.shape[0])
        return cls(weight.shape[0], box_of(weight).start[0], weight.device_mesh)

    def all_gather(self, values: Tensor) -> Tensor:
        """All-gather (...) in rank order: (ranks, ...)."""
        if self.ranks is None:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.ranks.size())]
        dist.all_gather(parts, values, group=self.ranks.get_group())
        return torch.stack(parts)

    def all_reduce(self, values: Tensor) -> Tensor:
        """All-reduce (...)."""
        return values if self.ranks is None else summed(values, self.ranks)


def with_column(weight: Tensor, column: Tensor) -> Tensor:
    """Append a column (V,) to an output layer's matrix (V, h), both sharded by rows or not."""
    both = torch.cat([local_part(weight), local_part(column)[:, None]], dim=1)
    if not isinstance(weight, DTensor):
        return both
    rows, columns = weight.shape[0], both.shape[1]
    return DTensor.from_local(
        both,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=torch.Size((rows, columns)),
        stride=(columns, 1),
    )
