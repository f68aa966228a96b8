"""Objectives: the losses that updates minimize; here those of demonstrations.

Denominators are those of the whole mini-batch over all ranks, so losses, gradients and statistics
of micro-batches and ranks add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.algorithms.aggregate import aggregate
from ppojob_trainer.algorithms.masked import masked_sum, row_count, rows_with_any
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts of the whole mini-batch, over all ranks."""

    tokens: float  # trained tokens
    sequences: float  # rows with at least one trained token
    positives: float = 0.0  # trained tokens of correct responses, where correctness is known

    @classmethod
    def of(cls, rows: Experience) -> "Denominators":
        counts = row_count(rows.mask, rows.lengths)
        positives = 0.0 if rows.positives is None else float((rows.mask & rows.positives).sum())
        return cls(float(rows.mask.sum()), float((counts > 0).sum()), positives)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How token losses are reduced to one number; see `algorithms.aggregate`."""

    mode: str
    scale_tokens: float | None = None

    @classmethod
    def of(cls, spec: AlgorithmSpec, max_response_tokens: int | None) -> "Aggregation":
        """Return that of a job; `lossScaleTokens` defaults to its longest response."""
        return cls(spec.loss_aggregation, spec.loss_scale_tokens or max_response_tokens)

    def __call__(
        self,
        values: Tensor,
        rows: Experience,
        denominators: Denominators,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return this micro-batch's share of the mini-batch's value."""
        return aggregate(
            values,
            rows.mask if mask is None else mask,
            rows.lengths,
            self.mode,
            global_tokens=denominators.tokens,
            global_sequences=denominators.sequences,
            scale_tokens=self.scale_tokens,
        )


class TokenObjective:
    """An objective with a loss for each trained token, or for each row with one."""

    __slots__ = ()

    token_names: ClassVar[tuple[str, ...]] = ()

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """Return (n,) int64: the rows with a trained token."""
        return rows_with_any(rows.mask, rows.lengths)


@dataclass(slots=True)
class LossParts:
    """Contribution of a micro-batch to the mini-batch."""

    loss: Tensor  # scalar with gradient
    terms: dict[str, float] = field(default_factory=dict)  # divided by the denominators
    token_sums: dict[str, float] = field(default_factory=dict)  # over the computed tokens
    tokens: int = 0  # computed tokens
    counts: dict[str, float] = field(default_factory=dict)  # of a sum, if not `tokens`


def token_sums(columns: Mapping[str, Tensor], mask: Tensor) -> dict[str, float]:
    """Return the sum of each column over the trained tokens."""
    return {name: masked_sum(values, mask).item() for name, values in columns.items()}


_TOKEN_MEAN = Aggregation("token_mean")


@dataclass(frozen=True, slots=True)
class SftObjective(TokenObjective):
    """SFT: `L = aggregate(-log pi(a_t|s_t))`, over the first output of a `PolicyHead`."""

    aggregation: Aggregation

    area: ClassVar = "train"
    term_names: ClassVar = ("train/loss",)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
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
    weighted by p (1 - p), p its probability, without gradient: CHORD's φ (arXiv:2508.11408).
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
