"""Trajectories: the segments of a row.

The policy generates a segment, another source may add the next (a tool, a user simulator, the
template between turns), and the policy continues. Only the policy's segments are trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ppojob_trainer.data.media.images import LaterImage
from ppojob_trainer.rollout.protocol import FinishReason
from ppojob_trainer.rpc.messages.rollout import OF_DATA


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens from one source, at least one."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()  # empty for given tokens
    policy_version: int | None = None  # or `OF_DATA`; None if not trained on
    reward: float = 0.0  # of the turn that ends with this segment
    begins_context: bool = False  # later tokens read none before this segment

    @property
    def is_trained(self) -> bool:
        return self.policy_version is not None

    @property
    def is_of_data(self) -> bool:
        """Whether it is trained on, but comes from the data."""
        return self.policy_version == OF_DATA


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One row."""

    segments: tuple[Segment, ...]  # in order; empty if the policy wrote nothing
    finish_reason: FinishReason
    figures: bytes = b""  # JSON of per-row figures; empty for a single-turn row
    tool_seconds: float = field(default=0.0, compare=False)
    experts: bytes = b""  # see `Finished`
    images: tuple[LaterImage, ...] = ()  # after the prompt

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

    If the policy generated nothing in the turn, it is its last token before; without one, the
    reward is dropped.
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
