"""What a model is asked about each trained token: heads over its hidden states."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from ppojob_trainer.engine.fused_logprobs import LogprobSettings, fused_logprobs

TokenOutputs = tuple[Tensor, ...]
"""What a head says of each token: one or more tensors (tokens,), float32."""


class Head(Protocol):
    """How hidden states become outputs; it holds no weights, those are the model's."""

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
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


@dataclass(frozen=True, slots=True)
class PolicyHead:
    """Outputs log pi(a_t|s_t) and what the settings ask of pi(.|s_t): entropy, squares.

    Attributes:
        settings: temperature, tile size, what is asked.
    """

    settings: LogprobSettings

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        """`(logprobs, entropy, squares)`, the last two where they are asked for."""
        weight = model.get_output_embeddings().weight
        return fused_logprobs(hidden, weight, targets, self.settings)
