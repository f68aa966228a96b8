"""Supervised fine-tuning (SFT) loss: cross-entropy of the trained tokens of demonstrations.

`L = aggregate(-log pi(a_t|s_t))`, s_t the context before the token a_t. It is the loss of an SFT
job, or is added to that of a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.algorithms.masked import masked_sum
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Aggregation, Denominators, LossParts, TokenObjective
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience

_TOKEN_MEAN = Aggregation("token_mean")


@dataclass(frozen=True, slots=True)
class SftObjective(TokenObjective):
    """The SFT loss of an update, over the first output of a `PolicyHead`."""

    aggregation: Aggregation

    area: ClassVar = "train"
    term_names: ClassVar = ("train/loss",)

    @classmethod
    def of(cls, spec: AlgorithmSpec, *, max_response_tokens: int) -> SftObjective:
        """Return the objective of a job."""
        return cls(Aggregation.of(spec, max_response_tokens))

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return the loss of a micro-batch."""
        loss = self.aggregation(-outputs[0], rows, denominators)
        return LossParts(loss, {"train/loss": loss.item()}, tokens=int(rows.mask.sum()))

    def measured(self, outputs: TokenOutputs, rows: Experience) -> PassStatistics:
        """Return the mean cross-entropy per token of held-out rows."""
        sums = {"val/loss": masked_sum(-outputs[0], rows.mask).item()}
        return PassStatistics(token_sums=sums, tokens=int(rows.mask.sum()))


@dataclass(frozen=True, slots=True)
class SupervisedObjective(TokenObjective):
    """`c L` with the mean over tokens, added to the loss of a policy.

    PPO-ptx (InstructGPT, arXiv:2203.02155), equation 2. With `uncertain_tokens` each token is
    weighted by p (1 - p), p its probability, without gradient through the weight: CHORD's φ
    (arXiv:2508.11408).
    """

    coefficient: float  # c
    uncertain_tokens: bool = False

    area: ClassVar = "actor"
    term_names: ClassVar = ("actor/sft_loss",)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return a micro-batch's share; its tokens do not count among the policy's."""
        losses = -outputs[0]
        if self.uncertain_tokens:
            likely = outputs[0].detach().exp()
            losses = losses * likely * (1.0 - likely)
        loss = _TOKEN_MEAN(losses, rows, denominators)
        weighed = self.coefficient * loss
        return LossParts(weighed, {"actor/sft_loss": loss.item(), "actor/loss": weighed.item()})
