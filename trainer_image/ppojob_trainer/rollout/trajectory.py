"""Trajectories: what a row is made of, segment after segment.

The policy writes one segment, somebody else may answer by the next (a tool, a user, the template
between them), and the policy goes on. What it wrote is trained on; what it was given is only read.
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
    logprobs: tuple[float, ...] = ()  # empty where the tokens were given
    # of the weights that drew them, or `OF_DATA`; None where they are read alone
    policy_version: int | None = None
    reward: float = 0.0  # of the turn that ends with this segment
    # given tokens that what follows is read behind, and no token before them
    begins_context: bool = False

    @property
    def is_trained(self) -> bool:
        """Whether the policy wrote it, or learns it as if it had."""
        return self.policy_version is not None

    @property
    def is_of_data(self) -> bool:
        """Whether it is learnt, and the policy did not write it."""
        return self.policy_version == OF_DATA


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One row. Seconds of its calls differ between runs, so that comparisons leave them out."""

    segments: tuple[Segment, ...]  # in order; none where the policy drew nothing
    finish_reason: FinishReason
    figures: bytes = b""  # JSON of numbers besides the tokens; empty for a row of one turn
    tool_seconds: float = field(default=0.0, compare=False)
    # of the prompt and what follows, as far as the engine read it; see `Finished`
    experts: bytes = b""
    pictures: tuple[LaterPicture, ...] = ()  # that it was shown behind its prompt

    @property
    def tokens(self) -> list[int]:
        """Token ids, (tokens,)."""
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def mask(self) -> list[bool]:
        """Which tokens are trained, (tokens,)."""
        return [s.is_trained for s in self.segments for _ in s.tokens]

    @property
    def given(self) -> list[bool]:
        """Which tokens are learnt that the policy did not write, (tokens,)."""
        return [s.is_of_data for s in self.segments for _ in s.tokens]

    @property
    def context_starts(self) -> list[bool]:
        """Which tokens begin a context, (tokens,); the first, the prompt's, is none of these."""
        return [
            segment.begins_context and place == 0
            for segment in self.segments
            for place in range(len(segment.tokens))
        ]

    @property
    def logprobs(self) -> list[float]:
        """Of each token, (tokens,); 0 of those that were given."""
        return [
            value
            for segment in self.segments
            for value in (segment.logprobs or (0.0,) * len(segment.tokens))
        ]


def turn_rewards(trajectories: Sequence[Trajectory]) -> list[float]:
    """Rewards of turns, (tokens of all rows,): each on the last token that the policy wrote in it.

    That of a turn in which it wrote nothing goes to its last token before; where there is none, the
    reward is lost, as the row has no gradient.
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
