"""Arguments for vLLM: translates a job's spec, model and sampling parameters."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import torch.distributed as dist
import vllm
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel
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
from ppojob_trainer.models.architectures import sizes_by
from ppojob_trainer.models.config_changes import change
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.memory import cached_per_token, cached_state_bytes
from ppojob_trainer.models.model_classes import language_part, text_config, unquantised
from ppojob_trainer.rollout import engine_corrections, vllm_bidirectional, vllm_drafts, vllm_models
from ppojob_trainer.rollout.engine_arguments import check_arguments
from ppojob_trainer.rollout.protocol import DTYPES, SamplingParams
from ppojob_trainer.rollout.vllm_models import UnfusedQwen3Next

# The smallest block of vLLM's fast CPU attention; prompts share whole blocks.
_CPU_BLOCK_TOKENS = 32
# Tokens of a step without `max_batched_tokens`.
_PREFILL_TOKENS = 8192
# All weights come from the trainer.
_LOAD_FORMAT = "dummy"
# Without `kv_cache_gib`, a cache that holds every sequence at full length, up to this.
_CPU_KV_CACHE_BYTES = 4 << 30
# Without `gpu_memory_share`: vLLM's share of memory with a trainer on the device, and without.
_GPU_MEMORY_SHARE = {True: 0.5, False: 0.9}
# Prefix of model types that vLLM computes by its Qwen3-Next classes.
_HYBRIDS = "qwen3_5"


def check_device(device: Literal["cpu", "cuda"]) -> None:
    """Raise ConfigError if the installed vLLM is built for another device."""
    found = current_platform.device_type
    if found != device:
        raise ConfigError(
            f"spec.roles: got ranks that generate on {device}: the installed vLLM "
            f"{vllm.__version__} computes on {found or 'no known device'}; the "
            f"packages of requirements/{device}.txt"
        )


def engine_args(
    rollout: RolloutSpec,
    config: PreTrainedConfig,
    device: str,
    shares_device: bool = True,
    records_experts: bool = False,
) -> vllm.EngineArgs:
    """Translate the spec; ConfigError for unsupported engine arguments of the job."""
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
            enable_return_routed_experts=records_experts,
            enable_sleep_mode=True,
            max_num_batched_tokens=step_tokens,
            kv_cache_memory_bytes=kv_cache_bytes,
            gpu_memory_utilization=rollout.gpu_memory_share or _GPU_MEMORY_SHARE[shares_device],
            enforce_eager=rollout.enforce_eager,
        )
    if records_experts:
        # A step is recorded before the next one (`vllm_experts`).
        common["async_scheduling"] = False
    if (operations := engine_corrections.operations(config)) is not None:
        given = common.get("compilation_config", {})
        common["compilation_config"] = {"custom_ops": operations, **given}
    if (backend := engine_corrections.attention_backend(config)) is not None:
        common.setdefault("attention_backend", backend)
    if rollout.drafts is not None:
        common["speculative_config"] = vllm_drafts.speculative_config(rollout.drafts)
    return vllm.EngineArgs(
        **common,
        # Compiling takes longer than a small model's whole run.
        enforce_eager=True,
        # With recurrent states, vLLM chooses the block that fits a state.
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
        # This process is one of the engine's ranks.
        "distributed_executor_backend": "uni" if tensor == 1 else _ExternalRank,
        "seed": 0,
        # Files are requested once, and there is no image for a dry run.
        "mm_processor_cache_gb": 0,
        "skip_mm_profiling": True,
        **rollout.engine_arguments,
    }
    if _keeps_states(config):
        # vLLM caches prefixes of hybrid models only with chunked prefill.
        common |= {"enable_prefix_caching": False, "mamba_ssm_cache_dtype": "float32"}
    if own := engine_corrections.generation(config):
        given = common.get("override_generation_config", {})
        common["override_generation_config"] = {**own, **given}
    if tensor > 1:
        # All ranks must have the same batch in flight, and each sees its own GPU only.
        common |= {"async_scheduling": False, "disable_custom_all_reduce": True}
    return common


def _keeps_states(config: PreTrainedConfig) -> bool:
    """Whether layers of a known model keep a recurrent state."""
    return config.model_type in FAMILIES and sizes_by(config.to_dict()).recurrence is not None


def _cpu_cache_bytes(rollout: RolloutSpec, length: int, config: PreTrainedConfig) -> int:
    """Return the cache size: all rows at full length within the limit, but at least one row."""
    blocks = -(-length // _CPU_BLOCK_TOKENS)
    size, tensor = DTYPES[rollout.dtype].itemsize, rollout.parallelism.tensor
    sizes = sizes_by(config.to_dict())
    per_row = blocks * _CPU_BLOCK_TOKENS * cached_per_token(sizes, tensor) * size
    per_row += cached_state_bytes(sizes, size, tensor)
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


class SubclassingAutoModel:
    """Replaces transformers' `AutoModel` in vLLM's Transformers backend.

    vLLM patches the decoder's class to compile it, which would change the trainer's models of that
    class. So vLLM gets a subclass.
    """

    @staticmethod
    def from_config(config: PreTrainedConfig, dtype: Any, **_: Any) -> PreTrainedModel:
        model: PreTrainedModel = _subclass(MODEL_MAPPING[type(config)])._from_config(
            config, dtype=dtype
        )
        return model


@cache
def _subclass(kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a subclass of the same name, by which transformers finds a model's settings."""
    return type(kind.__name__, (kind,), {"__module__": kind.__module__})


# Unused here, and between pods it would listen at an address that vLLM guesses.
MessageQueue.create_from_process_group = lambda *group_and_sizes: None
base.AutoModel = SubclassingAutoModel
# With AMX vLLM has a kernel for small bfloat16 weights whose sums depend on the other rows.
utils.check_cpu_sgl_kernel = lambda n, k, dtype: False


class _ExternalRank(ExecutorWithExternalLauncher):  # type: ignore[misc]
    """One rank of an engine whose other ranks run in other processes."""

    def _distributed_args(self) -> tuple[str, int, int]:
        """Return rendezvous, rank and device; the world exists, and each rank sees one device.

        On the CPU, ranks with the same rendezvous would spin on shared memory, for ever if one is
        killed; so each names another one.
        """
        rank = dist.get_rank()
        return f"env://{rank}", rank, 0


def model_config(
    config: PreTrainedConfig, changes: Mapping[str, Json], form: MediaForm | None
) -> PreTrainedConfig:
    """Return the configuration of vLLM's model; `form` is that of its images, None for text."""
    has_images, config = form is not None, unquantised(config)
    part = language_part(config) if has_images else text_config(config)
    settings = {} if has_images else engine_corrections.settings(part)
    changed = engine_corrections.corrected(change(part, {**settings, **changes}))
    model_class = None if form is None else _image_model(changed, form)
    if changed.model_type.startswith(_HYBRIDS):
        is_mixture = FAMILIES[changed.model_type].mixture is not None
        changed.mlp_only_layers = [] if is_mixture else list(range(changed.num_hidden_layers))
        changed.decoder_sparse_step = 1
        model_class = model_class or UnfusedQwen3Next
    if model_class is not None:  # vLLM first calls this with a dummy type
        changed.architectures = [model_class.__name__]
    for name in changed.architectures or ():
        if registered := vllm.ModelRegistry.models.get(name):
            # Otherwise vLLM starts a process to inspect the class.
            vllm.ModelRegistry.register_model(name, registered.load_model_cls())
    return changed


def _image_model(part: PreTrainedConfig, form: MediaForm) -> type | None:
    """Return the class for a language model with images; None for an unknown model."""
    if (model_class := vllm_models.MROPE_MODELS.get(part.model_type)) is not None:
        return model_class
    names: Any = (
        engine_corrections.settings(part).get("architectures") or part.architectures or [""]
    )
    registered = vllm.ModelRegistry.models.get(names[0])
    mixin = (
        vllm_bidirectional.BidirectionalImages
        if form.sees_ahead
        else vllm_models.VisionLanguageModel
    )
    if registered is None:
        return None
    has_per_layer = getattr(part, "hidden_size_per_layer_input", 0)
    return vllm_models.with_vision_tower(
        vllm_models.PerLayerGemma4 if has_per_layer else registered.load_model_cls(), mixin
    )
