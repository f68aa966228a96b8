"""Routes: the MoE experts of the tokens of a forward pass, layer by layer, for router replay.

A pass with given routes does not select experts; their weights are the router's softmax over them,
so routers are trained as usual (GSPO: Zheng et al. 2025, arXiv:2507.18071, section 5.3; R3:
Ma et al. 2025, arXiv:2510.11370, section 4).
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ppojob_trainer.models.family import MixtureOfExperts
from ppojob_trainer.models.mixtures import top_k_of

EXPERT_DTYPE = torch.int16
"""Dtype of stored expert indices."""

AttachLoss = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Function that attaches a loss to router weights, for the backward pass.

From a layer's number, its logits (t, E), its router's own experts (t, k) and weights, to weights.
"""


def expert_mask(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return (t, E) bool: the chosen experts, of logits (t, E) and choices (t, k)."""
    experts = torch.arange(logits.shape[1], device=logits.device)
    return (chosen[..., None] == experts).any(dim=1)


class Routes:
    """Experts of the tokens of one forward pass, replayed or recorded."""

    def __init__(
        self,
        given: Tensor | None = None,
        sources: Tensor | None = None,
        attach: AttachLoss | None = None,
    ) -> None:
        """Begin a pass, in which routers choose, or follow the experts `given`, (t, layers, k).

        `sources` are those of `PackedRows`; `attach` adds losses to each layer's router.
        """
        self.sources = torch.empty(0, dtype=torch.int64) if sources is None else sources
        self._given = given
        self._attach = attach
        self._chosen: dict[int, Tensor] = {}

    def apply(
        self, layer: int, router: Any, mixture: MixtureOfExperts, output: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Return a router's output under replay: logits, weights, experts."""
        logits, weights, own = output
        chosen = own
        if self._given is None:
            self._chosen[layer] = chosen.to(EXPERT_DTYPE)
        else:
            chosen = self._given[:, layer].long()
            weights = _weights_of(router, mixture, logits, chosen).to(weights.dtype)
        if self._attach is not None:
            weights = self._attach(layer, logits, own, weights)
        return logits, weights, chosen

    def record_dense(self, layer: int, states: Tensor, count: int) -> None:
        """Record expert 0 for all tokens of a dense layer, with inputs (1, t, h)."""
        tokens = states[..., 0].numel()
        self._chosen[layer] = states.new_zeros((tokens, count), dtype=EXPERT_DTYPE)

    def chosen(self, layers: int) -> Tensor:
        """Return (t, layers, k) the recorded experts; 0 in layers of other stages."""
        some = next(iter(self._chosen.values()))
        absent = torch.zeros_like(some)
        return torch.stack([self._chosen.get(layer, absent) for layer in range(layers)], dim=1)


def _weights_of(router: Any, mixture: MixtureOfExperts, logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the weights of given experts by the router's formula."""
    if mixture.scoring == "sparsemixer":
        return mix_sparsely(logits, router.router_jitter_noise, chosen)[0]
    if mixture.scoring == "sigmoid":
        weights = logits.float().sigmoid().gather(-1, chosen)
        if getattr(router, "norm_topk_prob", True):  # MiniMax's always normalizes
            weights = weights / (weights.sum(dim=-1, keepdim=True) + mixture.weight_epsilon)
        return weights * float(getattr(router, mixture.scale, 1.0))
    if mixture.topk_before_softmax or hasattr(router, "bias"):  # equal up to the last digit
        return logits.gather(-1, chosen).softmax(dim=-1)
    weights = torch.softmax(logits, dim=-1, dtype=torch.float).gather(-1, chosen)
    scale = getattr(router, mixture.scale, None)
    # Mixtral's always normalizes, DeepSeek-V2's never.
    if getattr(router, "norm_topk_prob", scale is None):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    if scale is not None:
        return weights * float(scale)
    return weights * router.per_expert_scale[chosen] if mixture.has_scales else weights


def mix_sparsely(
    logits: Tensor, noise: float, given: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return weights (t, 2) of two experts, and these: the best ones of logits (t, E), or `given`.

    SparseMixer (Liu et al. 2024, arXiv:2409.12136) in inference, without random choices: a weight
    is the softmax over the experts left whose logit is at most `2 noise` from the best, by share.
    """
    weights, experts, left = [], [], logits
    for place in range(2):
        best, expert = left.max(dim=-1, keepdim=True)
        expert = expert if given is None else given[:, place : place + 1]
        distance = (best - logits) / logits.abs().maximum(best)
        is_far = (distance > 2.0 * noise).scatter(-1, expert, value=False)
        shares = left.masked_fill(is_far, -torch.inf).softmax(dim=-1)
        weights.append(shares.gather(-1, expert))
        experts.append(expert)
        left = left.scatter(-1, expert, -torch.inf)
    return torch.cat(weights, dim=-1), torch.cat(experts, dim=-1)


def experts_per_token(config: Any) -> int:
    """Return the number of experts per token (top-k), by a configuration."""
    return cast("int", top_k_of(config.to_dict()))


def as_bytes(pieces: Sequence[Tensor], config: Any) -> bytes:
    """Serialize experts (t, layers, k), piece after piece, in the engines' format."""
    if not pieces:
        return b""
    return torch.cat(list(pieces)).numpy().astype(_wire_dtype(config)).tobytes()


def of_bytes(content: bytes, tokens: int, config: Any) -> Tensor:
    """Deserialize an engine's experts to (tokens, layers, k); 0 for tokens that it did not read."""
    shape = (config.num_hidden_layers, experts_per_token(config))
    experts = torch.zeros(tokens, *shape, dtype=EXPERT_DTYPE)
    known = np.frombuffer(content, _wire_dtype(config)).astype(np.int16).reshape(-1, *shape)
    experts[: len(known)] = torch.from_numpy(known[:tokens])
    return experts


def _wire_dtype(config: Any) -> type[np.integer[Any]]:
    """Return the dtype of the engines' format: one byte where that is enough."""
    experts = getattr(config, "num_experts", None) or config.num_local_experts
    return np.uint8 if experts <= 256 else np.int16


def follow_routes(
    layer: nn.Module, router: nn.Module | None, mixture: MixtureOfExperts, number: int, count: int
) -> None:
    """Make a layer's router follow the `routes` argument of the layer, if any.

    It is an argument of each call, since activation checkpointing may recompute a layer after
    another pass. A token has `count` experts; dense layers accept the argument too.
    """
    of_call: list[Routes | None] = [None]

    def pop_routes(_layer: nn.Module, args: Any, options: dict[str, Any]) -> None:
        of_call[0] = routes = options.pop("routes", None)
        if router is None and routes is not None:
            routes.record_dense(number, args[0], count)

    def replay(router: nn.Module, _args: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if of_call[0] is None:
            return output
        order = slice(None, None, -1 if mixture.returns_experts_first else 1)
        return of_call[0].apply(number, router, mixture, output[order])[order]

    layer.register_forward_pre_hook(pop_routes, with_kwargs=True)
    if router is not None:
        router.register_forward_hook(replay)
