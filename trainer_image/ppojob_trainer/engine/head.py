"""What a model is asked about each trained token: heads over its hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.engine.fused_logprobs import Entropy, LogprobSettings, fused_logprobs

TokenOutputs = tuple[Tensor, ...]
"""What a head says of each token: one or more tensors (tokens,), float32."""


class Head(Protocol):
    """How hidden states become outputs; it holds no weights, those are the model's."""

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor, /) -> TokenOutputs:
        """Compute the outputs of a micro-batch.

        Args:
            model: its weights outside of the layers are whole while this runs.
            hidden: (tokens, h), the last hidden state in front of each trained token: that of the
                state s_t in which a_t was chosen.
            targets: (tokens,) int64, the trained tokens a_t.

        Returns:
            Always the same number of tensors (tokens,); the first has the gradient.
        """
        ...


class LastStates(NamedTuple):
    """What a head is given, of one micro-batch.

    Attributes:
        hidden: (tokens, h), the last hidden state in front of each trained token.
        weight: (V, h) of the output layer.
    """

    hidden: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True)
class PolicyHead:
    """Outputs log pi(a_t|s_t) and what the settings ask of pi(.|s_t): entropy, squares.

    Attributes:
        settings: temperature, tile size, what is asked.
    """

    settings: LogprobSettings

    @classmethod
    def of(cls, spec: PPOJobSpec, entropy: Entropy, *, squares: bool = False) -> PolicyHead:
        """The head at the temperature that responses are sampled with.

        Log-probabilities are of all tokens. What the sampler reports under top-p and top-k is
        renormalised over the tokens that these leave, so the two then differ even where the
        engines agree.
        """
        chunk = spec.training.logprob_chunk_tokens
        return cls(LogprobSettings(spec.rollout.temperature, chunk, entropy, squares))

    @classmethod
    def of_updates(cls, spec: PPOJobSpec) -> PolicyHead:
        """What updates ask of the policy."""
        return cls.of(spec, "gradient" if spec.algorithm.has_entropy_bonus else "value")

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        """`(logprobs, entropy, squares)`, the last two where they are asked for."""
        weight = model.get_output_embeddings().weight
        return fused_logprobs(hidden, weight, targets, self.settings)
