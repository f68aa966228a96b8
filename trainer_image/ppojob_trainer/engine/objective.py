"""What an update minimizes: policy loss, entropy bonus and KL to the reference, as one object.

`L = aggregate(policy loss) - c_H aggregate(H) + β aggregate(KL)`: PPO (arXiv:1707.06347), equation
9, without its value term (the critic has its own update), and GRPO's KL (arXiv:2402.03300),
equation 3. Every denominator is the whole mini-batch's, so losses, gradients and statistics of
micro-batches add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.algorithms.aggregate import aggregate
from ppojob_trainer.algorithms.kl import kl_estimate
from ppojob_trainer.algorithms.masked import masked_sum
from ppojob_trainer.algorithms.policy_loss import POLICY_LOSSES, TokenLoss
from ppojob_trainer.rows.experience import Experience

TOKEN_STATISTICS = (
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    "actor/entropy",
)
"""Names of `LossParts.token_sums`."""

PolicyLoss = Callable[..., TokenLoss]
"""(logprobs, old_logprobs, advantages, *, mask) -> TokenLoss, options bound."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts of a whole mini-batch, over all ranks.

    Attributes:
        tokens: trained tokens.
        sequences: rows with at least one trained token.
    """

    tokens: float
    sequences: float

    @classmethod
    def of(cls, rows: Experience) -> Denominators:
        """Those of a mini-batch that is all on this rank."""
        trained = torch.zeros(rows.num_rows).index_add_(0, rows.token_rows, rows.mask.float())
        return cls(float(rows.mask.sum()), float((trained > 0).sum()))


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How token losses become one number; see `algorithms.aggregate`."""

    mode: str
    scale_tokens: float | None = None

    def __call__(self, values: Tensor, rows: Experience, denominators: Denominators) -> Tensor:
        """This micro-batch's share of the mini-batch's value."""
        return aggregate(
            values,
            rows.mask,
            rows.lengths,
            self.mode,
            global_tokens=denominators.tokens,
            global_sequences=denominators.sequences,
            scale_tokens=self.scale_tokens,
        )


@dataclass(frozen=True, slots=True)
class KlTerm:
    """KL to the reference as a term of the loss.

    Attributes:
        estimator: a name in `algorithms.kl.KL`.
        coefficient: β.
    """

    estimator: str
    coefficient: float


@dataclass(slots=True)
class LossParts:
    """What a micro-batch adds to the mini-batch.

    Attributes:
        loss: scalar with gradient.
        terms: statistics that are sums over micro-batches already divided by the denominators.
        token_sums: statistics that are sums over the computed tokens; `tokens` counts those.
        tokens: trained tokens of this micro-batch.
    """

    loss: Tensor
    terms: dict[str, float] = field(default_factory=dict)
    token_sums: dict[str, float] = field(default_factory=dict)
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss of an update.

    Attributes:
        policy_loss: token losses of the policy, its options bound.
        aggregation: how all terms are added up.
        entropy_coefficient: c_H; 0 for no bonus.
        kl: the KL term, or None.
    """

    policy_loss: PolicyLoss
    aggregation: Aggregation
    entropy_coefficient: float = 0.0
    kl: KlTerm | None = None

    @classmethod
    def of(
        cls,
        spec: AlgorithmSpec,
        kl_coefficient: float | None = None,
        *,
        max_response_tokens: int | None = None,
    ) -> Objective:
        """The objective that a job asks for.

        Args:
            spec: the job's algorithm.
            kl_coefficient: β of this step; None for that of the spec.
            max_response_tokens: what `lossScaleTokens: null` stands for.
        """
        loss = POLICY_LOSSES[spec.policy_loss.type]
        options = spec.policy_loss.model_dump(exclude={"type"}, by_alias=False)

        def bound(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
            return loss(logprobs, old, advantages, mask=mask, **options)

        coefficient = spec.kl.coefficient if kl_coefficient is None else kl_coefficient
        return cls(
            policy_loss=bound,
            aggregation=Aggregation(
                spec.loss_aggregation, spec.loss_scale_tokens or max_response_tokens
            ),
            entropy_coefficient=spec.entropy_coefficient,
            kl=KlTerm(spec.kl.estimator, coefficient) if spec.kl.in_ == "loss" else None,
        )

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of `LossParts.terms`."""
        names = ["actor/loss", "actor/pg_loss"]
        if self.entropy_coefficient:
            names.append("actor/entropy_loss")
        if self.kl is not None:
            names.append("actor/kl_loss")
        return tuple(names)

    @property
    def entropy_mode(self) -> str:
        """What the forward pass must give: the bonus needs a gradient, the statistic a value."""
        return "gradient" if self.entropy_coefficient else "value"

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64 row numbers whose gradient is not provably zero.

        A row without trained tokens never has one. The policy loss is a multiple of the advantage,
        so a row whose advantages are all zero has none either, unless an entropy or KL term is on.
        """
        needed = rows.mask
        if not self.entropy_coefficient and self.kl is None:
            assert rows.advantages is not None, "advantages come before the update"
            needed = needed & (rows.advantages != 0)
        counts = torch.zeros(rows.num_rows).index_add_(0, rows.token_rows, needed.float())
        return counts.nonzero()[:, 0]

    def __call__(
        self,
        logprobs: Tensor,
        entropy: Tensor | None,
        rows: Experience,
        denominators: Denominators,
    ) -> LossParts:
        """The loss of a micro-batch.

        Where the rows have no `old_logprobs` the update is the only one of its step, and they are
        the update's own: the ratio is one, its gradient that of log pi.

        Args:
            logprobs: (tokens,) of `rows`, with gradient.
            entropy: (tokens,), or None where the statistic is not wanted.
            rows: the micro-batch, with advantages, and `ref_logprobs` if the KL term is on.
            denominators: of the whole mini-batch.
        """
        assert rows.advantages is not None, "advantages come before the update"
        old = logprobs.detach() if rows.old_logprobs is None else rows.old_logprobs
        token_loss = self.policy_loss(logprobs, old, rows.advantages, mask=rows.mask)
        loss = self.aggregation(token_loss.loss, rows, denominators)
        parts = LossParts(loss, {"actor/pg_loss": loss.item()}, tokens=int(rows.mask.sum()))
        clipped = token_loss.clipped_high | token_loss.clipped_low
        diagnostics = {
            "actor/pg_clipfrac": clipped.float(),
            "actor/pg_clipfrac_lower": token_loss.dual_clipped.float(),
            "actor/ppo_kl": -token_loss.log_ratio,
        }
        if entropy is not None:
            diagnostics["actor/entropy"] = entropy.detach()
        if self.entropy_coefficient:
            assert entropy is not None, "the entropy bonus needs the entropy"
            bonus = self.aggregation(entropy, rows, denominators)
            parts.terms["actor/entropy_loss"] = bonus.item()
            parts.loss = parts.loss - self.entropy_coefficient * bonus
        if self.kl is not None:
            assert rows.ref_logprobs is not None, "the KL term needs the reference"
            estimate = kl_estimate(logprobs, rows.ref_logprobs, self.kl.estimator, mask=rows.mask)
            distance = self.aggregation(estimate, rows, denominators)
            parts.terms["actor/kl_loss"] = distance.item()
            parts.loss = parts.loss + self.kl.coefficient * distance
        parts.terms["actor/loss"] = parts.loss.item()
        parts.token_sums = {
            name: masked_sum(values, rows.mask).item() for name, values in diagnostics.items()
        }
        return parts
