"""Heads: what is computed of the hidden states at each trained token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.engine.fused_logprobs import Entropy, LogprobSettings, fused_logprobs
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.vocabulary import with_column

TokenOutputs = tuple[Tensor, ...]
"""The outputs of a head: one or more tensors (tokens,), float32."""


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


def read_by_output_layer(model: PreTrainedModel, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states and a weight whose products are what the output layer says of the states.

    A bias, as Phi's, is a column of the weight, for a feature that is 1 everywhere.
    """
    layer = model.get_output_embeddings()
    weight, bias = layer.weight, getattr(layer, "bias", None)
    if bias is None:
        return hidden, weight
    hidden = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)
    return hidden, with_column(weight, bias)


class LastStates(NamedTuple):
    """What a head is given, of one micro-batch."""

    hidden: Tensor  # (tokens, h), the last hidden state in front of each trained token
    weight: Tensor  # (V, h) of the output layer
    settings: LogprobSettings | None = None  # of its logits; absent: those of whom it is held to


@dataclass(frozen=True, slots=True)
class PolicyHead:
    """Outputs log pi(a_t|s_t) and what the settings ask of pi(.|s_t), such as its entropy."""

    settings: LogprobSettings

    @classmethod
    def of(
        cls,
        spec: PPOJobSpec,
        entropy: Entropy,
        *,
        squares: bool = False,
        certainty: bool = False,
    ) -> PolicyHead:
        """The head at the temperature that responses are sampled with.

        Log-probabilities are of all tokens. What the sampler reports under top-p and top-k is
        renormalised over the tokens that these leave, so the two then differ even where the
        engines agree.
        """
        chunk = spec.training.logprob_chunk_tokens
        temperature = spec.rollout.temperature
        return cls(LogprobSettings(temperature, chunk, entropy, squares, certainty))

    @classmethod
    def of_updates(cls, spec: PPOJobSpec) -> PolicyHead:
        """What updates ask of the policy."""
        if spec.algorithm.given:
            return cls.of(spec, "none")
        return cls.of(spec, "gradient" if spec.algorithm.has_entropy_bonus else "value")

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        """`(logprobs, entropy, squares, certainty)`, all but the first where they are asked for."""
        read = read_by_output_layer(model, hidden)
        return fused_logprobs(*read, targets, self.settings_of(model))

    def settings_of(self, model: PreTrainedModel) -> LogprobSettings:
        """The settings with what the model's family makes of its output layer's products."""
        family = FAMILIES[model.config.model_type]
        divisor = getattr(model.config, family.logit_divisor, 1.0)
        divisor /= getattr(model.config, family.logit_multiplier, 1.0)
        return replace(
            self.settings,
            temperature=self.settings.temperature * divisor,
            cap=getattr(model.config, family.logit_cap, None),
        )


class ValueHead:
    """Outputs V(s_t) of a model with a `score` layer: values of a critic, scores of a reward model.

    s_t is the state in which a_t is chosen, so a value knows no token that its advantage judges: it
    comes from the same packed position as log pi(a_t|s_t). verl: `values[:, -n - 1 : -1]`.
    """

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        """`(values,)`, (tokens,), in float32 also under autocast: bfloat16 keeps three digits."""
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        weight, bias = local_part(model.score.weight).to(wide), model.score.bias
        bias = None if bias is None else local_part(bias).to(wide)
        with torch.autocast(hidden.device.type, enabled=False):
            values = F.linear(hidden.to(wide), weight, bias)
        return (values.squeeze(-1),)
