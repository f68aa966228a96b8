"""Rollouts with vLLM, in the trainer's process. This file and vllm_pictures alone import it (0.32).

Order in a rank: the role's torch world first, then this engine, then the training model. vLLM
builds its groups over whatever default group it finds; it neither owns nor ends that world.

Neighbours in that world may share an engine (`parallelism.tensor`). Each drives the whole of it:
the same requests in the same order make the same schedule everywhere, and each draws the same
tokens from the same logits, which are gathered. So nobody tells anybody what to do, and the answers
are on all of them.

Six things about vLLM on the CPU cost time to find, and each has its line and its test here:

- Linear layers are re-packed when they are loaded, so new weights go in layer by layer through
  vLLM's reload, and a tied `lm_head`, which no checkpoint names, keeps its old packing unless it is
  packed again.
- Norms and rotations read columns of a wider matrix, which latent attention has, as if they were a
  matrix of their own.
- Experts of a mixture are packed when they are loaded first, and read as packed when they were
  loaded again and are not.
- A seeded request whose prompt is prefilled in chunks crashes (a CPU generator has no offset), so
  prompts are never chunked.
- The default block of 128 tokens is longer than many prompts, and only whole blocks are shared.
- It replaces `torch.set_num_threads`, seeds every global generator and sets `LD_PRELOAD`.
"""

import gc
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_api.v1alpha1.training import LoraSpec
from ppojob_trainer.data.pictures import PictureForm
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.adapter_files import peft_name
from ppojob_trainer.models.config_changes import change
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.lora import is_adapter
from ppojob_trainer.models.mixtures import is_sent_float32
from ppojob_trainer.models.vision_language import language_config, language_part, text_config
from ppojob_trainer.models.vision_tower import give_tower
from ppojob_trainer.repeated_bits import any_kernels
from ppojob_trainer.rollout.checkpoint_names import (
    adapter_names,
    checkpoint_names,
    key_value_bytes_per_token,
    state_bytes,
)
from ppojob_trainer.rollout.engine_arguments import check_arguments
from ppojob_trainer.rollout.process_state import (
    garbage_kept,
    process_state_kept,
    random_state_kept,
)
from ppojob_trainer.rollout.protocol import (
    DTYPES,
    Finished,
    FinishReason,
    Request,
    RolloutError,
    SamplingParams,
    check_idle,
    check_request,
    not_a_number,
)
from ppojob_trainer.rollout.vllm_experts import SINKS, by_expert, set_sinks

# Read by vLLM while it is imported. The engine core runs in this process. Its warnings speak of
# what is chosen here on purpose (eager mode, seeds, the CPU without Triton).
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# Ranks of an engine open a socket, by default in the folder for temporary files, whose path may be
# too long for one. `@` is Linux' name space without files.
os.environ.setdefault("VLLM_RPC_BASE_PATH", "@ppojob")

with process_state_kept(own_environment="VLLM_"), garbage_kept():
    import vllm
    from vllm.distributed import parallel_state
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.lora.request import LoRARequest
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.outputs import RequestOutput
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import FinishReason as VllmFinishReason
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    from ppojob_trainer.rollout import vllm_pictures
    from ppojob_trainer.rollout.vllm_hybrids import UnjoinedQwen3Next

logger = logging.getLogger(__name__)

# The smallest block of vLLM's fast CPU attention: a prompt is shared by whole blocks only.
_CPU_BLOCK_TOKENS = 32
# Tokens of a step without `max_batched_tokens`: enough that a whole phase starts together.
_PREFILL_TOKENS = 8192
# Weights come from the trainer alone: nothing is read twice, and no file that vLLM would refuse.
_LOAD_FORMAT = "dummy"
# Without `kv_cache_gib`, a cache that holds every sequence at full length, up to this.
_CPU_KV_CACHE_BYTES = 4 << 30
# Kernels that a model of latent attention uses on the CPU: two read columns of a wider matrix as if
# they lay one after the other, so that its plain PyTorch computes these.
_OPERATIONS = ["all", "-rms_norm", "-rotary_embedding"]
# Without `gpu_memory_share`: what vLLM may fill where a trainer keeps the rest, and where nobody
# does.
_GPU_MEMORY_SHARE = {True: 0.5, False: 0.9}
# What vLLM has room for; smaller adapters are filled up with zeros.
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# What types of models that vLLM is given as Qwen3-Next begin with.
_HYBRIDS = "qwen3_5"
# The one set of adapters, which is in memory before the first request names it.
_ADAPTERS = LoRARequest("adapters", 1, lora_path="(in memory)")


@dataclass(slots=True)
class _Row:
    """A request under way."""

    number: int  # of submission
    request: Request
    vllm_id: str


class VllmEngine:
    """A `RolloutEngine` over vLLM's `LLMEngine`."""

    def __init__(
        self,
        rollout: RolloutSpec,
        model_folder: Path,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        trust_remote_code: bool = False,
        shares_device: bool = True,
        overrides: Mapping[str, Json] | None = None,
        lora: LoraSpec | None = None,
        tells_experts: bool = False,
    ) -> None:
        """Build the model; it sleeps. Collective over the role's world, if there is one.

        Arguments are those of `factory.build_engine`; of the folder the configuration is read.

        Raises:
            ConfigError: If the installed vLLM computes on another device.
        """
        _check_device(device)
        assert rollout.max_model_tokens is not None, "a run is resolved before it is started"
        self._max_model_tokens = rollout.max_model_tokens
        self._dtype = DTYPES[rollout.dtype]
        self._on_cpu = device == "cpu"
        config = language_config(model_folder, trust_remote_code=trust_remote_code)
        self._vocab_size = int(config.vocab_size)
        self._names = checkpoint_names(config)
        self._mixture = FAMILIES[config.model_type].mixture
        self._pictures = PictureForm.read(model_folder)
        self._lora = lora
        self._tells_experts = tells_experts
        self._adapter_names = frozenset[str]() if lora is None else adapter_names(config, lora)
        self._owns_world = not dist.is_initialized()
        with process_state_kept(own_environment="VLLM_"), self._kernels():
            arguments = engine_args(
                rollout, config, device, trust_remote_code, shares_device, tells_experts
            )
            arguments.hf_overrides = partial(
                _engine_config, changes=overrides or {}, sees=self._pictures is not None
            )
            if lora is not None:
                arguments.enable_lora = True
                arguments.max_lora_rank = next(room for room in _LORA_RANKS if room >= lora.rank)
                arguments.lora_target_modules = sorted(
                    {name.split(".")[-2] for name in self._adapter_names}
                )
            # While it starts, vLLM looks for garbage three times, half a second each for what the
            # process has loaded. It freezes all of that itself when it has started.
            gc.freeze()
            self._engine = LLMEngine.from_engine_args(arguments)
        if self._pictures is not None:
            where = torch.device(device)
            self._engine.apply_model(
                partial(give_tower, folder=model_folder, dtype=self._dtype, device=where)
            )
        # It would end torch's default world, which belongs to the role, when the engine is freed.
        self._engine.engine_core._finalizer.detach()
        self._policy_version = 0
        self._submitted = 0
        self._rows: dict[str, _Row] = {}
        self._aborted: list[tuple[_Row, Finished]] = []
        self._has_weights = False  # has been given such, and still has them
        self._is_asleep = False
        self._unusable: str | None = None
        self.sleep()

    @property
    def policy_version(self) -> int:
        """See `RolloutEngine`."""
        return self._policy_version

    def submit(self, request: Request) -> None:
        """See `RolloutEngine`."""
        where = f"submit {request.request_id!r}"
        self._refuse_unusable(where)
        if self._is_asleep:
            raise RolloutError(f"{where}: the engine is asleep")
        if request.request_id in self._rows:
            raise ValueError(f"request {request.request_id!r}: the id is already in use")
        check_request(
            request,
            max_model_tokens=self._max_model_tokens,
            vocab_size=self._vocab_size,
        )
        vllm_id = self._engine.add_request(
            request.request_id,
            vllm_pictures.prompt_of(request, self._pictures),
            _sampling(request.sampling, request.seed),
            lora_request=_ADAPTERS if self._lora else None,
        )
        self._rows[request.request_id] = _Row(self._submitted, request, vllm_id)
        self._submitted += 1

    def step(self) -> list[Finished]:
        """See `RolloutEngine`."""
        self._refuse_unusable("step")
        ended, self._aborted = self._aborted, []
        if self._engine.has_unfinished_requests():
            try:
                with random_state_kept(), self._compiler(), self._kernels():
                    outputs = self._engine.step()
            except Exception:
                self._unusable = "a step failed"
                raise
            for output in outputs:
                sampling = self._rows[output.request_id].request.sampling
                by_text = sampling.ends_with(output.outputs[0].token_ids)
                if output.finished:
                    finished = self._finished(output)
                    if by_text:  # with the last token that was allowed, too
                        finished = replace(finished, finish_reason="stop")
                    ended.append((self._rows.pop(output.request_id), finished))
                elif by_text:
                    ended.append(self._taken_out(output.request_id, VllmFinishReason.STOP))
        return [finished for _, finished in sorted(ended, key=lambda pair: pair[0].number)]

    def has_work(self) -> bool:
        """See `RolloutEngine`."""
        return bool(self._rows or self._aborted)

    def abort(self, request_id: str) -> None:
        """See `RolloutEngine`."""
        if request_id in self._rows:
            self._aborted.append(self._taken_out(request_id, VllmFinishReason.ABORT))

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """See `RolloutEngine`.

        Tensors are cast one at a time, and layers are rebuilt one at a time: beyond the engine's
        own weights, memory for about one layer is needed. An engine that sleeps takes the memory of
        its cache back last.
        """
        self._refuse_unusable("load_weights")
        check_idle(self, "load_weights")
        try:
            with process_state_kept(own_environment="VLLM_"), self._kernels(), torch.no_grad():
                self._wake("weights")
                self._take(iter(tensors))
                self._wake("kv_cache")
        except Exception as error:
            self._unusable = "loading weights failed"
            if isinstance(error, RolloutError):
                raise
            raise RolloutError(f"load_weights: vLLM refused the weights: {error}") from error
        self._policy_version = version
        self._is_asleep = False
        self.reset_cache()

    def reset_cache(self) -> None:
        """See `RolloutEngine`."""
        self._refuse_unusable("reset_cache")
        check_idle(self, "reset_cache")
        if not self._engine.reset_prefix_cache():
            raise RolloutError("reset_cache: vLLM still holds blocks of ended requests")
        self._engine.reset_encoder_cache()

    def sleep(self) -> None:
        """Drop weights and cache from the GPU; on the CPU vLLM cannot, and both stay in memory."""
        self._refuse_unusable("sleep")
        check_idle(self, "sleep")
        if not self._is_asleep and not self._on_cpu:
            self._engine.sleep(level=2)
            self._has_weights = False
        self._is_asleep = True

    def close(self) -> None:
        """See `RolloutEngine`. The role's world, if it was there before, stays."""
        if self._unusable == "it is closed":
            return
        self._unusable = "it is closed"
        self._rows.clear()
        self._aborted.clear()
        core = self._engine.engine_core.engine_core
        core.structured_output_manager.clear_backend()
        core.model_executor.shutdown()
        core.scheduler.shutdown()
        del self._engine, core
        gc.unfreeze()
        gc.collect()
        parallel_state.destroy_model_parallel()
        if self._owns_world:
            parallel_state.destroy_distributed_environment()
        elif parallel_state._WORLD is not None:
            parallel_state._WORLD.destroy()
            parallel_state._WORLD = None

    def _taken_out(self, request_id: str, reason: VllmFinishReason) -> tuple[_Row, Finished]:
        """End a request that vLLM would go on with; it keeps what was drawn."""
        row = self._rows.pop(request_id)
        # vLLM drops what an aborted request has drawn; its record still holds it.
        state = self._engine.output_processor.request_states[row.vllm_id]
        output = state.make_request_output([], None, reason, None)
        self._engine.abort_request([row.vllm_id], internal=True)
        return row, self._finished(output)

    def _wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take the memory of the weights or of the cache back from the trainer."""
        if self._is_asleep and not self._on_cpu:
            self._engine.wake_up(tags=[what])

    def _compiler(self) -> AbstractContextManager[object]:
        """On the CPU vLLM would still compile its sampler's rank count, which nobody reads."""
        return torch.compiler.set_stance("force_eager") if self._on_cpu else nullcontext()

    def _kernels(self) -> AbstractContextManager[object]:
        """On GPUs vLLM's sampler adds up in an order that torch refuses the trainer."""
        return nullcontext() if self._on_cpu else any_kernels()

    def _refuse_unusable(self, what: str) -> None:
        if self._unusable is not None:
            raise RolloutError(f"{what}: the engine cannot be used: {self._unusable}")

    def _take(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Load weights, if any come, and the adapters behind them."""
        first = next(tensors, ("no tensor", torch.empty(0)))
        has_adapters_alone = self._has_weights and is_adapter(first[0])
        names = self._adapter_names | (frozenset() if has_adapters_alone else self._names)
        given = self._checked(chain([first], tensors), names)
        adapters: dict[str, Tensor] = {}
        sinks: dict[str, Tensor] = {}
        if has_adapters_alone:
            adapters.update(given)
        else:
            if self._on_cpu:
                self._engine.apply_model(_forget_packed_experts)
            weights = by_expert(_weights_of(given, adapters, sinks), self._mixture)
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            self._engine.apply_model(_repack_tied_heads)
            ranks = parallel_state.get_tp_group()
            told = {"sinks": sinks, "rank": ranks.rank_in_group, "ranks": ranks.world_size}
            self._engine.apply_model(partial(set_sinks, **told))
            self._has_weights = True
        if self._lora is not None:
            self._engine.apply_model(partial(_set_adapters, lora=self._lora, tensors=adapters))

    def _checked(
        self, tensors: Iterable[tuple[str, Tensor]], names: frozenset[str]
    ) -> Iterator[tuple[str, Tensor]]:
        """Cast on the way through; vLLM itself would only warn of missing names."""
        missing = set(names)
        for name, tensor in tensors:
            if name not in names and name != "lm_head.weight":
                raise RolloutError(f"load_weights: got {name!r}: the model has no such tensor")
            missing.discard(name)
            # vLLM multiplies adapters in place with how much they count; sinks go in last.
            kind = torch.float32 if is_sent_float32(name) else self._dtype
            is_kept = is_adapter(name) or name.endswith(SINKS)
            yield name, tensor.detach().to(kind, copy=is_kept)
        if missing:
            raise RolloutError(
                f"load_weights: {len(missing)} tensors missing, first {min(missing)}"
            )

    def _finished(self, output: RequestOutput) -> Finished:
        completion = output.outputs[0]
        reasons: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
        if completion.finish_reason not in reasons:
            raise RolloutError(
                f"request {output.request_id!r}: vLLM ended it with {completion.finish_reason!r}"
            )
        tokens = tuple(completion.token_ids)
        logprobs = tuple(completion.logprobs.logprobs) if tokens else ()
        if len(logprobs) != len(tokens):
            raise RolloutError(
                f"request {output.request_id!r}: vLLM gave {len(logprobs)} log-probabilities for "
                f"{len(tokens)} tokens"
            )
        if any(map(math.isnan, logprobs)):
            raise not_a_number(output.request_id, self._policy_version)
        experts = completion.routed_experts
        read = len(output.prompt_token_ids or ()) + len(tokens) - 1
        if self._tells_experts and (experts is None or len(experts) < read):
            raise RolloutError(f"request {output.request_id!r}: vLLM told no experts of its tokens")
        return Finished(
            output.request_id,
            tokens,
            logprobs,
            reasons[completion.finish_reason],
            self._policy_version,
            b"" if experts is None else experts.tobytes(),
        )


class _OneOfSeveral(ExecutorWithExternalLauncher):  # type: ignore[misc]
    """A rank of an engine, whose other ranks somebody else has started."""

    def _distributed_args(self) -> tuple[str, int, int]:
        """How to meet them, rank and device; the world is there, and each rank sees one device.

        On the CPU vLLM would have ranks that name the same meeting spin on shared memory, for ever
        where one is gone, and leave it behind when they are killed. So each names another one.
        """
        rank = dist.get_rank()
        return f"env://{rank}", rank, 0


def _engine_config(
    config: PreTrainedConfig, changes: Mapping[str, Json], sees: bool
) -> PreTrainedConfig:
    """What vLLM makes its model of, in place of what it has read from the folder."""
    told: Mapping[str, Json] = {}
    if not sees and config.model_type in FAMILIES:
        told = FAMILIES[config.model_type].told_vllm
    changed = change(language_part(config) if sees else text_config(config), {**told, **changes})
    kind = vllm_pictures.SEEING.get(changed.model_type) if sees else None
    if changed.model_type.startswith(_HYBRIDS):
        is_mixture = FAMILIES[changed.model_type].mixture is not None
        changed.mlp_only_layers = [] if is_mixture else list(range(changed.num_hidden_layers))
        changed.decoder_sparse_step = 1
        kind = kind or UnjoinedQwen3Next
    if kind is not None:  # vLLM first asks with a type that is none
        changed.architectures = [kind.__name__]
    return changed


def _check_device(device: Literal["cpu", "cuda"]) -> None:
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
    trust_remote_code: bool = False,
    shares_device: bool = True,
    tells_experts: bool = False,
) -> vllm.EngineArgs:
    """Translate the spec; what differs by device is told apart here and nowhere else.

    Raises:
        ConfigError: An argument of the job's own is not to be had.
    """
    if problems := [str(one) for one in check_arguments(rollout.engine_arguments)]:
        raise ConfigError(problems)
    length = rollout.max_model_tokens or 0  # which a resolved run has
    tensor = rollout.parallelism.tensor
    common: dict[str, Any] = {
        "model": str(config.name_or_path),
        "dtype": rollout.dtype,
        "trust_remote_code": trust_remote_code,
        "load_format": _LOAD_FORMAT,
        "skip_tokenizer_init": True,
        "max_model_len": length,
        "max_num_seqs": rollout.max_sequences,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 1,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "tensor_parallel_size": tensor,
        # This process is one of the engine's ranks, and vLLM starts no others.
        "distributed_executor_backend": "uni" if tensor == 1 else _OneOfSeveral,
        "seed": 0,
        # vLLM reads it while these are made, and not again.
        "enable_return_routed_experts": tells_experts,
        # It would keep files that nobody asks it for again, and has no picture to try.
        "mm_processor_cache_gb": 0,
        "skip_mm_profiling": True,
        **rollout.engine_arguments,
    }
    if has_states := hasattr(config, "linear_num_value_heads"):
        # Prefixes are kept only of prompts that are cut into chunks. States are the trainer's.
        common |= {"enable_prefix_caching": False, "mamba_ssm_cache_dtype": "float32"}
    if tensor > 1:
        # Ranks that have a batch in flight each might not have the same one. A rank sees its own
        # GPU alone, so they cannot reach into each other's memory.
        common |= {"async_scheduling": False, "disable_custom_all_reduce": True}
    # A step gives every sequence a token: vLLM does not start where that is too much.
    step_tokens = rollout.max_batched_tokens or max(rollout.max_sequences, _PREFILL_TOKENS)
    kv_cache_bytes = rollout.kv_cache_gib and int(rollout.kv_cache_gib * 2**30)
    if device == "cuda":
        return vllm.EngineArgs(
            **common,
            enable_sleep_mode=True,
            max_num_batched_tokens=step_tokens,
            kv_cache_memory_bytes=kv_cache_bytes,
            gpu_memory_utilization=rollout.gpu_memory_share or _GPU_MEMORY_SHARE[shares_device],
            enforce_eager=rollout.enforce_eager,
        )
    if hasattr(config, "kv_lora_rank"):
        given = common.get("compilation_config", {})
        common["compilation_config"] = {"custom_ops": _OPERATIONS, **given}
    return vllm.EngineArgs(
        **common,
        # Compiling takes longer than a small model's whole run.
        enforce_eager=True,
        # Where there are states, as many tokens as take their place.
        block_size=None if has_states else _CPU_BLOCK_TOKENS,
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(length, step_tokens),
        kv_cache_memory_bytes=kv_cache_bytes or _cpu_cache_bytes(rollout, length, config),
    )


def _cpu_cache_bytes(rollout: RolloutSpec, length: int, config: PreTrainedConfig) -> int:
    """Room for all rows at full length within the limit, and for one in any case."""
    blocks = -(-length // _CPU_BLOCK_TOKENS)
    dtype, tensor = DTYPES[rollout.dtype], rollout.parallelism.tensor
    per_row = blocks * _CPU_BLOCK_TOKENS * key_value_bytes_per_token(config, dtype, tensor)
    per_row += state_bytes(config, dtype, tensor)
    # vLLM keeps one block for itself.
    rows = rollout.max_sequences + 1
    return max(min(rows * per_row, _CPU_KV_CACHE_BYTES), 2 * per_row)


def _sampling(sampling: SamplingParams, seed: int) -> vllm.SamplingParams:
    """Translate; at temperature 0 nothing is cut off, as the protocol says."""
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
        # Texts are looked for in what was drawn so far.
        output_kind=RequestOutputKind.CUMULATIVE
        if sampling.stop_texts
        else RequestOutputKind.FINAL_ONLY,
    )


def _weights_of(
    tensors: Iterable[tuple[str, Tensor]], adapters: dict[str, Tensor], sinks: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The weights among tensors; adapters and sinks are put aside on the way."""
    for name, tensor in tensors:
        if is_adapter(name):
            adapters[name] = tensor
        elif name.endswith(SINKS):
            sinks[name] = tensor
        else:
            yield name, tensor


def _set_adapters(model: Any, lora: LoraSpec, tensors: Mapping[str, Tensor]) -> None:
    """Put adapters in the place of those before; vLLM itself would read them from a folder."""
    made = LoRAModel.from_lora_tensors(
        _ADAPTERS.lora_int_id,
        {peft_name(name): tensor for name, tensor in tensors.items()},
        PEFTHelper(lora.rank, lora.alpha, [], use_rslora=lora.rank_stabilized),
        device="cpu",
    )
    model.lora_manager.remove_adapter(made.id)
    model.lora_manager.add_adapter(made)
    model.lora_manager.activate_adapter(made.id)


def _forget_packed_experts(model: nn.Module) -> None:
    """Let a reload pack experts, as vLLM does for those without a kernel yet.

    Into the memory of packed weights (CPU only) it would write plain ones, which are then misread.
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def _repack_tied_heads(model: nn.Module) -> None:
    """Pack an output head again that shares the embedding's weight.

    A reload rebuilds the layers that it is given tensors for. A tied head has none of its own: its
    weight is the embedding's and thus new, its packed copy (CPU only) is of the old one.
    """
    layers = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    for layer in layers:
        shared = sum(other.weight is layer.weight for other in layers) > 1
        if shared and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)
