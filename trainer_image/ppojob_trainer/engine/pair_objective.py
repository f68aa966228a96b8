"""Preference losses: the mean of a loss over pairs of a chosen and a rejected answer.

Offline, row 2 i is the chosen answer of pair i and row 2 i + 1 the rejected one. Online, a pair is
two generated rows of a group. No split over ranks, mini-batches or micro-batches parts a group.
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
from ppojob_trainer.engine.objective import Denominators, LossParts, TokenObjective, token_sums
from ppojob_trainer.engine.policy_objective import SAMPLING_STATISTICS, sampling_diagnostics
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience

Pairs = tuple[Tensor, Tensor]
"""(pairs,) int64 each: the rows of the chosen answers, and those of the rejected ones."""

_OF_REWARDS: Final = ("chosen", "rejected", "margins", "accuracies")
_TOLD: Final = ("loss", *(f"rewards/{name}" for name in _OF_REWARDS))
"""Metrics of the pairs of an update, and of held-out ones."""


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """A loss of `PAIR_LOSSES`, and the cross-entropy of the chosen answers beside it.

    Reported rewards are `beta` times the compared quantity: `log(pi(y|x) / pi_ref(y|x))`, or
    `log pi(y|x)` without a reference, over an answer or its mean over the tokens.
    """

    spec: DpoSpec

    def __call__(self, logprobs: Tensor, rows: Experience, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return losses (pairs,) and rewards (rows,); may read `ref_logprobs`."""
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
    """Return the arguments of the loss by name."""
    found, needs = {"beta": spec.beta}, spec.loss
    if needs.has_smoothing:
        found["label_smoothing"] = spec.label_smoothing
    if needs.has_margin and spec.target_margin is not None:
        found["target_margin"] = spec.target_margin
    return found


@dataclass(frozen=True, slots=True)
class BradleyTerryLoss:
    """`-log sigmoid(r_c - r_r - m)` (Ouyang et al. 2022, arXiv:2203.02155, equation 1).

    A reward is the output of a `ValueHead` at a row's only trained token. The margin m, from the
    chosen row's turn, is 0 without margins in the data (Touvron et al. 2023, arXiv:2307.09288,
    equation 2). Centering adds `(r_c + r_r)^2` (Eisenstein et al. 2023, arXiv:2312.09244).
    """

    spec: RewardModelTrainingSpec

    def __call__(self, values: Tensor, rows: Experience, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return losses (pairs,) and rewards (rows,)."""
        rewards = row_sum(values, rows.mask, rows.lengths)
        chosen, rejected = (rewards[rows_of] for rows_of in pairs)
        wanted = chosen - rejected
        if rows.turn_rewards is not None:
            wanted = wanted - row_sum(rows.turn_rewards, rows.mask, rows.lengths)[pairs[0]]
        losses = -F.logsigmoid(wanted)
        return losses + self.spec.centering * (chosen + rejected).square(), rewards


@dataclass(frozen=True, slots=True)
class PairObjective:
    """Preference loss of an update, over a head's first output; rows of every pair are trained."""

    loss: DpoLoss | BradleyTerryLoss

    area: ClassVar = "train"
    term_names: ClassVar[tuple[str, ...]] = tuple(f"train/{name}" for name in _TOLD)
    token_names: ClassVar[tuple[str, ...]] = ()

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """Return (n,) int64: all rows."""
        return rows.lengths.new_ones(rows.num_rows).nonzero()[:, 0]

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return the loss of a micro-batch of whole groups."""
        losses, sums = self._compared(outputs, rows)
        pairs = denominators.sequences / 2.0
        terms = {name: total / pairs for name, total in zip(self.term_names, sums, strict=True)}
        return LossParts(losses.sum() / pairs, terms, tokens=int(rows.mask.sum()))

    def measured(self, outputs: TokenOutputs, rows: Experience) -> PassStatistics:
        """Return the statistics of held-out rows: sums, counted by pairs."""
        _, sums = self._compared(outputs, rows)
        told = {f"val/{name}": total for name, total in zip(_TOLD, sums, strict=True)}
        return PassStatistics(token_sums=told, tokens=rows.num_rows / 2.0)

    def _compared(self, outputs: TokenOutputs, rows: Experience) -> tuple[Tensor, list[float]]:
        """Return losses (pairs,), and sums of the metrics over the pairs."""
        pairs = self._pairs(rows)
        losses, rewards = self.loss(outputs[0], rows, pairs)
        chosen, rejected = (rewards.detach()[rows_of] for rows_of in pairs)
        is_right = (chosen > rejected).float()
        columns = (losses.detach(), chosen, rejected, chosen - rejected, is_right)
        return losses, [column.sum().item() for column in columns]

    def _pairs(self, rows: Experience) -> Pairs:
        every = torch.arange(rows.num_rows)
        return every[0::2], every[1::2]


class DrawnPairObjective(TokenObjective, PairObjective):
    """Preference loss of generated pairs: two rows of a group have trained tokens.

    The chosen row has a positive advantage, the rejected one a negative one.
    """

    area: ClassVar = "actor"
    term_names: ClassVar = ()
    pair_names: ClassVar = tuple(f"actor/{name}" for name in _TOLD)
    token_names: ClassVar = (*SAMPLING_STATISTICS, *pair_names)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return the loss of a micro-batch; a step's metrics are means over its pairs."""
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
