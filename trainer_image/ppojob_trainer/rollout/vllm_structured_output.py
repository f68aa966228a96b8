"""Structured output in vLLM: its scheduler asks our matchers for the masks of a step.

vLLM would compile a form in a thread, and admit a request when that is done. Here a matcher is
ready when its request is added. vLLM masks logits before its sampler, and follows drafts.
"""

from typing import Any

import torch
from torch import Tensor
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

from ppojob_trainer.rollout.structured_output import Grammar, GrammarMatcher


def constrain(engine: LLMEngine, vllm_id: str, grammar: Grammar) -> None:
    """Give a request that was just added the form of its response."""
    core: Any = engine.engine_core.engine_core
    manager = core.structured_output_manager
    if manager._grammar_bitmask is None:
        config = engine.vllm_config
        places = config.scheduler_config.max_num_seqs * (1 + config.num_speculative_tokens)
        words = -(-config.model_config.get_vocab_size() // 32)
        manager._grammar_bitmask = torch.zeros(places, words, dtype=torch.int32)
    request = core.scheduler.requests[vllm_id]
    asked = StructuredOutputsParams(grammar=grammar.text)
    request.structured_output_request = StructuredOutputRequest(asked, _Matching(grammar.matcher()))


class _Matching(StructuredOutputGrammar):  # type: ignore[misc]
    """A matcher, as vLLM's scheduler asks for it."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher

    def fill_bitmask(self, bitmask: Tensor, idx: int) -> None:
        """Write the mask of the next token, in a row of `bitmask`, (places, words) int32."""
        row = bitmask[idx].numpy().view("uint8")
        row[:] = self._matcher.allowed(len(row))

    def accept_tokens(self, _: str, tokens: list[int]) -> bool:
        """Go on by tokens that were sampled from masked logits."""
        self._matcher.advance(tokens)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the first of some drafts, as far as they have the form."""
        return tokens[: self._matcher.count_allowed(tokens)]

    def rollback(self, num_tokens: int) -> None:
        """Go back by so many tokens."""
        self._matcher.rollback(num_tokens)

    def is_terminated(self) -> bool:
        return self._matcher.has_ended

    def reset(self) -> None:
        """Do nothing: vLLM never asks."""
