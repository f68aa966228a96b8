"""Policy objective: policy loss, entropy bonus, KL to the reference; and the distillation loss.

`L = aggregate(policy loss) - c_H aggregate(H) + β aggregate(KL)`: PPO (arXiv:1707.06347), equation
9, without its value term, and GRPO's KL (arXiv:2402.03300), equation 3. VAPO (arXiv:2504.05118)
adds `μ L_pos`, the cross-entropy of correct responses. LUFFY (arXiv:2504.14945) has a separate
policy loss for tokens of off-policy demonstrations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import JsonValue
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import FULL_KL, AlgorithmSpec, KlSpec
from ppojob_api.v1alpha1.policy_loss import Loss
from ppojob_trainer.algorithms.distillation import DISTILLATION_LOSS
from ppojob_trainer.algorithms.guidance import shaped_ratio
from ppojob_trainer.algorithms.kl import kl_estimate
from ppojob_trainer.algorithms.masked import masked_sum, rows_with_any, zero_outside
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, PolicyLoss, bounded
from ppojob_trainer.algorithms.rollout_correction import Correction, correct, row_weights
from ppojob_trainer.algorithms.rollout_diagnostics import token_diagnostic_names, token_diagnostics
from ppojob_trainer.algorithms.token_masks import off_policy
from ppojob_trainer.engine.custom_functions import policy_loss_of
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import (
    Aggregation,
    Denominators,
    LossParts,
    TokenObjective,
    token_sums,
)
from ppojob_trainer.rows.experience import Experience

OFF_POLICY_SHARE = "actor/off_policy_frac"
"""Share of tokens masked by `off_policy`."""

GUIDANCE = ("actor/off_pg_loss", "actor/off_ratio_mean", "actor/off_policy_prob")
"""Metrics of the tokens of demonstrations: policy loss, f(π), and π."""

SAMPLING_STATISTICS = ("actor/entropy", "training/rollout_probs_diff_mean", "rollout_corr/kl")
"""Metrics of `sampling_diagnostics`."""


@dataclass(frozen=True, slots=True)
class KlTerm:
    """KL to the reference as a term of the loss."""

    estimator: str  # a name in `algorithms.kl.KL`, or `FULL_KL`
    coefficient: float  # β
    unbiased: bool = False  # multiply by the ratio to the old policy

    @property
    def is_full(self) -> bool:
        return self.estimator == FULL_KL

    @classmethod
    def of(cls, spec: KlSpec, coefficient: float | None = None) -> "KlTerm | None":
        """Return the term of a job; `coefficient` is that of this step."""
        if spec.loss_term is not None:
            return cls(spec.loss_term.estimator, spec.loss_term.coefficient)
        if spec.in_ != "loss":
            return None
        assert spec.estimator is not None, "set in a resolved configuration"
        weight = spec.coefficient if coefficient is None else coefficient
        return cls(spec.estimator, weight, spec.unbiased)


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """The loss of an update, over the outputs of a `PolicyHead`, or a `HeadWithKl`."""

    policy_loss: PolicyLoss  # called with `options`
    needs: Loss  # the loss's requirements on a job
    options: Mapping[str, JsonValue]
    aggregation: Aggregation  # reduces all terms
    correction: Correction | None = None  # within the update, not before the updates
    entropy_coefficient: float = 0.0  # c_H
    kl: KlTerm | None = None
    positive_coefficient: float = 0.0  # μ
    off_policy_threshold: float | None = None  # of `off_policy`
    whole_groups: bool = False  # the loss compares the rows of a group
    guidance_gamma: float | None = None  # of `shaped_ratio`; None without demonstrations

    area: ClassVar = "actor"

    @classmethod
    def of(
        cls,
        spec: AlgorithmSpec,
        kl_coefficient: float | None = None,
        *,
        entropy_coefficient: float | None = None,
        max_response_tokens: int | None = None,
    ) -> "PolicyObjective":
        """Return the objective of a job; both coefficients are those of this step."""
        correction = None
        if spec.is_bypass and spec.rollout_correction is not None:
            correction = Correction.of(**spec.rollout_correction.model_dump(by_alias=False))
        return cls(
            policy_loss=policy_loss_of(spec.policy_loss),
            needs=spec.policy_loss.loss,
            options=spec.policy_loss.settings(),
            aggregation=Aggregation.of(spec, max_response_tokens),
            correction=correction,
            entropy_coefficient=(
                spec.entropy_coefficient if entropy_coefficient is None else entropy_coefficient
            ),
            kl=KlTerm.of(spec.kl, kl_coefficient),
            positive_coefficient=(
                0.0 if spec.positive_examples is None else spec.positive_examples.coefficient
            ),
            off_policy_threshold=spec.off_policy_threshold,
            whole_groups=spec.whole_groups,
            guidance_gamma=None if spec.guidance is None else spec.guidance.gamma,
        )

    @property
    def term_names(self) -> tuple[str, ...]:
        bonus = ("actor/entropy_loss",) if self.entropy_coefficient else ()
        positive = ("actor/positive_loss",) if self.positive_coefficient else ()
        return ("actor/loss", "actor/pg_loss", *bonus, *positive)

    @property
    def token_names(self) -> tuple[str, ...]:
        of_the_loss = self.policy_loss.metrics
        kl = ("actor/kl_loss",) if self.kl is not None else ()
        diagnostics = () if self.correction is None else token_diagnostic_names(self.correction)
        if self.off_policy_threshold is not None:
            diagnostics = (*diagnostics, OFF_POLICY_SHARE)
        if self.guidance_gamma is not None:
            diagnostics = (*diagnostics, *GUIDANCE)
        return (*of_the_loss, *SAMPLING_STATISTICS, *diagnostics, *kl)

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """Return (n,) int64 row numbers whose gradient is not provably zero.

        A row has none without trained tokens, or if all its advantages are zero and the policy loss
        vanishes with them, unless an entropy, KL or positive term applies.
        """
        needed = rows.mask
        vanishes = self.policy_loss.vanishes_without_advantage
        if vanishes and not self.entropy_coefficient and self.kl is None:
            assert rows.advantages is not None, "advantages come before the update"
            has_some = rows.advantages != 0
            if self.positive_coefficient and rows.positives is not None:
                has_some |= rows.positives
            needed = needed & has_some
        return rows_with_any(needed, rows.lengths)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return the loss of a micro-batch.

        Rows without `old_logprobs` are of a step with a single update: the ratio is one, its
        gradient that of log pi. Outputs are log-probabilities, entropy, the KL to the reference if
        it is over the whole vocabulary, and log Z if the loss reads it; a KL estimate needs
        `ref_logprobs`.
        """
        assert rows.advantages is not None, "advantages come before the update"
        logprobs, entropy, *others = outputs
        log_z = others.pop() if self.needs.learns_log_z else None
        old = logprobs.detach() if rows.old_logprobs is None else rows.old_logprobs
        output, loss, kept = self._policy_term(logprobs, old, log_z, rows, denominators)
        drawn = rows.drawn
        parts = LossParts(loss, {"actor/pg_loss": loss.item()}, tokens=int(drawn.sum()))
        sampled = sampling_diagnostics(old, entropy.detach(), rows)
        diagnostics = {**output, **sampled}
        if self.entropy_coefficient:
            assert entropy.requires_grad, "the head must return the entropy with gradient"
            bonus = self.aggregation(entropy, rows, denominators)
            parts.terms["actor/entropy_loss"] = bonus.item()
            parts.loss = parts.loss - self.entropy_coefficient * bonus
        if self.kl is not None:
            if self.kl.is_full:
                (estimate,) = others
            else:
                assert rows.ref_logprobs is not None, "the KL term needs the reference"
                columns = logprobs, rows.ref_logprobs, self.kl.estimator
                estimate = kl_estimate(*columns, mask=rows.mask)
            if self.kl.unbiased:
                sampler_logprobs = rows.rollout_logprobs if self.needs.is_of_sampler else old
                estimate = (
                    estimate * bounded(zero_outside(logprobs - sampler_logprobs, rows.mask)).exp()
                )
            distance = self.aggregation(estimate, rows, denominators)
            parts.loss = parts.loss + self.kl.coefficient * distance
            diagnostics["actor/kl_loss"] = estimate.detach()
        if self.positive_coefficient:
            likelihood = positive_loss(logprobs, rows, denominators, kept)
            parts.terms["actor/positive_loss"] = likelihood.item()
            parts.loss = parts.loss + self.positive_coefficient * likelihood
        parts.terms["actor/loss"] = parts.loss.item()
        parts.token_sums = token_sums(diagnostics, drawn)
        if self.guidance_gamma is not None:
            assert rows.given is not None, "set with guidance"
            given, said = rows.mask & rows.given, logprobs.detach()
            ratio = shaped_ratio(said, self.guidance_gamma)
            values = (-rows.advantages * ratio, ratio, said.exp())
            parts.token_sums |= token_sums(dict(zip(GUIDANCE, values, strict=True)), given)
            parts.counts = dict.fromkeys(GUIDANCE, float(given.sum()))
        return parts

    def _policy_term(
        self,
        logprobs: Tensor,
        old: Tensor,
        log_z: Tensor | None,
        rows: Experience,
        denominators: Denominators,
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return per-token metrics, the policy loss, and the mask without rejected tokens."""
        assert rows.advantages is not None, "advantages come before the update"
        mask, weights, diagnostics = rows.mask, rows.loss_weights, {}
        if self.correction is not None:
            columns = (logprobs, rows.rollout_logprobs, rows.mask, rows.lengths)
            corrected = correct(self.correction, *columns)
            mask = corrected.mask
            if corrected.weights is not None:
                own = corrected.weights
                weights = own if weights is None else weights * own
            diagnostics = token_diagnostics(self.correction, corrected)
        generated = mask if rows.given is None else mask & ~rows.given
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=old,
            rollout_logprobs=rows.rollout_logprobs,
            advantages=rows.advantages,
            mask=generated,
            lengths=rows.lengths,
            groups=rows.row_groups,
            ref_logprobs=rows.ref_logprobs,
            log_z=log_z,
        )
        output = self.policy_loss.compute(inputs, **self.options)
        loss = output.loss
        if self.guidance_gamma is not None:
            assert rows.given is not None, "set with guidance"
            guided = -rows.advantages * shaped_ratio(logprobs, self.guidance_gamma)
            loss = torch.where(rows.given, guided, loss)
        if weights is not None:
            of_rows = self.needs.is_of_rows
            loss = loss * (row_weights(weights, mask, rows.lengths) if of_rows else weights)
        if self.off_policy_threshold is not None:
            is_left_out = off_policy(
                logprobs,
                rows.rollout_logprobs,
                rows.advantages,
                generated,
                rows.lengths,
                self.off_policy_threshold,
            )
            loss = torch.where(is_left_out, 0.0, loss)
            diagnostics = {**diagnostics, OFF_POLICY_SHARE: is_left_out.float()}
        measured = {**output.metrics, **diagnostics}
        return measured, self.aggregation(loss, rows, denominators, mask), mask


@dataclass(frozen=True, slots=True)
class DistillationObjective(TokenObjective):
    """Distillation loss over the whole vocabulary, over the outputs of a `HeadWithKl`.

    `L = aggregate(min(D(π, π_teacher), limit))` on generated responses (Agarwal et al. 2024,
    arXiv:2306.13649, equation 2 on-policy only).
    """

    aggregation: Aggregation
    limit: float | None = None

    area: ClassVar = "actor"
    term_names: ClassVar = ("actor/loss",)
    token_names: ClassVar = (*SAMPLING_STATISTICS, DISTILLATION_LOSS)

    @classmethod
    def of(cls, spec: AlgorithmSpec, *, max_response_tokens: int) -> "DistillationObjective":
        assert spec.divergence is not None, "the whole vocabulary is compared"
        return cls(Aggregation.of(spec, max_response_tokens), spec.divergence.max_token_loss)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        logprobs, entropy, divergence = outputs
        bounded = divergence if self.limit is None else divergence.clamp(max=self.limit)
        loss = self.aggregation(bounded, rows, denominators)
        diagnostics = sampling_diagnostics(logprobs.detach(), entropy.detach(), rows)
        sums = token_sums({**diagnostics, DISTILLATION_LOSS: divergence.detach()}, rows.mask)
        terms = {"actor/loss": loss.item()}
        return LossParts(loss, terms, sums, tokens=int(rows.mask.sum()))


def positive_loss(
    logprobs: Tensor, rows: Experience, denominators: Denominators, kept: Tensor
) -> Tensor:
    """Return the mean `-log pi` over trained tokens of correct responses; 0 without any.

    VAPO (arXiv:2504.05118), positive example LM loss. Trained tokens that are not `kept` have no
    loss, and count in the denominator.
    """
    assert rows.positives is not None, "set with the advantages"
    return -masked_sum(logprobs, kept & rows.positives) / max(1.0, denominators.positives)


def sampling_diagnostics(logprobs: Tensor, entropy: Tensor, rows: Experience) -> dict[str, Tensor]:
    """Return metrics of the policy's entropy, and of its distance to the sampler."""
    return {
        "actor/entropy": entropy,
        "training/rollout_probs_diff_mean": (logprobs.exp() - rows.rollout_logprobs.exp()).abs(),
        "rollout_corr/kl": rows.rollout_logprobs - logprobs,
    }
