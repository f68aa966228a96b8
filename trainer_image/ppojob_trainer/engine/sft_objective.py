"""What supervised fine-tuning minimizes: the cross-entropy of the trained tokens of given answers.

`L = aggregate(-log pi(a_t|s_t))`, s_t all that stands before the token a_t. It is the loss of a
job, or stands beside that of a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.algorithms.masked import masked_sum
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Aggregation, Denominators, LossParts, OfTokens
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience

_TOKEN_MEAN = Aggregation("token_mean")


@dataclass(frozen=True, slots=True)
class SftObjective(OfTokens):
    """The loss of an update, over the first output of a `PolicyHead`."""

    aggregation: Aggregation

    area: ClassVar = "train"
    term_names: ClassVar = ("train/loss",)

    @classmethod
    def of(cls, spec: AlgorithmSpec, *, max_response_tokens: int) -> SftObjective:
        """The objective that a job asks for."""
        return cls(Aggregation.of(spec, max_response_tokens))

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch."""
        loss = self.aggregation(-outputs[0], rows, denominators)
        return LossParts(loss, {"train/loss": loss.item()}, tokens=int(rows.mask.sum()))

    def measured(self, outputs: TokenOutputs, rows: Experience) -> PassStatistics:
        """The cross-entropy of held-out rows, a token."""
        sums = {"val/loss": masked_sum(-outputs[0], rows.mask).item()}
        return PassStatistics(token_sums=sums, tokens=int(rows.mask.sum()))


@dataclass(frozen=True, slots=True)
class SupervisedObjective(OfTokens):
    """`c L` with the mean over tokens, to be added to the loss of a policy.

    PPO-ptx (InstructGPT, arXiv:2203.02155), equation 2. With `uncertain_tokens` each token is
    weighed with p (1 - p), p its probability, of which no gradient is taken: CHORD's φ
    (arXiv:2508.11408).
    """

    coefficient: float  # c
    uncertain_tokens: bool = False

    area: ClassVar = "actor"
    term_names: ClassVar = ("actor/sft_loss",)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The share of a micro-batch; its tokens do not count among those of the policy's rows."""
        losses = -outputs[0]
        if self.uncertain_tokens:
            likely = outputs[0].detach().exp()
            losses = losses * likely * (1.0 - likely)
        loss = _TOKEN_MEAN(losses, rows, denominators)
        weighed = self.coefficient * loss
        return LossParts(weighed, {"actor/sft_loss": loss.item(), "actor/loss": weighed.item()})
