"""Routers of Gemma 4 of transformers as those of other models are: they tell their logits."""

from torch import Tensor, nn
from torch.nn import functional
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter


def tell_logits(router: nn.Module) -> None:
    """Let a router say its logits where transformers' says their softmax."""
    router.__class__ = Gemma4Router


class Gemma4Router(Gemma4TextRouter):  # type: ignore[misc]
    """Chooses and weighs as transformers' own."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (t, E), weights (t, k) and experts (t, k) of tokens."""
        scaled = self.norm(hidden_states) * self.scale * self.scalar_root_size
        logits: Tensor = self.proj(scaled)
        probabilities = functional.softmax(logits, dim=-1, dtype=logits.float().dtype)
        weights, chosen = probabilities.topk(self.config.top_k_experts, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return logits, weights * self.per_expert_scale[chosen], chosen
