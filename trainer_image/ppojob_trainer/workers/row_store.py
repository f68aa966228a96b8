"""The rows that a rank owns, made of what an engine drew, kept flat."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppojob_trainer.rollout.trajectory import Trajectory, turn_rewards
from ppojob_trainer.rows.experience import Experience, joined
from ppojob_trainer.rpc.messages.rollout import PromptTokens


class Span(NamedTuple):
    """A segment without its tokens.

    Attributes:
        tokens: how many.
        version: of the weights that drew them; None where they were given.
        reward: of the turn that ends with it.
    """

    tokens: int
    version: int | None
    reward: float


@dataclass
class OwnedRows:
    """One batch of rows.

    Attributes:
        first: position in the batch of the first prompt.
        prompt_ids: (prompts,) their numbers in the data.
        samples: rows a prompt; row `p * samples + s` is sample `s` of prompt `p` of these.
        experience: tokens, masks and log-probabilities.
        spans: (rows,) what each row is made of.
        truncated: (rows,) whether the response ran into the limit.
        figures: (rows,) JSON of each row's figures; empty for rows of one turn.
    """

    first: int
    prompt_ids: list[int]
    samples: int
    experience: Experience
    truncated: list[bool]
    spans: list[list[Span]]
    figures: list[bytes]

    def response(self, row: int) -> tuple[list[int], list[float]]:
        """The token ids of one response, and what they were drawn with."""
        place = slice(*self.experience.offsets[row : row + 2].tolist())
        columns = self.experience.response_tokens, self.experience.rollout_logprobs
        tokens, logprobs = (column[place].tolist() for column in columns)
        return tokens, logprobs

    @property
    def first_row(self) -> int:
        """Position in the batch of the first row."""
        return self.first * self.samples


def own_rows(
    first: int,
    prompts: list[PromptTokens],
    samples: int,
    trajectories: Sequence[Trajectory],
    *,
    has_turns: bool = False,
) -> OwnedRows:
    """Make rows of trajectories that are in prompt-major order.

    Args:
        first: position in the batch of the first prompt.
        prompts: what was answered.
        samples: rows a prompt.
        trajectories: the rows.
        has_turns: whether rows of this job have rewards of turns.
    """
    lengths = [len(trajectory.tokens) for trajectory in trajectories]

    def column(values: Iterable[Iterable[Any]], dtype: torch.dtype) -> Tensor:
        return torch.tensor(list(chain.from_iterable(values)), dtype=dtype)

    experience = Experience(
        prompts=[torch.tensor(prompt.tokens, dtype=torch.int64) for prompt in prompts],
        row_groups=torch.arange(len(prompts)).repeat_interleave(samples),
        response_tokens=column((t.tokens for t in trajectories), torch.int64),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        mask=column((t.mask for t in trajectories), torch.bool),
        rollout_logprobs=column((t.logprobs for t in trajectories), torch.float32),
        turn_rewards=torch.tensor(turn_rewards(trajectories)) if has_turns else None,
    )
    return OwnedRows(
        first=first,
        prompt_ids=[prompt.prompt for prompt in prompts],
        samples=samples,
        experience=experience,
        truncated=[trajectory.finish_reason == "length" for trajectory in trajectories],
        spans=[
            [Span(len(s.tokens), s.policy_version, s.reward) for s in trajectory.segments]
            for trajectory in trajectories
        ],
        figures=[trajectory.figures for trajectory in trajectories],
    )


def chosen_rows(rounds: Mapping[int, OwnedRows], origins: Sequence[tuple[int, int]]) -> Experience:
    """The rows of some prompts out of several generation rounds.

    Args:
        rounds: the rows of this rank by round.
        origins: round and position in its batch of each prompt, ascending.
    """
    parts = []
    for number, rows in sorted(rounds.items()):
        groups = [position - rows.first for round_, position in origins if round_ == number]
        chosen = [g * rows.samples + sample for g in groups for sample in range(rows.samples)]
        parts.append(rows.experience.select(chosen))
    return joined(parts)
