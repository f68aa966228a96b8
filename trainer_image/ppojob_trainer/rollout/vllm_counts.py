"""Scheduler counters of vLLM, taken at each step: rows, cache blocks, preemptions.

vLLM counts the same for its own loggers, which would serve it to Prometheus a second time.
"""

from collections import Counter
from typing import Any

from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.stats import PrefixCacheStats


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
