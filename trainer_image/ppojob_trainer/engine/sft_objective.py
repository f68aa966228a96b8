"""What supervised fine-tuning minimizes: the cross-entropy of the trained tokens of given answers.

`L = aggregate(-log pi(a_t|s_t))`, s_t all that stands before the token a_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.algorithms.masked import masked_sum, row_count
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Aggregation, Denominators, LossParts
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class SftObjective:
    """The loss of an update, over the first output of a `PolicyHead`."""

    aggregation: Aggregation

    area: ClassVar = "train"
    term_names: ClassVar = ("train/loss",)
    token_names: ClassVar = ()

    @classmethod
    def of(cls, spec: AlgorithmSpec, *, max_response_tokens: int) -> SftObjective:
        """The objective that a job asks for, with what stands for an absent `lossScaleTokens`."""
        scale = spec.loss_scale_tokens or max_response_tokens
        return cls(Aggregation(spec.loss_aggregation, scale))

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64: the rows that hold a trained token."""
        return row_count(rows.mask, rows.lengths).nonzero()[:, 0]

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
