"""What an update of the critic minimizes: the clipped squared error of its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import CriticSpec
from ppojob_trainer.algorithms.masked import masked_sum, rows_with_any
from ppojob_trainer.algorithms.value_loss import clipped_value_loss
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.engine.objective import Aggregation, Denominators, LossParts
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class ValueObjective:
    """The loss of an update, over the output of a `ValueHead`."""

    value_clip: float  # how far a value may move from the one before the update
    aggregation: Aggregation

    area: ClassVar = "critic"
    term_names: ClassVar = ("critic/vf_loss",)
    token_names: ClassVar = ("critic/vf_clipfrac", "critic/vpred_mean")

    @classmethod
    def of(
        cls, critic: CriticSpec, algorithm: AlgorithmSpec, *, max_response_tokens: int | None = None
    ) -> ValueObjective:
        """The objective that a job asks for."""
        return cls(critic.value_clip, Aggregation.of(algorithm, max_response_tokens))

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64: the rows that hold a trained token."""
        return rows_with_any(rows.mask, rows.lengths)

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch, whose rows have `returns`, and `values` from before it."""
        assert rows.values is not None, "values come before the update"
        assert rows.returns is not None, "returns come before the update"
        (values,) = outputs
        token_loss, is_clipped = clipped_value_loss(
            values, rows.values, rows.returns, value_clip=self.value_clip, mask=rows.mask
        )
        loss = self.aggregation(token_loss, rows, denominators)
        diagnostics = (is_clipped.float(), values.detach())
        return LossParts(
            loss=loss,
            terms={"critic/vf_loss": loss.item()},
            token_sums={
                name: masked_sum(column, rows.mask).item()
                for name, column in zip(self.token_names, diagnostics, strict=True)
            },
            tokens=int(rows.mask.sum()),
        )
