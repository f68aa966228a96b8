"""The rows that a rank owns: born here from the engine's responses, kept flat."""

from dataclasses import dataclass

import torch

from ppojob_trainer.rollout.protocol import Finished
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages import PromptTokens


@dataclass
class OwnedRows:
    """One batch of rows.

    Attributes:
        first: position in the batch of the first prompt.
        prompt_ids: (prompts,) their numbers in the data.
        samples: rows a prompt; row `p * samples + s` is sample `s` of prompt `p` of these.
        experience: tokens, masks and log-probabilities.
        truncated: (rows,) whether the response ran into the limit.
    """

    first: int
    prompt_ids: list[int]
    samples: int
    experience: Experience
    truncated: list[bool]

    def response(self, row: int) -> list[int]:
        """The token ids of one response."""
        first, last = self.experience.offsets[row : row + 2].tolist()
        tokens: list[int] = self.experience.response_tokens[first:last].tolist()
        return tokens

    @property
    def first_row(self) -> int:
        """Position in the batch of the first row."""
        return self.first * self.samples


def own_rows(
    first: int, prompts: list[PromptTokens], samples: int, responses: list[Finished]
) -> OwnedRows:
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
        first=first,
        prompt_ids=[prompt.prompt for prompt in prompts],
        samples=samples,
        experience=experience,
        truncated=[response.finish_reason == "length" for response in responses],
    )
