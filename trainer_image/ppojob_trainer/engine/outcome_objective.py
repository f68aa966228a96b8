"""What an update of a process reward model minimizes: how badly its rewards tell the outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ppojob_trainer.algorithms.implicit_rewards import outcome_loss
from ppojob_trainer.algorithms.masked import row_mean, row_sum, rows_with_any
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Denominators, LossParts
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class OutcomeObjective:
    """The loss of an update, over the first output of a `PolicyHead`: a mean over the rows."""

    beta: float  # of the rewards

    area: ClassVar = "reward_model"
    term_names: ClassVar = ("reward_model/dpo_loss",)
    token_names: ClassVar[tuple[str, ...]] = ()

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64: the rows that hold a trained token."""
        return rows_with_any(rows.mask, rows.lengths)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch, whose rows have `critic_ref_logprobs` and `outcomes`."""
        assert rows.critic_ref_logprobs is not None, "the reference comes before the update"
        assert rows.outcomes is not None, "outcomes come before the update"
        mask, lengths = rows.mask, rows.lengths
        own = rows_with_any(mask, lengths)
        totals = self.beta * row_sum(outputs[0] - rows.critic_ref_logprobs, mask, lengths)[own]
        # All tokens of a row have its outcome; their mean in float64 is that number.
        wanted = row_mean(rows.outcomes.double(), mask, lengths)[own].to(totals.dtype)
        loss = outcome_loss(totals, wanted).sum() / denominators.sequences
        return LossParts(loss, {self.term_names[0]: loss.item()}, tokens=int(mask.sum()))
