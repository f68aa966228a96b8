"""What updates on preferences minimize: the mean of a loss of pairs, of answers c and r.

Row 2 i is the chosen answer of pair i and row 2 i + 1 the rejected one: a group of two rows, which
no rank, mini-batch or micro-batch parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from ppojob_api.v1alpha1.algorithm import DpoSpec, RewardModelTrainingSpec
from ppojob_trainer.algorithms.masked import row_mean, row_sum
from ppojob_trainer.algorithms.pair_losses import PAIR_LOSSES
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Denominators, LossParts
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """A loss of `PAIR_LOSSES`, and the cross-entropy of the chosen answers beside it.

    The rewards that are told are `beta` times what the loss compares: `log(pi(y|x) / pi_ref(y|x))`,
    or `log pi(y|x)` without a reference, over an answer or its mean over the tokens.
    """

    spec: DpoSpec

    def __call__(self, logprobs: Tensor, rows: Experience) -> tuple[Tensor, Tensor]:
        """Losses (pairs,) and rewards (rows,); `ref_logprobs` are there, if it reads them."""
        spec, needs = self.spec, self.spec.loss
        compared = logprobs
        if needs.has_reference:
            assert rows.ref_logprobs is not None, "the reference comes before the update"
            compared = logprobs - rows.ref_logprobs
        ratios = (row_mean if needs.is_mean else row_sum)(compared, rows.mask, rows.lengths)
        losses = PAIR_LOSSES[spec.loss_type](ratios[0::2], ratios[1::2], **_options(spec))
        if weight := spec.own_sft_weight:
            losses = losses - weight * row_mean(logprobs, rows.mask, rows.lengths)[0::2]
        return losses, spec.beta * ratios


def _options(spec: DpoSpec) -> dict[str, float]:
    """What its loss reads, by the names of the arguments."""
    found, needs = {"beta": spec.beta}, spec.loss
    if needs.has_smoothing:
        found["label_smoothing"] = spec.label_smoothing
    if needs.has_margin and spec.target_margin is not None:
        found["target_margin"] = spec.target_margin
    return found


@dataclass(frozen=True, slots=True)
class BradleyTerryLoss:
    """`-log sigmoid(r_c - r_r)` (Ouyang et al. 2022, arXiv:2203.02155, equation 1).

    A reward is what a `ValueHead` says at the one trained token of a row. Centering adds
    `(r_c + r_r)^2` (Eisenstein et al. 2023, arXiv:2312.09244).
    """

    spec: RewardModelTrainingSpec

    def __call__(self, values: Tensor, rows: Experience) -> tuple[Tensor, Tensor]:
        """Losses (pairs,) and rewards (rows,)."""
        rewards = row_sum(values, rows.mask, rows.lengths)
        chosen, rejected = rewards[0::2], rewards[1::2]
        losses = -F.logsigmoid(chosen - rejected)
        return losses + self.spec.centering * (chosen + rejected).square(), rewards


@dataclass(frozen=True, slots=True)
class PairObjective:
    """The loss of an update, over the first output of a head; rows of every pair are trained."""

    loss: DpoLoss | BradleyTerryLoss

    area: ClassVar = "train"
    term_names: ClassVar = (
        "train/loss",
        "train/rewards/chosen",
        "train/rewards/rejected",
        "train/rewards/margins",
        "train/rewards/accuracies",
    )
    token_names: ClassVar = ()

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64: all rows."""
        return rows.lengths.new_ones(rows.num_rows).nonzero()[:, 0]

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch of whole pairs."""
        losses, rewards = self.loss(outputs[0], rows)
        pairs = denominators.sequences / 2.0
        sums = zip(self.term_names, _sums(losses, rewards), strict=True)
        terms = {name: total / pairs for name, total in sums}
        return LossParts(losses.sum() / pairs, terms, tokens=int(rows.mask.sum()))

    def measured(self, outputs: TokenOutputs, rows: Experience) -> PassStatistics:
        """The same of held-out rows: sums, counted by pairs."""
        names = (name.replace(self.area, "val", 1) for name in self.term_names)
        sums = _sums(*self.loss(outputs[0], rows))
        return PassStatistics(
            token_sums=dict(zip(names, sums, strict=True)), tokens=rows.num_rows / 2.0
        )


def _sums(losses: Tensor, rewards: Tensor) -> list[float]:
    """Sums over pairs of what is told of them, in the order of the names."""
    chosen, rejected = rewards.detach()[0::2], rewards.detach()[1::2]
    columns = (losses.detach(), chosen, rejected, chosen - rejected, (chosen > rejected).float())
    return [column.sum().item() for column in columns]
