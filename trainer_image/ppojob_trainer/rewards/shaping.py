"""Score shaping: limits, and length penalties, before advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ppojob_api.v1alpha1.algorithm import OverlongPenaltySpec
from ppojob_api.v1alpha1.job import PPOJobSpec


def overlong_penalty(length: int, limit: int, penalty: OverlongPenaltySpec) -> float:
    """Return the soft penalty on a response that comes near the length limit.

    DAPO (arXiv:2503.14476), section 3.4, equation 13, with verl's factor: 0 up to the buffer before
    the limit, then linear to `-factor` at the limit.
    """
    free, buffer = limit - penalty.buffer_tokens, penalty.buffer_tokens
    return -(length - free) / buffer * penalty.factor if length > free else 0.0


@dataclass(frozen=True, slots=True)
class ScoreShaping:
    """Transforms scores for the estimators."""

    low: float = -math.inf
    high: float = math.inf
    truncation: float = 0.0  # penalty of a response that reached the length limit
    overlong: OverlongPenaltySpec | None = None
    limit: int = 0  # most tokens of a response
    counts: bool = True  # whether scores count, and not only the penalties

    @classmethod
    def of(cls, spec: PPOJobSpec) -> ScoreShaping:
        """Build the shaping of a job."""
        clip = spec.algorithm.score_clip
        low, high = (None, None) if clip is None else (clip.low, clip.high)
        return cls(
            -math.inf if low is None else low,
            math.inf if high is None else high,
            spec.algorithm.truncation_penalty or 0.0,
            spec.algorithm.overlong_penalty,
            spec.data.max_response_tokens,
            spec.algorithm.learns_scores,
        )

    def shaped(
        self, scores: Sequence[float], lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[float]:
        """Return (rows,) scores, clipped to the limits, with the penalties."""
        return [
            (min(max(score, self.low), self.high) if self.counts else 0.0)
            - self.truncation * is_cut
            + (overlong_penalty(length, self.limit, self.overlong) if self.overlong else 0.0)
            for score, length, is_cut in zip(scores, lengths, truncated, strict=True)
        ]
