"""log Z of a prompt: a small network on top of the policy, trained by FlowRL (arXiv:2509.15207).

It reads the mean of the prompt's last hidden states. It is a module of the model, so optimizer,
sharding and checkpoints include it. Engines, references and exports do not.
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
"""Hidden layers, as wide as the model, before the output: three layers in all, as in the paper."""


class LogPartition(nn.Module):
    """Network from mean hidden states of prompts (n, h) to log Z (n,).

    Each hidden layer is linear, GELU, norm. No dropout, unlike verl's recipe: log Z depends on the
    prompt alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(_INNER))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(_INNER))
        self.output = nn.Linear(width, 1)

    def forward(self, means: Tensor) -> Tensor:
        """Compute log Z in float32, even under autocast or with 16-bit weights; unsharded."""
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
    """Add the network to an unsharded transformers model; it has no values yet.

    Its dtype is that of the trained parameters: of adapters, or of the weights.
    """
    weight = model.get_input_embeddings().weight  # type: ignore[operator]
    kind = next(p.dtype for p in model.parameters() if p.requires_grad)
    with torch.device("meta"):
        network = LogPartition(weight.shape[1]).to(kind)
    setattr(model, NAME, network.to_empty(device=weight.device))


def draw_log_partition(model: nn.Module, seed: int) -> None:
    """Initialize the network, if there is one: hidden matrices Kaiming-uniform, the output zero.

    So log Z starts at 0, as a critic's values do.
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
    """Return the network of a model that has one, at the last pipeline stage."""
    network: LogPartition = getattr(model, NAME)
    return network


def is_log_partition(name: str) -> bool:
    """Whether a tensor of this name belongs to the network."""
    return name.startswith(f"{NAME}.")
