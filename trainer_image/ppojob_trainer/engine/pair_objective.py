"""Preference losses: the mean of a loss over pairs of a chosen and a rejected answer.

Offline, row 2 i is the chosen answer of pair i and row 2 i + 1 the rejected one. Online, a pair are
two generated rows of a group. Groups are never split over ranks or micro-batches.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ppojob_api.v1alpha1.preferences import PAIR_LOSSES as PAIR_LOSS_NEEDS
from ppojob_api.v1alpha1.preferences import DpoLossType, DpoSpec, RewardModelTrainingSpec
from ppojob_trainer.algorithms.masked import row_count, row_mean, row_sum
from ppojob_trainer.algorithms.pair_losses import DIVERGENCES, PAIR_LOSSES, of_equal_rank
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Denominators, LossParts, TokenObjective, token_sums
from ppojob_trainer.engine.policy_objective import SAMPLING_STATISTICS, sampling_diagnostics
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.rows.experience import Experience

Pairs = tuple[Tensor, Tensor]
"""(pairs,) int64 each: the rows of the chosen answers, and those of the rejected ones."""

_OF_REWARDS: Final = ("chosen", "rejected", "margins", "accuracies")
_METRICS: Final = ("loss", *(f"rewards/{name}" for name in _OF_REWARDS))
"""Metrics of the pairs of an update, and of held-out ones."""


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """Losses of `PAIR_LOSSES`, plus the cross-entropy of the chosen answers.

    Reported rewards are `beta` times `log(pi(y|x) / pi_ref(y|x))`, or `log pi(y|x)` without a
    reference, over an answer or its mean over the tokens.
    """

    spec: DpoSpec

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, pairs: Pairs
    ) -> tuple[Tensor, Tensor]:
        """Return losses (pairs,) and rewards (rows,); may read `ref_logprobs`, `counterparts`."""
        spec, logprobs = self.spec, outputs[0]
        ratios = self._ratios(logprobs, rows, pairs)
        counts = row_count(rows.mask, rows.lengths).clamp(min=1).to(ratios.dtype)
        if spec.sorts is not None:
            losses = self._compared_by_rank(logprobs, rows, pairs)
        else:
            alpha = 0.5 if spec.divergence_alpha is None else spec.divergence_alpha
            scores = DIVERGENCES[spec.divergence](ratios, alpha)
            means = scores / counts
            terms = []
            for name, weight in spec.weighted.items():
                compared = means if PAIR_LOSS_NEEDS[name].is_mean else scores
                terms.append(weight * self._term(name, compared[pairs[0]], compared[pairs[1]]))
            losses = torch.stack(terms).sum(0)
        if spec.weight_by_policy:
            losses = losses * _policy_weights(outputs, rows, pairs)
        if weight := spec.own_sft_weight:
            losses = losses - weight * row_mean(logprobs, rows.mask, rows.lengths)[pairs[0]]
        return losses, spec.beta * (ratios / counts if spec.is_mean else ratios)

    def with_counterparts(
        self, logprobs: Tensor, rows: Experience, pairs: Pairs, engine: ForwardEngine
    ) -> Experience:
        """Return a mini-batch's rows with `counterparts`; a collective of all ranks."""
        sides = [engine.over_data(side) for side in self._sides(logprobs, rows, pairs)]
        counterparts = torch.zeros(rows.num_rows)
        for of, (mine, place), (others, _) in zip(pairs, sides, reversed(sides), strict=True):
            counterparts[of] = of_equal_rank(mine, others)[place]
        return replace(rows, counterparts=counterparts.repeat_interleave(rows.lengths))

    def _compared_by_rank(self, logprobs: Tensor, rows: Experience, pairs: Pairs) -> Tensor:
        """Return losses (pairs,) of AOT, of which only the sum over the mini-batch is meaningful.

        Melnyk et al. 2024, arXiv:2406.05882: the i-th smallest margin of the policy is compared
        with that of the reference, or the i-th smallest log-ratio of a chosen answer with that of a
        rejected one. Sorting changes no gradient, so counterparts are constants.
        """
        assert rows.counterparts is not None, "a mini-batch is sorted before its update"
        (name,) = self.spec.weighted
        one, other = self._sides(logprobs, rows, pairs)
        constants = rows.counterparts[rows.offsets[:-1]]
        losses = self._term(name, one, constants[pairs[0]])
        # The same sum over the mini-batch, so it adds a gradient and no value.
        again = self._term(name, constants[pairs[1]], other)
        return losses + (again - again.detach())

    def _sides(self, logprobs: Tensor, rows: Experience, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the two sides that AOT sorts and compares, (pairs,) each."""
        chosen, rejected = pairs
        if self.spec.sorts == "ratios":
            ratios = self._ratios(logprobs, rows, pairs)
            return ratios[chosen], ratios[rejected]
        policy = self._sums(logprobs, rows, pairs)
        reference = self._sums(_reference(rows), rows, pairs)
        return policy[chosen] - policy[rejected], reference[chosen] - reference[rejected]

    def _ratios(self, logprobs: Tensor, rows: Experience, pairs: Pairs) -> Tensor:
        """Return (rows,): log-ratios to the reference, or log-probabilities without one."""
        compared = logprobs - _reference(rows) if self.spec.has_reference else logprobs
        return self._sums(compared, rows, pairs)

    def _sums(self, values: Tensor, rows: Experience, pairs: Pairs) -> Tensor:
        """Sum the trained tokens of each row, those of the longer answer's tail weighted."""
        if self.spec.tail_weight != 1.0:
            values = torch.where(_is_in_tail(rows, pairs), self.spec.tail_weight, 1.0) * values
        return row_sum(values, rows.mask, rows.lengths)

    def _term(self, name: DpoLossType, chosen: Tensor, rejected: Tensor) -> Tensor:
        spec, needs = self.spec, PAIR_LOSS_NEEDS[name]
        options = {"beta": spec.beta}
        if needs.has_smoothing:
            options["label_smoothing"] = spec.label_smoothing
        if needs.has_margin and spec.target_margin is not None:
            options["target_margin"] = spec.target_margin
        if needs.has_tau and spec.discopop_tau is not None:
            options["tau"] = spec.discopop_tau
        return PAIR_LOSSES[name](chosen, rejected, **options)


def _reference(rows: Experience) -> Tensor:
    assert rows.ref_logprobs is not None, "the reference comes before the update"
    return rows.ref_logprobs


def _is_in_tail(rows: Experience, pairs: Pairs) -> Tensor:
    """Return (tokens,): trained tokens of an answer beyond the length of the pair's shorter one.

    LD-DPO (Liu et al. 2024, arXiv:2409.06411).
    """
    counts = row_count(rows.mask, rows.lengths)
    shared, ends = counts.clone(), counts.cumsum(0)
    for of in pairs:
        shared[of] = torch.minimum(*(counts[each] for each in pairs))
    number = rows.mask.cumsum(0) - (ends - counts)[rows.token_rows]
    return number > shared[rows.token_rows]


def _policy_weights(outputs: TokenOutputs, rows: Experience, pairs: Pairs) -> Tensor:
    """Return (pairs,), without gradient: how likely the policy generates both answers.

    WPO (Zhou et al. 2024, arXiv:2406.11827, equation 2): the geometric mean of `pi(a_t) / E[pi(a)]`
    over the tokens of each answer. As TRL, without the bound of 1 in the authors' code.
    """
    logprobs, *_, sum_pi_squared = outputs
    likely = logprobs.detach() - sum_pi_squared.log()
    chosen, rejected = (row_mean(likely, rows.mask, rows.lengths)[of] for of in pairs)
    return (chosen + rejected).exp()


@dataclass(frozen=True, slots=True)
class BradleyTerryLoss:
    """`-log sigmoid(r_c - r_r - m)` (Ouyang et al. 2022, arXiv:2203.02155, equation 1).

    A reward is the output of a `ValueHead` at a row's only trained token. The margin m is the
    chosen row's turn reward, or 0 (Touvron et al. 2023, arXiv:2307.09288, equation 2). Centering
    adds `(r_c + r_r)^2` (Eisenstein et al. 2023, arXiv:2312.09244).
    """

    spec: RewardModelTrainingSpec

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, pairs: Pairs
    ) -> tuple[Tensor, Tensor]:
        rewards = row_sum(outputs[0], rows.mask, rows.lengths)
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
    term_names: ClassVar[tuple[str, ...]] = tuple(f"train/{name}" for name in _METRICS)
    token_names: ClassVar[tuple[str, ...]] = ()

    def of_batch(self, rows: Experience, engine: ForwardEngine) -> tuple[Experience, Self]:
        """Return a mini-batch's rows and their objective; a collective of all ranks.

        A loss that sorts needs one more forward pass.
        """
        if isinstance(self.loss, DpoLoss) and self.loss.spec.sorts is not None:
            logprobs, *_ = engine.predict(rows)
            rows = self.loss.with_counterparts(logprobs, rows, self._pairs(rows), engine)
        return rows, self

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        return rows.lengths.new_ones(rows.num_rows).nonzero()[:, 0]

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        losses, sums = self._compared(outputs, rows)
        pairs = denominators.sequences / 2.0
        terms = {name: total / pairs for name, total in zip(self.term_names, sums, strict=True)}
        return LossParts(losses.sum() / pairs, terms, tokens=int(rows.mask.sum()))

    def measured(self, outputs: TokenOutputs, rows: Experience) -> PassStatistics:
        """Return the statistics of held-out rows: sums, counted by pairs."""
        _, sums = self._compared(outputs, rows)
        named = {f"val/{name}": total for name, total in zip(_METRICS, sums, strict=True)}
        return PassStatistics(token_sums=named, tokens=rows.num_rows / 2.0)

    def _compared(self, outputs: TokenOutputs, rows: Experience) -> tuple[Tensor, list[float]]:
        """Return losses (pairs,), and sums of the metrics over the pairs."""
        pairs = self._pairs(rows)
        losses, rewards = self.loss(outputs, rows, pairs)
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
    pair_names: ClassVar = tuple(f"actor/{name}" for name in _METRICS)
    token_names: ClassVar = (*SAMPLING_STATISTICS, *pair_names)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return the loss of a micro-batch; a step's metrics are means over its pairs."""
        logprobs, entropy, *_ = outputs
        losses, of_pairs = self._compared(outputs, rows)
        sampled = sampling_diagnostics(logprobs.detach(), entropy.detach(), rows)
        sums = token_sums(sampled, rows.mask) | dict(zip(self.pair_names, of_pairs, strict=True))
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
