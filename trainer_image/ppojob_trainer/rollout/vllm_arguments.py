"""Arguments for vLLM: translates a job's spec, model and sampling parameters.

Imported by vllm_engine alone, which first sets what vLLM reads while it is imported.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch.distributed as dist
import vllm
from transformers import PreTrainedConfig
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.model_executor.layers import utils
from vllm.model_executor.models.transformers import base
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_changes import change
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.model_classes import language_part, text_config, unquantised
from ppojob_trainer.rollout import (
    engine_corrections,
    vllm_bidirectional,
    vllm_drafts,
    vllm_pictures,
)
from ppojob_trainer.rollout.checkpoint_names import (
    has_states,
    key_value_bytes_per_token,
    state_bytes,
)
from ppojob_trainer.rollout.engine_arguments import check_arguments
from ppojob_trainer.rollout.protocol import DTYPES, SamplingParams
from ppojob_trainer.rollout.vllm_hybrids import UnjoinedQwen3Next
from ppojob_trainer.rollout.vllm_transformers import OwnClasses

# The smallest block of vLLM's fast CPU attention: a prompt is shared by whole blocks only.
_CPU_BLOCK_TOKENS = 32
# Tokens of a step without `max_batched_tokens`: enough that a whole phase starts together.
_PREFILL_TOKENS = 8192
# Weights come from the trainer alone: nothing is read twice, and no file that vLLM would refuse.
_LOAD_FORMAT = "dummy"
# Without `kv_cache_gib`, a cache that holds every sequence at full length, up to this.
_CPU_KV_CACHE_BYTES = 4 << 30
# Without `gpu_memory_share`: vLLM's share of memory beside a trainer, and without one.
_GPU_MEMORY_SHARE = {True: 0.5, False: 0.9}
# What types of models that vLLM is given as Qwen3-Next begin with.
_HYBRIDS = "qwen3_5"


def check_device(device: Literal["cpu", "cuda"]) -> None:
    """Refuse another device than that of the installed vLLM.

    Raises:
        ConfigError: it is built for another device.
    """
    found = current_platform.device_type
    if found != device:
        raise ConfigError(
            f"spec.roles: got ranks that generate on {device}: the installed vLLM "
            f"{vllm.__version__} computes on {found or 'no device that it knows here'}; the "
            f"packages of requirements/{device}.txt"
        )


def engine_args(
    rollout: RolloutSpec,
    config: PreTrainedConfig,
    device: str,
    shares_device: bool = True,
    tells_experts: bool = False,
) -> vllm.EngineArgs:
    """Translate the spec; the only place where devices are distinguished.

    Raises:
        ConfigError: An argument of the job's own is not supported.
    """
    if problems := [str(one) for one in check_arguments(rollout.engine_arguments)]:
        raise ConfigError(problems)
    length = rollout.max_model_tokens or 0  # set in a resolved run
    common = _on_any_device(rollout, config)
    keeps_states = _keeps_states(config)
    # A step gives every sequence a token: vLLM does not start with a smaller limit.
    step_tokens = rollout.max_batched_tokens or max(rollout.max_sequences, _PREFILL_TOKENS)
    kv_cache_bytes = rollout.kv_cache_gib and int(rollout.kv_cache_gib * 2**30)
    if device == "cuda":
        return vllm.EngineArgs(
            **common,
            # vLLM reads it only while these are built.
            enable_return_routed_experts=tells_experts,
            enable_sleep_mode=True,
            max_num_batched_tokens=step_tokens,
            kv_cache_memory_bytes=kv_cache_bytes,
            gpu_memory_utilization=rollout.gpu_memory_share or _GPU_MEMORY_SHARE[shares_device],
            enforce_eager=rollout.enforce_eager,
        )
    if tells_experts:
        # A step is recorded before the next one (`vllm_experts`).
        common["async_scheduling"] = False
    if (operations := engine_corrections.operations(config)) is not None:
        given = common.get("compilation_config", {})
        common["compilation_config"] = {"custom_ops": operations, **given}
    if (backend := engine_corrections.attention_backend(config)) is not None:
        common.setdefault("attention_backend", backend)
    if rollout.drafts is not None:
        common["speculative_config"] = vllm_drafts.asked_of_vllm(rollout.drafts)
    return vllm.EngineArgs(
        **common,
        # Compiling takes longer than a small model's whole run.
        enforce_eager=True,
        # Where there are states, as many tokens as take their place.
        block_size=None if keeps_states else _CPU_BLOCK_TOKENS,
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(length, step_tokens),
        kv_cache_memory_bytes=kv_cache_bytes or _cpu_cache_bytes(rollout, length, config),
    )


def _on_any_device(rollout: RolloutSpec, config: PreTrainedConfig) -> dict[str, Any]:
    """Return the arguments for every device, including the job's own."""
    tensor = rollout.parallelism.tensor
    common: dict[str, Any] = {
        "model": str(config.name_or_path),
        "dtype": rollout.dtype,
        "trust_remote_code": False,
        "load_format": _LOAD_FORMAT,
        "skip_tokenizer_init": True,
        "max_model_len": rollout.max_model_tokens or 0,
        "max_num_seqs": rollout.max_sequences,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 1,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "tensor_parallel_size": tensor,
        "enable_expert_parallel": rollout.parallelism.expert > 1,
        # This process is one of the engine's ranks, and vLLM starts no others.
        "distributed_executor_backend": "uni" if tensor == 1 else _OneOfSeveral,
        "seed": 0,
        # It would cache files that are not requested again, and has no picture for a dry run.
        "mm_processor_cache_gb": 0,
        "skip_mm_profiling": True,
        **rollout.engine_arguments,
    }
    if _keeps_states(config):
        # Prefixes are kept only of prompts that are cut into chunks. States are the trainer's.
        common |= {"enable_prefix_caching": False, "mamba_ssm_cache_dtype": "float32"}
    if tensor > 1:
        # Ranks that have a batch in flight each might not have the same one. A rank sees its own
        # GPU alone, so they cannot reach into each other's memory.
        common |= {"async_scheduling": False, "disable_custom_all_reduce": True}
    return common


def _keeps_states(config: PreTrainedConfig) -> bool:
    """Whether layers of a known model keep a recurrent state."""
    return config.model_type in FAMILIES and has_states(config)


def _cpu_cache_bytes(rollout: RolloutSpec, length: int, config: PreTrainedConfig) -> int:
    """Return the cache size: all rows at full length within the limit, but at least one row."""
    blocks = -(-length // _CPU_BLOCK_TOKENS)
    dtype, tensor = DTYPES[rollout.dtype], rollout.parallelism.tensor
    per_row = blocks * _CPU_BLOCK_TOKENS * key_value_bytes_per_token(config, dtype, tensor)
    per_row += state_bytes(config, dtype, tensor)
    # vLLM keeps one block for itself.
    rows = rollout.max_sequences + 1
    return max(min(rows * per_row, _CPU_KV_CACHE_BYTES), 2 * per_row)


def sampling_params(sampling: SamplingParams, seed: int) -> vllm.SamplingParams:
    """Translate sampling parameters; at temperature 0 nothing is truncated."""
    greedy = sampling.temperature == 0.0
    return vllm.SamplingParams(
        temperature=sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        top_k=-1 if greedy else sampling.top_k,
        min_p=0.0 if greedy else sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=seed,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        # Stop strings are searched in the tokens so far.
        output_kind=RequestOutputKind.CUMULATIVE
        if sampling.stop_texts
        else RequestOutputKind.FINAL_ONLY,
    )


# Message queue by which one rank of an engine would direct the others: unused here, and between
# pods it would listen at an address that vLLM guesses.
MessageQueue.create_from_process_group = lambda *group_and_sizes: None
# Or it would change the trainer's classes.
base.AutoModel = OwnClasses
# With AMX vLLM has another kernel for small weights in bfloat16. Its sums depend on the number of
# tokens of a step: a row's samples would depend on the other rows.
utils.check_cpu_sgl_kernel = lambda n, k, dtype: False


class _OneOfSeveral(ExecutorWithExternalLauncher):  # type: ignore[misc]
    """One rank of an engine whose other ranks are started elsewhere."""

    def _distributed_args(self) -> tuple[str, int, int]:
        """Return rendezvous, rank and device; the world exists, and each rank sees one device.

        On the CPU, ranks that name the same rendezvous would spin on shared memory, for ever if one
        is gone, and leave it behind when they are killed. So each names another one.
        """
        rank = dist.get_rank()
        return f"env://{rank}", rank, 0


def model_config(
    config: PreTrainedConfig, changes: Mapping[str, Json], form: MediaForm | None
) -> PreTrainedConfig:
    """Return the configuration from which vLLM builds its model, in place of the folder's.

    `form` is the format of its pictures; None if it sees none.
    """
    sees, config = form is not None, unquantised(config)
    part = language_part(config) if sees else text_config(config)
    told = {} if sees else engine_corrections.settings(part)
    changed = engine_corrections.corrected(change(part, {**told, **changes}))
    kind = None if form is None else _seeing(changed, form)
    if changed.model_type.startswith(_HYBRIDS):
        is_mixture = FAMILIES[changed.model_type].mixture is not None
        changed.mlp_only_layers = [] if is_mixture else list(range(changed.num_hidden_layers))
        changed.decoder_sparse_step = 1
        kind = kind or UnjoinedQwen3Next
    if kind is not None:  # vLLM first asks with a type that is none
        changed.architectures = [kind.__name__]
    for name in changed.architectures or ():
        if known := vllm.ModelRegistry.models.get(name):
            # Of one that is not loaded vLLM asks a process, which first loads PyTorch and vLLM.
            vllm.ModelRegistry.register_model(name, known.load_model_cls())
    return changed


def _seeing(part: PreTrainedConfig, form: MediaForm) -> type | None:
    """Return the class for a language model with pictures; None for an unknown model."""
    if (kind := vllm_pictures.SEEING.get(part.model_type)) is not None:
        return kind
    names: Any = (
        engine_corrections.settings(part).get("architectures") or part.architectures or [""]
    )
    known = vllm.ModelRegistry.models.get(names[0])
    given = vllm_bidirectional.BidirectionalPictures if form.sees_ahead else vllm_pictures.Seeing
    if known is None:
        return None
    told = getattr(part, "hidden_size_per_layer_input", 0)
    return vllm_pictures.seeing(vllm_pictures.ToldGemma4 if told else known.load_model_cls(), given)
