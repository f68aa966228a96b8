"""What vLLM wants otherwise than files have it: experts of one tensor, and sinks of attention.

Its reload replaces what comes through the loaders of its layers. Some models write past them, into
tensors that are thrown away; these are told here in the ways that are not lost. Loads no vLLM.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ppojob_trainer.models.families import Mixture

SINKS = ".sinks"
"""What their names end with."""


def by_expert(
    tensors: Iterable[tuple[str, Tensor]], mixture: Mixture | None
) -> Iterator[tuple[str, Tensor]]:
    """Tensors by their names in files; what experts are stacked in comes expert by expert."""
    for name, tensor in tensors:
        at, _, kind = name.rpartition(".")
        if mixture is None or not mixture.is_stacked or not at.endswith(".experts"):
            yield name, tensor
            continue
        for number, own in enumerate(tensor):
            if mixture.is_clamped:  # vLLM has a model with such stacks, and a name for each part
                yield f"{at}.{number}.{kind}", own
                continue
            names = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
            rows = own if mixture.is_out_first else own.mT
            for part, matrix in zip(names, rows.chunk(len(names)), strict=True):
                yield f"{at}.{number}.{part}.weight", matrix


def set_sinks(model: nn.Module, sinks: Mapping[str, Tensor], rank: int, ranks: int) -> None:
    """Give the layers of a rank of an engine their sinks, (H,) each by its name in files.

    Kernels may have a copy in another type.
    """
    for name, whole in sinks.items():
        place = name.removesuffix(SINKS).replace(".self_attn", ".attn")
        attention: Any = model.get_submodule(place)
        for held in (attention.sinks, attention.attn.impl.sinks):
            held.data.copy_(whole.chunk(ranks)[rank])
