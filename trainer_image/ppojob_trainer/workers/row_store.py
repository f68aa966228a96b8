"""The rows that a rank owns: born here from the engine's responses, kept flat."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.rollout.protocol import Finished
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages import PromptTokens


@dataclass
class OwnedRows:
    """One batch of rows.

    Attributes:
        prompt_ids: (prompts,) their numbers in the data.
        samples: rows a prompt; row `p * samples + s` is sample `s` of prompt `p`.
        experience: tokens, masks and log-probabilities.
        truncated: (rows,) whether the response ran into the limit.
    """

    prompt_ids: list[int]
    samples: int
    experience: Experience
    truncated: list[bool]

    def response(self, row: int) -> list[int]:
        """The token ids of one response."""
        first, last = self.experience.offsets[row : row + 2].tolist()
        tokens: list[int] = self.experience.response_tokens[first:last].tolist()
        return tokens

    def rows_of(self, prompts: Sequence[int]) -> list[int]:
        """The rows that answer the prompts at these positions of the batch."""
        return [p * self.samples + sample for p in prompts for sample in range(self.samples)]


def own_rows(prompts: list[PromptTokens], samples: int, responses: list[Finished]) -> OwnedRows:
    """Make rows of responses that are in prompt-major order."""
    lengths = torch.tensor([len(response.tokens) for response in responses], dtype=torch.int64)
    tokens = [token for response in responses for token in response.tokens]
    logprobs = [value for response in responses for value in response.logprobs]
    experience = Experience(
        prompts=[torch.tensor(prompt.tokens, dtype=torch.int64) for prompt in prompts],
        row_groups=torch.arange(len(prompts)).repeat_interleave(samples),
        response_tokens=torch.tensor(tokens, dtype=torch.int64),
        lengths=lengths,
        mask=torch.ones(len(tokens), dtype=torch.bool),
        rollout_logprobs=torch.tensor(logprobs, dtype=torch.float32),
    )
    return OwnedRows(
        prompt_ids=[prompt.prompt for prompt in prompts],
        samples=samples,
        experience=experience,
        truncated=[response.finish_reason == "length" for response in responses],
    )


def rewards_on_last_token(experience: Experience, scores: Sequence[float]) -> Tensor:
    """Token rewards, (tokens,) float32: each row's score on its last token, as verl places it."""
    rewards = torch.zeros(experience.num_tokens, dtype=torch.float32)
    assert int(experience.lengths.min()) > 0, "an engine draws at least one token"
    rewards[experience.offsets[1:] - 1] = torch.tensor(scores, dtype=torch.float32)
    return rewards
