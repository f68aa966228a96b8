"""Gemma 4 adaptations: routers that return logits, and per-layer embeddings (E2B, E4B)."""

from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter


class Gemma4Router(Gemma4TextRouter):  # type: ignore[misc]
    """Routes as transformers' own, which returns the softmax in place of logits."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (t, E), weights (t, k) and experts (t, k) of tokens."""
        scaled = self.norm(hidden_states) * self.scale * self.scalar_root_size
        logits: Tensor = self.proj(scaled)
        probabilities = functional.softmax(logits, dim=-1, dtype=logits.float().dtype)
        weights, chosen = probabilities.topk(self.config.top_k_experts, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return logits, weights * self.per_expert_scale[chosen], chosen


def per_layer_inputs(model: Any, ids: Tensor, places: Tensor | None = None) -> dict[str, Tensor]:
    """Return the per-layer inputs of a model whose tokens come as embeddings, if it has any.

    Args:
        model: a causal language model of transformers.
        ids: (b, t) int64.
        places: (n,) int64, image tokens among the b * t: they get the per-layer embedding of
            padding.

    Returns:
        An argument of transformers' decoder, or none.
    """
    if not getattr(model.config, "hidden_size_per_layer_input", 0):
        return {}
    if places is not None:
        padding = model.config.pad_token_id
        ids = ids.flatten().index_fill(0, places, padding).view_as(ids)
    return {"per_layer_inputs": model.base_model.get_per_layer_inputs(ids, None)}
