"""Hooks into vLLM's scheduler: counters of each step, and masks of structured output.

vLLM counts the same for its own loggers, which would serve it to Prometheus a second time. It would
compile a form in a thread, and admit a request when that is done; here a matcher is ready when its
request is added. vLLM masks logits before its sampler, and follows drafts.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

from ppojob_trainer.rollout.structured_output import Grammar, GrammarMatcher


class SchedulerCounts:
    """Counters of one engine; scheduling does not depend on them."""

    def __init__(self, engine: LLMEngine) -> None:
        self._counts = Counter[str]()
        self._scheduler: Any = engine.engine_core.engine_core.scheduler
        self._cache = self._scheduler.kv_cache_manager
        self._cache.log_stats = True
        self._cache.prefix_cache_stats = PrefixCacheStats()
        self._preempt = self._scheduler._preempt_request
        self._scheduler._preempt_request = self._preempted

    def _preempted(self, *arguments: Any, **named: Any) -> None:
        self._counts["preempted"] += 1
        self._preempt(*arguments, **named)

    def submitted(self) -> None:
        self._counts["rows"] += 1

    def stepped(self) -> None:
        running, waiting = self._scheduler.get_request_counts()
        pool, prefixes = self._cache.block_pool, self._cache.make_prefix_cache_stats()
        blocks = pool.num_gpu_blocks - 1  # one block is never allocated
        self._counts.update(
            steps=1,
            running=running,
            waiting=waiting,
            blocks=blocks,
            used=blocks - pool.get_num_free_blocks(),
            looked_up=prefixes.queries,
            found=prefixes.hits,
        )

    def take(self) -> dict[str, int]:
        counts, self._counts = self._counts, Counter()
        return dict(counts)


def constrain(engine: LLMEngine, vllm_id: str, grammar: Grammar) -> None:
    """Set the form of the response of a request that was just added."""
    core: Any = engine.engine_core.engine_core
    manager = core.structured_output_manager
    if manager._grammar_bitmask is None:
        config = engine.vllm_config
        places = config.scheduler_config.max_num_seqs * (1 + config.num_speculative_tokens)
        words = -(-config.model_config.get_vocab_size() // 32)
        manager._grammar_bitmask = torch.zeros(places, words, dtype=torch.int32)
    request = core.scheduler.requests[vllm_id]
    params = StructuredOutputsParams(grammar=grammar.text)
    request.structured_output_request = StructuredOutputRequest(params, _Matching(grammar))


class _Matching(GrammarMatcher, StructuredOutputGrammar):  # type: ignore[misc]
    """A matcher with the interface of vLLM's scheduler, which has `rollback` too."""

    def fill_bitmask(self, bitmask: Tensor, idx: int) -> None:
        """Write the mask of the next token, in a row of `bitmask`, (places, words) int32."""
        row = bitmask[idx].numpy().view("uint8")
        row[:] = self.allowed(len(row))

    def accept_tokens(self, _: str, tokens: list[int]) -> bool:
        """Go on by tokens that were sampled from masked logits."""
        self.advance(tokens)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the first of some drafts, as far as they have the form."""
        return tokens[: self.count_allowed(tokens)]

    def is_terminated(self) -> bool:
        return self.has_ended

    def reset(self) -> None:
        """Do nothing: vLLM never asks."""
