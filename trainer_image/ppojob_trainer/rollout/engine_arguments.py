"""Engine arguments: a job's own arguments for vLLM's EngineArgs, checked without importing vLLM."""

import ast
import difflib
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from ppojob_api.problem import Problem, ReasonCode, printable, shown
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

_FIELD: Final = "spec.rollout.engineArguments"
_LAYOUT: Final = "spec.rollout.parallelism"
_REPLAY: Final = "spec.algorithm.routerReplay"
_SET_BY: Final = {
    **dict.fromkeys(("model", "model_weights", "served_model_name"), "spec.model.path"),
    **dict.fromkeys(("tokenizer", "tokenizer_mode"), "spec.model.tokenizerPath"),
    "hf_overrides": "spec.model.configOverrides",
    "hf_config_path": "spec.model.path",
    "trust_remote_code": "spec.model.trustRemoteCode",
    "dtype": "spec.rollout.dtype",
    "max_model_len": "spec.rollout.maxModelTokens",
    "max_num_seqs": "spec.rollout.maxSequences",
    "max_num_batched_tokens": "spec.rollout.maxBatchedTokens",
    "kv_cache_memory_bytes": "spec.rollout.kvCacheGib",
    "gpu_memory_utilization": "spec.rollout.gpuMemoryShare",
    "enforce_eager": "spec.rollout.enforceEager",
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size"), _LAYOUT),
    **dict.fromkeys(("data_parallel_size", "enable_expert_parallel"), _LAYOUT),
    **dict.fromkeys(("distributed_executor_backend", "nnodes"), _LAYOUT),
    **dict.fromkeys(("enable_lora", "max_lora_rank", "lora_target_modules"), "spec.model.lora"),
    **dict.fromkeys(("enable_return_routed_experts", "aux_output_config"), _REPLAY),
    "hf_token": "HF_TOKEN in spec.pods[].env",
    "seed": "spec.seed",
}
"""Arguments that are set from fields of the job."""
_FIXED: Final = frozenset(
    {
        *("load_format", "skip_tokenizer_init", "enable_prefix_caching", "logprobs_mode"),
        *("max_logprobs", "disable_log_stats", "use_tqdm_on_load", "enable_sleep_mode"),
        *("block_size", "enable_chunked_prefill", "worker_cls", "worker_extension_cls"),
        *("mm_processor_cache_gb", "skip_mm_profiling", "limit_mm_per_prompt"),
        *("language_model_only", "mm_encoder_only", "mamba_ssm_cache_dtype"),
    }
)
"""Arguments that are always set."""
_NOT_YET: Final = {
    **dict.fromkeys(
        ("quantization", "quantization_config"),
        "engines get the trainer's own weights at each step",
    ),
    **dict.fromkeys(
        ("speculative_config", "spec_method", "spec_model"),
        "vLLM draws other tokens with drafts than without; on processors spec.rollout.drafts draws "
        "the same",
    ),
    **dict.fromkeys(
        ("enable_eplb", "decode_context_parallel_size", "prefill_context_parallel_size"),
        "ranks of an engine share matrix products and experts, which stay, and no tokens",
    ),
}
"""Arguments that engines do not support, and why."""


def check_arguments(arguments: Mapping[str, Json]) -> Iterator[Problem]:
    """Yield problems with the names; unknown names are found where vLLM is installed."""
    known = names()
    for name, value in arguments.items():
        where, got = f"{_FIELD}.{name}", shown(value)
        if name in _SET_BY:
            why, allowed = f"{_SET_BY[name]} says so", f"{_SET_BY[name]} in its place"
            yield Problem(where, got, why, allowed, ReasonCode.CONFLICT)
        elif name in _FIXED:
            why = "the product needs it as it sets it"
            yield Problem(where, got, why, "remove it", ReasonCode.CONFLICT)
        elif name in _NOT_YET:
            why = f"{_NOT_YET[name]}: not in this version"
            yield Problem(where, got, why, "remove it", ReasonCode.NOT_IN_THIS_VERSION)
        elif known and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            allowed = f"write {near[0]}" if near else "a field of vLLM's EngineArgs"
            why = "the installed vLLM has no such argument"
            yield Problem(where, got, why, allowed, ReasonCode.UNKNOWN_FIELD)


@cache
def names() -> frozenset[str]:
    """Return the fields of EngineArgs from the installed vLLM's source; none without vLLM.

    Importing vLLM takes seconds, and must happen only in a rank of an engine.
    """
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        return frozenset()
    source = Path(found.origin).parent / "engine" / "arg_utils.py"
    bodies = [
        node.body
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs"
    ]
    return frozenset(
        line.target.id
        for body in bodies
        for line in body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    )


def refusal(problem: ValueError) -> ConfigError | None:
    """Return the error of settings that vLLM refuses at its start; None for any other cause.

    A start is repeated after others, such as memory of a GPU that an ended process still holds.
    """
    if isinstance(problem, ValidationError):
        why = "; ".join(one["msg"] for one in problem.errors())
        allowed = "other settings of spec.rollout, above all its engineArguments"
    elif "max seq len" in str(problem):
        why = str(problem).partition(" Based on")[0].partition(" Try ")[0].rstrip(". ")
        allowed = "more by kvCacheGib or gpuMemoryShare, or a smaller maxModelTokens"
    else:
        return None
    return ConfigError(f"spec.rollout: got engine: vllm: {printable(why)}; {allowed}")
