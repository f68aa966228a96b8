"""log Z of a prompt: a small network beside the policy, which FlowRL (arXiv:2509.15207) trains.

It reads the mean of the last hidden states of the prompt, and is trained by the policy's loss and
optimizer. It stands in the model, so layouts and checkpoints have it as they have the weights; it
is none of them: engines, references and exports know nothing of it.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ppojob_trainer.models.lora import drawn
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.fsdp import fill

NAME: Final = "log_partition"
_INNER: Final = 2
"""Layers of the width of the model, in front of the last one: three in all, as in the paper."""


class LogPartition(nn.Module):
    """(n, h) mean states of prompts to (n,) log Z.

    Each inner layer is linear, with a GELU and a norm behind it. No dropout, which verl's recipe
    has: what is learnt of a prompt hangs on nothing but the prompt.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(_INNER))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(_INNER))
        self.output = nn.Linear(width, 1)

    def forward(self, means: Tensor) -> Tensor:
        """In float32 also where the weights are not, and under autocast; whole weights."""
        wide = torch.float64 if means.dtype == torch.float64 else torch.float32

        def of(layer: Any) -> tuple[Tensor, Tensor]:
            return local_part(layer.weight).to(wide), local_part(layer.bias).to(wide)

        with torch.autocast(means.device.type, enabled=False):
            states = means.to(wide)
            for layer, norm in zip(self.inner, self.norms, strict=True):
                states = functional.gelu(functional.linear(states, *of(layer)))
                states = functional.layer_norm(states, states.shape[-1:], *of(norm))
            return functional.linear(states, *of(self.output)).squeeze(-1)


def add_log_partition(model: nn.Module) -> None:
    """Put the network into a model of transformers that is not cut yet; it has no values then.

    Its type is that of what is trained beside it: of adapters, or of the weights.
    """
    weight = model.get_input_embeddings().weight  # type: ignore[operator]
    kind = next(p.dtype for p in model.parameters() if p.requires_grad)
    with torch.device("meta"):
        network = LogPartition(weight.shape[1]).to(kind)
    setattr(model, NAME, network.to_empty(device=weight.device))


def draw_log_partition(model: nn.Module, seed: int) -> None:
    """Set it to its beginning: inner matrices Kaiming-uniform as those of adapters, the last zero.

    So log Z begins at 0, as the values of a critic do. Nothing is done without the network.
    """
    for name, parameter in model.named_parameters():
        if not is_log_partition(name):
            continue
        values = torch.zeros(parameter.shape)
        if name.endswith("weight"):
            values = torch.ones_like(values) if ".norms." in name else values
            values = drawn(values, seed, name) if ".inner." in name else values
        fill(parameter, values)


def log_partition_of(model: nn.Module) -> LogPartition:
    """The network of a model that has one, at the last stage."""
    network: LogPartition = getattr(model, NAME)
    return network


def is_log_partition(name: str) -> bool:
    """Whether a tensor of this name belongs to the network."""
    return name.startswith(f"{NAME}.")
