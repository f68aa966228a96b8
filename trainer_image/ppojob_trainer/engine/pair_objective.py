"""What updates on preferences minimize: the mean of a loss of pairs, of answers c and r.

Of answers that are given row 2 i is the chosen one of pair i and row 2 i + 1 the rejected one. Of
responses that are drawn a pair is two rows of a group. No rank, mini-batch or micro-batch parts a
group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from ppojob_api.v1alpha1.preferences import DpoSpec, RewardModelTrainingSpec
from ppojob_trainer.algorithms.masked import row_mean, row_sum
from ppojob_trainer.algorithms.pair_losses import PAIR_LOSSES
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Denominators, LossParts, OfTokens, token_sums
from ppojob_trainer.engine.policy_objective import SAMPLING_STATISTICS, sampling_diagnostics
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience

Pairs = tuple[Tensor, Tensor]
"""(pairs,) int64: the rows of the chosen answers, and those of the rejected ones."""

_OF_REWARDS: Final = ("chosen", "rejected", "margins", "accuracies")
_TOLD: Final = ("loss", *(f"rewards/{name}" for name in _OF_REWARDS))
"""What is told of the pairs of an update, and of those that are held out."""


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """A loss of `PAIR_LOSSES`, and the cross-entropy of the chosen answers beside it.

    The rewards that are told are `beta` times what the loss compares: `log(pi(y|x) / pi_ref(y|x))`,
    or `log pi(y|x)` without a reference, over an answer or its mean over the tokens.
    """

    spec: DpoSpec

    def __call__(self, logprobs: Tensor, rows: Experience, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Losses (pairs,) and rewards (rows,); `ref_logprobs` are there, if it reads them."""
        spec, needs = self.spec, self.spec.loss
        compared = logprobs
        if needs.has_reference:
            assert rows.ref_logprobs is not None, "the reference comes before the update"
            compared = logprobs - rows.ref_logprobs
        ratios = (row_mean if needs.is_mean else row_sum)(compared, rows.mask, rows.lengths)
        chosen, rejected = (ratios[rows_of] for rows_of in pairs)
        losses = PAIR_LOSSES[spec.loss_type](chosen, rejected, **_options(spec))
        if weight := spec.own_sft_weight:
            losses = losses - weight * row_mean(logprobs, rows.mask, rows.lengths)[pairs[0]]
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
    """`-log sigmoid(r_c - r_r - m)` (Ouyang et al. 2022, arXiv:2203.02155, equation 1).

    A reward is what a `ValueHead` says at the one trained token of a row. The margin m, that of the
    chosen row's turn, is 0 where pairs have none (Touvron et al. 2023, arXiv:2307.09288, equation
    2). Centering adds `(r_c + r_r)^2` (Eisenstein et al. 2023, arXiv:2312.09244).
    """

    spec: RewardModelTrainingSpec

    def __call__(self, values: Tensor, rows: Experience, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Losses (pairs,) and rewards (rows,)."""
        rewards = row_sum(values, rows.mask, rows.lengths)
        chosen, rejected = (rewards[rows_of] for rows_of in pairs)
        wanted = chosen - rejected
        if rows.turn_rewards is not None:
            wanted = wanted - row_sum(rows.turn_rewards, rows.mask, rows.lengths)[pairs[0]]
        losses = -F.logsigmoid(wanted)
        return losses + self.spec.centering * (chosen + rejected).square(), rewards


@dataclass(frozen=True, slots=True)
class PairObjective:
    """The loss of an update, over the first output of a head; rows of every pair are trained."""

    loss: DpoLoss | BradleyTerryLoss

    area: ClassVar = "train"
    term_names: ClassVar[tuple[str, ...]] = tuple(f"train/{name}" for name in _TOLD)
    token_names: ClassVar[tuple[str, ...]] = ()

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64: all rows."""
        return rows.lengths.new_ones(rows.num_rows).nonzero()[:, 0]

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch of whole groups."""
        losses, sums = self._compared(outputs, rows)
        pairs = denominators.sequences / 2.0
        terms = {name: total / pairs for name, total in zip(self.term_names, sums, strict=True)}
        return LossParts(losses.sum() / pairs, terms, tokens=int(rows.mask.sum()))

    def measured(self, outputs: TokenOutputs, rows: Experience) -> PassStatistics:
        """The same of held-out rows: sums, counted by pairs."""
        _, sums = self._compared(outputs, rows)
        told = {f"val/{name}": total for name, total in zip(_TOLD, sums, strict=True)}
        return PassStatistics(token_sums=told, tokens=rows.num_rows / 2.0)

    def _compared(self, outputs: TokenOutputs, rows: Experience) -> tuple[Tensor, list[float]]:
        """Losses (pairs,), and sums over the pairs of what is told of them."""
        pairs = self._pairs(rows)
        losses, rewards = self.loss(outputs[0], rows, pairs)
        chosen, rejected = (rewards.detach()[rows_of] for rows_of in pairs)
        is_right = (chosen > rejected).float()
        columns = (losses.detach(), chosen, rejected, chosen - rejected, is_right)
        return losses, [column.sum().item() for column in columns]

    def _pairs(self, rows: Experience) -> Pairs:
        every = torch.arange(rows.num_rows)
        return every[0::2], every[1::2]


class DrawnPairObjective(OfTokens, PairObjective):
    """The same of pairs that were drawn: of a group's rows two have tokens that are trained.

    Those of the chosen one have a positive advantage, those of the rejected one a negative one.
    """

    area: ClassVar = "actor"
    term_names: ClassVar = ()
    pair_names: ClassVar = tuple(f"actor/{name}" for name in _TOLD)
    token_names: ClassVar = (*SAMPLING_STATISTICS, *pair_names)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch; a step's figures are means over its pairs."""
        logprobs, entropy, *_ = outputs
        losses, of_pairs = self._compared(outputs, rows)
        told = sampling_diagnostics(logprobs.detach(), entropy.detach(), rows)
        sums = token_sums(told, rows.mask) | dict(zip(self.pair_names, of_pairs, strict=True))
        return LossParts(
            losses.sum() / max(1.0, denominators.sequences / 2.0),
            token_sums=sums,
            tokens=int(rows.mask.sum()),
            counts=dict.fromkeys(self.pair_names, float(len(losses))),
        )

    def _pairs(self, rows: Experience) -> Pairs:
        assert rows.advantages is not None, "responses are compared before the update"
        signs = row_sum(rows.advantages, rows.mask, rows.lengths)
        return (signs > 0).nonzero()[:, 0], (signs < 0).nonzero()[:, 0]
