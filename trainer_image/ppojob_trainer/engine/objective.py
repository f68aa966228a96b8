"""What an update minimizes, in general: losses of micro-batches that add up to a mini-batch's.

Every denominator is the whole mini-batch's over all ranks, so losses, gradients and statistics of
micro-batches and ranks are sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ppojob_trainer.algorithms.aggregate import aggregate
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts of a mini-batch.

    Attributes:
        tokens: trained tokens.
        sequences: rows with at least one trained token.
    """

    tokens: float
    sequences: float

    @classmethod
    def of(cls, rows: Experience) -> Denominators:
        """Those of rows that are all on this rank."""
        trained = torch.zeros(rows.num_rows).index_add_(0, rows.token_rows, rows.mask.float())
        return cls(float(rows.mask.sum()), float((trained > 0).sum()))


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How token losses become one number; see `algorithms.aggregate`."""

    mode: str
    scale_tokens: float | None = None

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


class Objective(Protocol):
    """The loss of an update, from what the engine's head says of the rows."""

    @property
    def area(self) -> str:
        """What the names of its statistics begin with: `actor` or `critic`."""
        ...

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of `LossParts.terms`."""
        ...

    @property
    def token_names(self) -> tuple[str, ...]:
        """Names of `LossParts.token_sums`."""
        ...

    def rows_with_gradient(self, rows: Experience) -> Tensor:
        """(n,) int64 row numbers whose gradient is not provably zero."""
        ...

    def __call__(
        self, outputs: TokenOutputs, rows: Experience, denominators: Denominators
    ) -> LossParts:
        """The loss of a micro-batch, by the head's outputs on its rows, which have the gradient."""
        ...
