"""Check of the rollout engine's KV cache: vLLM does not start if the longest row does not fit."""

import math
from collections.abc import Iterator
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.models.architectures import sizes_of
from ppojob_trainer.models.memory import GIB, cached_state_bytes, least_cache

# vLLM caches whole blocks of at most so many tokens, and keeps one block for itself.
_BLOCK_TOKENS: Final = 128
_KV_CACHE_DTYPE: Final = "kv_cache_dtype"  # of vLLM, whose numbers may be smaller


def check_cache(spec: PPOJobSpec) -> Iterator[Problem]:
    """Yield that spec.rollout.kvCacheGib of a resolved job holds less than its longest row.

    Only what surely fails is refused; the size that is told is enough.
    """
    rollout, folder, sizes = spec.rollout, spec.model.path, sizes_of(spec.model.path)
    cache, tokens = rollout.kv_cache_gib, rollout.max_model_tokens
    if cache is None or tokens is None or sizes is None or rollout.replay is not None:
        return
    ranks = rollout.parallelism.tensor
    least = least_cache(folder, rollout.dtype, tokens, ranks)
    if int(cache * GIB) >= least or _KV_CACHE_DTYPE in rollout.engine_arguments:
        return
    # `auto` may become float32 on another machine.
    dtype = "float32" if rollout.dtype == "auto" else rollout.dtype
    enough = least_cache(folder, dtype, tokens + 2 * _BLOCK_TOKENS, ranks)
    enough += 2 * cached_state_bytes(sizes, 4, ranks)
    why = f"one row of {tokens} tokens takes {least / GIB:.3g} GiB or more"
    allowed = f"at least {math.ceil(100 * enough / GIB) / 100:g}, or a smaller maxModelTokens"
    where, code = "spec.rollout.kvCacheGib", ReasonCode.OUT_OF_RANGE
    yield Problem(where, shown(cache), why, allowed, code)
