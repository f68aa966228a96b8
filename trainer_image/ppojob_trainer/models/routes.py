"""Routes: which experts the tokens of a forward pass go to, layer by layer.

A pass that is given them does not ask its routers which ones; how much each counts is the routers'
own softmax over those, so that they learn as ever (GSPO: Zheng et al. 2025, arXiv:2507.18071,
section 5.3; R3: Ma et al. 2025, arXiv:2510.11370, section 4).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ppojob_trainer.models.families import Mixture
from ppojob_trainer.models.mixtures import key_of_chosen

EXPERT_DTYPE = torch.int16
"""Of numbers of experts where they are kept."""

Attach = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Takes a layer's number, its logits (t, E), the experts (t, k) that its router finds, and weights;
gives the weights back, which may carry a loss through the backward pass.
"""


def goes_to(logits: Tensor, chosen: Tensor) -> Tensor:
    """(t, E) bool: which experts each token goes to, of logits (t, E) and those chosen, (t, k)."""
    experts = torch.arange(logits.shape[1], device=logits.device)
    return (chosen[..., None] == experts).any(dim=1)


class Routes:
    """The experts of the tokens of one forward pass: those that it is given, or has chosen."""

    def __init__(
        self,
        given: Tensor | None = None,
        sources: Tensor | None = None,
        attach: Attach | None = None,
    ) -> None:
        """Begin a pass.

        Args:
            given: (t, layers, k) on the model's device, of the tokens of this rank; None where
                routers choose.
            sources: (packed,) int64, which token of the rows each is, see `PackedRows.sources`.
            attach: adds losses of each layer's router; None for none.
        """
        self.sources = torch.empty(0, dtype=torch.int64) if sources is None else sources
        self._given = given
        self._attach = attach
        self._chosen: dict[int, Tensor] = {}

    def through(
        self, layer: int, router: Any, mixture: Mixture, told: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """What a router of transformers says: logits, weights and experts of each token."""
        logits, weights, found = told
        chosen = found
        if self._given is None:
            self._chosen[layer] = chosen.to(EXPERT_DTYPE)
        else:
            chosen = self._given[:, layer].long()
            weights = _worth(router, mixture, logits, chosen).to(weights.dtype)
        if self._attach is not None:
            weights = self._attach(layer, logits, found, weights)
        return logits, weights, chosen

    def pass_by(self, layer: int, states: Tensor, count: int) -> None:
        """Note a layer without experts, (1, t, h) in front of it: as if all took the first."""
        self._chosen[layer] = states.new_zeros((*states.shape[:-1], count), dtype=EXPERT_DTYPE)
        self._chosen[layer] = self._chosen[layer].flatten(0, -2)

    def chosen(self, layers: int) -> Tensor:
        """(t, layers, k) what the routers chose; 0 in layers of other stages."""
        some = next(iter(self._chosen.values()))
        absent = torch.zeros_like(some)
        return torch.stack([self._chosen.get(layer, absent) for layer in range(layers)], dim=1)


def _worth(router: Any, mixture: Mixture, logits: Tensor, chosen: Tensor) -> Tensor:
    """How much each of given experts counts, as routers of transformers say of those they find."""
    if mixture.scoring == "sigmoid":
        worth = logits.float().sigmoid().gather(-1, chosen)
        if getattr(router, "norm_topk_prob", True):  # MiniMax's always does
            worth = worth / (worth.sum(dim=-1, keepdim=True) + mixture.floor)
        return worth * float(getattr(router, "routed_scaling_factor", 1.0))
    if mixture.chooses_first or hasattr(router, "bias"):  # the same but for the last digit
        return logits.gather(-1, chosen).softmax(dim=-1)
    worth = torch.softmax(logits, dim=-1, dtype=torch.float).gather(-1, chosen)
    if (scale := getattr(router, "routed_scaling_factor", None)) is not None:  # DeepSeek-V2
        return worth * float(scale)
    if getattr(router, "norm_topk_prob", True):  # Mixtral's always does
        worth = worth / worth.sum(dim=-1, keepdim=True)
    return worth * router.per_expert_scale[chosen] if mixture.has_scales else worth


def chosen_by_a_token(config: Any) -> int:
    """How many experts a token goes to, by the configuration of a mixture."""
    return int(getattr(config, key_of_chosen(config.to_dict())))


def as_bytes(pieces: Sequence[Tensor], config: Any) -> bytes:
    """Experts (t, layers, k) of tokens, piece after piece, as engines tell them."""
    if not pieces:
        return b""
    return torch.cat(list(pieces)).numpy().astype(_told_as(config)).tobytes()


def of_bytes(told: bytes, tokens: int, config: Any) -> Tensor:
    """(tokens, layers, k) of what an engine told; of tokens that it has not read 0."""
    shape = (config.num_hidden_layers, chosen_by_a_token(config))
    experts = torch.zeros(tokens, *shape, dtype=EXPERT_DTYPE)
    known = np.frombuffer(told, _told_as(config)).astype(np.int16).reshape(-1, *shape)
    experts[: len(known)] = torch.from_numpy(known[:tokens])
    return experts


def _told_as(config: Any) -> type[np.integer[Any]]:
    """The numbers of experts that engines tell: of one byte where that is enough."""
    experts = getattr(config, "num_experts", None) or config.num_local_experts
    return np.uint8 if experts <= 256 else np.int16


def follow_routes(
    layer: nn.Module, router: nn.Module | None, mixture: Mixture, number: int, count: int
) -> None:
    """Let the router of a layer go by the `routes` that the layer is called with, if any.

    They come with each call, for a layer may be computed again behind another pass. A token has
    `count` experts; a layer without any takes the routes too.
    """
    of_call: list[Routes | None] = [None]

    def take(_layer: nn.Module, args: Any, options: dict[str, Any]) -> None:
        of_call[0] = routes = options.pop("routes", None)
        if router is None and routes is not None:
            routes.pass_by(number, args[0], count)

    def go_by(router: nn.Module, _args: Any, told: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if of_call[0] is None:
            return told
        turn = slice(None, None, -1 if mixture.chooses_first else 1)
        return of_call[0].through(number, router, mixture, told[turn])[turn]

    layer.register_forward_pre_hook(take, with_kwargs=True)
    if router is not None:
        router.register_forward_hook(go_by)
