"""The soft penalty on responses that come near the length limit.

DAPO (arXiv:2503.14476), section 3.4, equation 13, with verl's factor: nothing up to the buffer
before the limit, then less by equal steps, and `-factor` at the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverlongPenalty:
    """What is added to the scores of training.

    Attributes:
        max_tokens: limit of a response.
        buffer_tokens: how long before the limit it begins.
        factor: what the limit costs.
    """

    max_tokens: int
    buffer_tokens: int
    factor: float

    def rewards(self, lengths: Sequence[int]) -> list[float]:
        """(rows,) `min(0, -(l - (max - buffer)) / buffer * factor)`, l the tokens of a response."""
        free = self.max_tokens - self.buffer_tokens
        return [
            -(length - free) / self.buffer_tokens * self.factor if length > free else 0.0
            for length in lengths
        ]
