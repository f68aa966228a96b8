"""What an update minimizes, in general: losses of micro-batches that add up to a mini-batch's.

Every denominator is the whole mini-batch's over all ranks, so losses, gradients and statistics of
micro-batches and ranks are sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.algorithms.aggregate import aggregate
from ppojob_trainer.algorithms.masked import masked_sum, row_count, rows_with_any
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts of a mini-batch."""

    tokens: float  # trained tokens
    sequences: float  # rows with at least one trained token
    positives: float = 0.0  # trained tokens of rows that scored well, where that is known

    @classmethod
    def of(cls, rows: Experience) -> Denominators:
        """Those of rows that are all on this rank."""
        counts = row_count(rows.mask, rows.lengths)
        positives = 0.0 if rows.positives is None else float((rows.mask & rows.positives).sum())
        return cls(float(rows.mask.sum()), float((counts > 0).sum()), positives)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How token losses become one number; see `algorithms.aggregate`."""

    mode: str
    scale_tokens: float | None = None

    @classmethod
    def of(cls, spec: AlgorithmSpec, max_response_tokens: int | None) -> Aggregation:
        """That of a job, whose longest response stands for an absent `lossScaleTokens`."""
        return cls(spec.loss_aggregation, spec.loss_scale_tokens or max_response_tokens)

    def __call__(
        self,
        values: Tensor,
        rows: Experience,
        denominators: Denominators,
        mask: Tensor | None = None,
    ) -> Tensor:
        """This micro-batch's share of the mini-batch's value; the rows have a mask of their own."""
        return aggregate(
            values,
            rows.mask if mask is None else mask,
            rows.lengths,
            self.mode,
            global_tokens=denominators.tokens,
            global_sequences=denominators.sequences,
            scale_tokens=self.scale_tokens,
        )


class OfTokens:
    """An objective whose loss is of each trained token, or of each row that has one."""

    __slots__ = ()

    token_names: ClassVar[tuple[str, ...]] = ()

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64: the rows that hold a trained token."""
        return rows_with_any(rows.mask, rows.lengths)


@dataclass(slots=True)
class LossParts:
    """What a micro-batch adds to the mini-batch."""

    loss: Tensor  # scalar with gradient
    # statistics that are sums over micro-batches already divided by the denominators
    terms: dict[str, float] = field(default_factory=dict)
    # statistics that are sums over the computed tokens; `tokens` counts those
    token_sums: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    # how many values a sum is of, where they are not those tokens
    counts: dict[str, float] = field(default_factory=dict)


def token_sums(columns: Mapping[str, Tensor], mask: Tensor) -> dict[str, float]:
    """The sum of each column over the trained tokens."""
    return {name: masked_sum(values, mask).item() for name, values in columns.items()}
