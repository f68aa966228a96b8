"""Trajectories: the segments of a row.

The policy writes a segment, another source may add the next (a tool, a user simulator, the template
between turns), and the policy continues. Segments of the policy are trained on; others are only
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ppojob_trainer.data.media.pictures import LaterPicture
from ppojob_trainer.rollout.protocol import FinishReason
from ppojob_trainer.rpc.messages.rollout import OF_DATA


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens from one source, at least one."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()  # empty for tokens that were given
    # of the weights that generated them, or `OF_DATA`; None if they are only read
    policy_version: int | None = None
    reward: float = 0.0  # of the turn that ends with this segment
    # given tokens that begin a new context: no token before them is read any more
    begins_context: bool = False

    @property
    def is_trained(self) -> bool:
        """Whether it is trained on: the policy wrote it, or learns it as if it had."""
        return self.policy_version is not None

    @property
    def is_of_data(self) -> bool:
        """Whether it is trained on, though the policy did not write it."""
        return self.policy_version == OF_DATA


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One row. Its `tool_seconds` differ between runs, so comparisons exclude them."""

    segments: tuple[Segment, ...]  # in order; empty if the policy wrote nothing
    finish_reason: FinishReason
    figures: bytes = b""  # JSON of per-row figures; empty for a single-turn row
    tool_seconds: float = field(default=0.0, compare=False)
    # of prompt and response, as far as the engine read them; see `Finished`
    experts: bytes = b""
    pictures: tuple[LaterPicture, ...] = ()  # shown to it after its prompt

    @property
    def tokens(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def mask(self) -> list[bool]:
        """Return which tokens are trained, (tokens,)."""
        return [s.is_trained for s in self.segments for _ in s.tokens]

    @property
    def given(self) -> list[bool]:
        """Return which trained tokens the policy did not write, (tokens,)."""
        return [s.is_of_data for s in self.segments for _ in s.tokens]

    @property
    def context_starts(self) -> list[bool]:
        """Return which tokens begin a context, (tokens,), except the first context."""
        return [
            segment.begins_context and place == 0
            for segment in self.segments
            for place in range(len(segment.tokens))
        ]

    @property
    def logprobs(self) -> list[float]:
        """Return the log-probability of each token, (tokens,); 0 for given ones."""
        return [
            value
            for segment in self.segments
            for value in (segment.logprobs or (0.0,) * len(segment.tokens))
        ]


def turn_rewards(trajectories: Sequence[Trajectory]) -> list[float]:
    """Return turn rewards, (tokens of all rows,), each at the policy's last token in its turn.

    That of a turn in which it wrote nothing goes to its last token before; without one, the reward
    is lost, as the row has no gradient.
    """
    rewards: list[float] = []
    for trajectory in trajectories:
        start, last = len(rewards), None
        rewards += [0.0] * len(trajectory.tokens)
        for segment in trajectory.segments:
            start += len(segment.tokens)
            last = start - 1 if segment.is_trained else last
            if last is not None:
                rewards[last] += segment.reward
    return rewards
