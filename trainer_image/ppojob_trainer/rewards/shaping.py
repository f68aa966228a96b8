"""Score shaping: limits, and length penalties, before advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ppojob_api.v1alpha1.job import PPOJobSpec


@dataclass(frozen=True, slots=True)
class OverlongPenalty:
    """The soft penalty on responses that come near the length limit.

    DAPO (arXiv:2503.14476), section 3.4, equation 13, with verl's factor: 0 up to the buffer before
    the limit, then linear to `-factor` at the limit.
    """

    max_tokens: int
    buffer_tokens: int  # tokens before the limit where the penalty begins
    factor: float

    def rewards(self, lengths: Sequence[int]) -> list[float]:
        """Return (rows,) `min(0, -(l - (max - buffer)) / buffer * factor)` for l tokens."""
        free = self.max_tokens - self.buffer_tokens
        return [
            -(length - free) / self.buffer_tokens * self.factor if length > free else 0.0
            for length in lengths
        ]


@dataclass(frozen=True, slots=True)
class ScoreShaping:
    """Transforms scores for the estimators."""

    low: float = -math.inf
    high: float = math.inf
    truncation: float = 0.0  # penalty of a response that reached the length limit
    overlong: OverlongPenalty | None = None
    counts: bool = True  # whether scores count, and not only the penalties

    @classmethod
    def of(cls, spec: PPOJobSpec) -> ScoreShaping:
        """Build the shaping of a job."""
        clip, penalty = spec.algorithm.score_clip, spec.algorithm.overlong_penalty
        low, high = (None, None) if clip is None else (clip.low, clip.high)
        return cls(
            -math.inf if low is None else low,
            math.inf if high is None else high,
            spec.algorithm.truncation_penalty or 0.0,
            None
            if penalty is None
            else OverlongPenalty(
                spec.data.max_response_tokens, penalty.buffer_tokens, penalty.factor
            ),
            spec.algorithm.learns_scores,
        )

    def shaped(
        self, scores: Sequence[float], lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[float]:
        """Return (rows,) scores, clipped to the limits, with the penalties."""
        penalties = (
            [0.0] * len(lengths) if self.overlong is None else self.overlong.rewards(lengths)
        )
        return [
            (min(max(score, self.low), self.high) if self.counts else 0.0)
            - self.truncation * is_cut
            + own
            for score, is_cut, own in zip(scores, truncated, penalties, strict=True)
        ]
