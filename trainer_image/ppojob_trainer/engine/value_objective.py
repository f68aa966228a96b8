"""Losses of a critic, and of a process reward model."""

from dataclasses import dataclass
from typing import ClassVar

from ppojob_trainer.algorithms.implicit_rewards import outcome_loss
from ppojob_trainer.algorithms.masked import row_mean, row_sum, rows_with_any
from ppojob_trainer.algorithms.value_loss import clipped_value_loss
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import (
    Aggregation,
    Denominators,
    LossParts,
    TokenObjective,
    token_sums,
)
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class ValueObjective(TokenObjective):
    """Clipped squared error of a critic's values, over the output of a `ValueHead`."""

    value_clip: float  # maximum change of a value from before the update
    aggregation: Aggregation

    area: ClassVar = "critic"
    term_names: ClassVar = ("critic/vf_loss",)
    token_names: ClassVar = ("critic/vf_clipfrac", "critic/vpred_mean")

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return the loss of a micro-batch, whose rows have `returns` and old `values`."""
        assert rows.values is not None, "values come before the update"
        assert rows.returns is not None, "returns come before the update"
        (values,) = outputs
        token_loss, is_clipped = clipped_value_loss(
            values, rows.values, rows.returns, value_clip=self.value_clip, mask=rows.mask
        )
        loss = self.aggregation(token_loss, rows, denominators)
        metrics = zip(self.token_names, (is_clipped.float(), values.detach()), strict=True)
        return LossParts(
            loss=loss,
            terms={"critic/vf_loss": loss.item()},
            token_sums=token_sums(dict(metrics), rows.mask),
            tokens=int(rows.mask.sum()),
        )


@dataclass(frozen=True, slots=True)
class OutcomeObjective(TokenObjective):
    """Mean cross-entropy of outcomes by the rewards of a process reward model.

    Over the first output of a `PolicyHead`.
    """

    beta: float  # of the rewards

    area: ClassVar = "reward_model"
    term_names: ClassVar = ("reward_model/dpo_loss",)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """Return the loss of a micro-batch, whose rows have outcomes and reference."""
        assert rows.critic_ref_logprobs is not None, "the reference comes before the update"
        assert rows.outcomes is not None, "outcomes come before the update"
        mask, lengths = rows.mask, rows.lengths
        own = rows_with_any(mask, lengths)
        totals = self.beta * row_sum(outputs[0] - rows.critic_ref_logprobs, mask, lengths)[own]
        # All tokens of a row have its outcome, so their mean in float64 is exact.
        wanted = row_mean(rows.outcomes.double(), mask, lengths)[own].to(totals.dtype)
        loss = outcome_loss(totals, wanted).sum() / denominators.sequences
        return LossParts(loss, {self.term_names[0]: loss.item()}, tokens=int(mask.sum()))
