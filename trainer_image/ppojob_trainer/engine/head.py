"""Heads: outputs computed from the hidden state of each trained token."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.engine.fused_logprobs import Entropy, LogprobSettings, fused_logprobs
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.tensor_styles import with_column

TokenOutputs = tuple[Tensor, ...]
"""The outputs of a head: one or more (tokens,) float32 tensors."""


Head = Callable[[PreTrainedModel, Tensor, Tensor], TokenOutputs]
"""Function from hidden states to outputs: always as many (tokens,) tensors.

It gets the model, whose weights outside of the layers are unsharded, the last hidden state before
each trained token, (tokens, h), and these tokens, (tokens,) int64. Gradients are of the first one.
"""


def read_by_output_layer(model: PreTrainedModel, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden states and a weight whose product are the logits.

    A bias (Phi) becomes a column of the weight, with a hidden feature of 1.
    """
    layer = model.get_output_embeddings()
    weight, bias = layer.weight, getattr(layer, "bias", None)
    if bias is None:
        return hidden, weight
    hidden = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)
    return hidden, with_column(weight, bias)


class LastStates(NamedTuple):
    """The inputs of a head for one micro-batch."""

    hidden: Tensor  # (tokens, h), the last hidden state in front of each trained token
    weight: Tensor  # (V, h) of the output layer
    settings: LogprobSettings | None = None  # of its logits; None: the policy's settings


@dataclass(frozen=True, slots=True)
class PolicyHead:
    """Returns log pi(a_t|s_t) and the statistics of pi(.|s_t) that the settings ask for."""

    settings: LogprobSettings

    @classmethod
    def of(
        cls,
        spec: PPOJobSpec,
        entropy: Entropy,
        *,
        squares: bool = False,
        certainty: bool = False,
    ) -> "PolicyHead":
        """Make the head at the sampling temperature of the job.

        Log-probabilities are over the full vocabulary; with top-p or top-k the sampler's are
        renormalized over the remaining tokens.
        """
        chunk = spec.training.logprob_chunk_tokens
        temperature = spec.rollout.temperature
        return cls(LogprobSettings(temperature, chunk, entropy, squares, certainty))

    @classmethod
    def of_updates(cls, spec: PPOJobSpec) -> "PolicyHead":
        pairs = spec.algorithm.pairs
        squares = pairs is not None and pairs.weight_by_policy
        if spec.algorithm.given:
            return cls.of(spec, "none", squares=squares)
        bonus = spec.algorithm.has_entropy_bonus
        return cls.of(spec, "gradient" if bonus else "value", squares=squares)

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        """Return `(logprobs, entropy, squares, certainty)`, all but the first if asked for."""
        read = read_by_output_layer(model, hidden)
        return fused_logprobs(*read, targets, self.settings_of(model))

    def settings_of(self, model: PreTrainedModel) -> LogprobSettings:
        """Return the settings with the model family's logit scale and softcap."""
        family = FAMILIES[model.config.model_type]
        divisor = getattr(model.config, family.logit_divisor, 1.0)
        divisor /= getattr(model.config, family.logit_multiplier, 1.0)
        return replace(
            self.settings,
            temperature=self.settings.temperature * divisor,
            cap=getattr(model.config, family.logit_cap, None),
        )


class ValueHead:
    """Returns V(s_t) of a model with a `score` layer: a critic's values, a reward model's scores.

    s_t is the state before a_t, as for log pi(a_t|s_t). verl: `values[:, -n - 1 : -1]`.
    """

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        """Return `(values,)`, (tokens,), float32 also under autocast."""
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        weight, bias = local_part(model.score.weight).to(wide), model.score.bias
        bias = None if bias is None else local_part(bias).to(wide)
        with torch.autocast(hidden.device.type, enabled=False):
            values = F.linear(hidden.to(wide), weight, bias)
        return (values.squeeze(-1),)
