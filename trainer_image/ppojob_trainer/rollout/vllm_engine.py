"""vLLM engine (0.32), in the trainer's process.

It sets variables that vLLM reads while it is imported; so it alone imports the other vllm_*
modules.

Order in a rank: the role's torch world, this engine, the training model. vLLM builds its groups
over the default group that it finds, and does not end that world. Adjacent ranks may share an
engine (`parallelism.tensor`). Each drives the whole engine: equal requests in equal order give the
same schedule, and each rank samples the same tokens from the gathered logits. So no rank directs
the others.

Facts about vLLM on the CPU, each with its line and its test here:

- Linear layers are packed when they are loaded. New weights are loaded layer by layer through
  vLLM's reload; a tied `lm_head`, which no checkpoint names, must be packed again.
- Norms and rotations read columns of a wider matrix, as in latent attention, as if contiguous.
- Experts are packed at the first load, and read as packed after a reload that does not pack them.
- A seeded request whose prompt is prefilled in chunks crashes (a CPU generator has no offset), so
  prompts are never chunked.
- The default block of 128 tokens is longer than many prompts, and only whole blocks are shared.
- It replaces `torch.set_num_threads`, seeds every global generator and sets `LD_PRELOAD`.
"""

import gc
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.deterministic import nondeterministic_kernels
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.model_classes import language_config
from ppojob_trainer.models.vision_tower import attach_tower, tower_of
from ppojob_trainer.rollout.engine_arguments import refusal
from ppojob_trainer.rollout.process_state import (
    gc_disabled,
    preserve_process_state,
    preserve_random_state,
)
from ppojob_trainer.rollout.protocol import (
    DTYPES,
    Finished,
    FinishReason,
    Request,
    RolloutEngine,
    RolloutError,
    check_idle,
    check_request,
    nan_error,
)


def _set_variables() -> None:
    """Set what vLLM reads while it is imported, and when an engine starts in a forked process."""
    # The engine core runs in this process. Its warnings are about intended settings.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Ranks use NCCL: others need shared memory between pods, or have no fixed order of sums.
    os.environ.setdefault("VLLM_ALLREDUCE_USE_SYMM_MEM", "0")
    os.environ.setdefault("VLLM_ALLREDUCE_USE_FLASHINFER", "0")


_set_variables()
with preserve_process_state(), gc_disabled():
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.outputs import RequestOutput
    from vllm.v1.engine import FinishReason as VllmFinishReason
    from vllm.v1.engine.llm_engine import LLMEngine

    from ppojob_trainer.rollout import (
        vllm_arguments,
        vllm_bidirectional,
        vllm_drafts,
        vllm_experts,
        vllm_models,
        vllm_scheduler,
        vllm_weights,
    )

# Adapter ranks that vLLM supports; smaller adapters are padded with zeros.
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(slots=True)
class _Row:
    number: int  # of submission
    request: Request
    vllm_id: str
    looked_at: int = 0  # tokens already searched for a stop string

    def end_by_text(self, drawn: Sequence[int]) -> int | None:
        """Return the number of tokens up to the first that completes a stop string, if any."""
        begin, self.looked_at = self.looked_at, len(drawn)
        if self.request.sampling.stop_texts is None:
            return None
        counts = range(begin + 1, len(drawn) + 1)
        return next((n for n in counts if self.request.sampling.ends_with(drawn[:n])), None)


class VllmEngine(RolloutEngine):
    """A `RolloutEngine` over vLLM's `LLMEngine`."""

    def __init__(
        self,
        rollout: RolloutSpec,
        model_folder: Path,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        shares_device: bool = True,
        overrides: Mapping[str, Json] | None = None,
        lora: LoraSpec | None = None,
        records_experts: bool = False,
    ) -> None:
        """Build the model, which sleeps; a collective over the role's world, if there is one.

        Arguments are those of `factory.build_engine`; only the folder's configuration is read.
        """
        _set_variables()
        vllm_arguments.check_device(device)
        assert rollout.max_model_tokens is not None, "a run is resolved before it is started"
        self._max_model_tokens = rollout.max_model_tokens
        self._on_cpu = device == "cpu"
        config = language_config(model_folder)
        self._vocab_size = int(config.vocab_size)
        self._images = self._media_form(model_folder)
        self._adapters = None if lora is None else vllm_weights.ADAPTERS
        self._tells_experts = records_experts
        dtype = DTYPES[rollout.dtype]
        self._weights = vllm_weights.EngineWeights(config, lora, dtype, on_cpu=self._on_cpu)
        self._owns_world = not dist.is_initialized()
        with preserve_process_state(), self._kernels():
            arguments = vllm_arguments.engine_args(
                rollout, config, device, shares_device, records_experts
            )
            arguments.hf_overrides = partial(
                vllm_arguments.model_config,
                changes=overrides or {},
                form=self._images,
            )
            if lora is not None:
                self._reserve_adapters(arguments, lora)
            # vLLM collects garbage three times while it starts: half a second each otherwise.
            gc.freeze()
            try:
                self._engine = LLMEngine.from_engine_args(arguments)
            except ValueError as problem:
                if (refused := refusal(problem)) is not None:
                    raise refused from None
                raise
        if self._images is not None:
            self._attach_tower(model_folder, dtype, torch.device(device))
        records = records_experts and self._on_cpu
        self._experts = vllm_experts.ExpertRecorder(self._engine) if records else None
        self._counts = vllm_scheduler.SchedulerCounts(self._engine)
        drafts = rollout.drafts
        self._rejection_sampler = (
            None if drafts is None else vllm_drafts.ExactRejectionSampler(self._engine, drafts)
        )
        # It would end the role's world when the engine is freed.
        self._engine.engine_core._finalizer.detach()
        self._submitted = 0
        self._rows: dict[str, _Row] = {}
        self._aborted: list[tuple[_Row, Finished]] = []
        self._is_asleep = False
        self._unusable: str | None = None
        self.sleep()

    def _media_form(self, model_folder: Path) -> MediaForm | None:
        """Return the format of images that the model takes on this device; None for text models."""
        form = read_form(model_folder)
        return None if form is None or (form.sees_ahead and not self._on_cpu) else form

    def _reserve_adapters(self, arguments: EngineArgs, lora: LoraSpec) -> None:
        arguments.enable_lora = True
        arguments.max_lora_rank = next(room for room in _LORA_RANKS if room >= lora.rows)
        names = self._weights.adapter_names
        arguments.lora_target_modules = sorted({name.split(".")[-2] for name in names})

    def _attach_tower(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._engine.apply_model(partial(attach_tower, folder=folder, dtype=dtype, device=device))
        if self._images is not None and self._images.sees_ahead:
            self._engine.apply_model(vllm_bidirectional.make_bidirectional)

    def submit(self, request: Request) -> None:
        where = f"submit {request.request_id!r}"
        self._check_usable(where)
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
            vllm_models.prompt_of(request, self._images),
            vllm_arguments.sampling_params(request.sampling, request.seed),
            lora_request=self._adapters,
        )
        if request.sampling.grammar is not None:
            vllm_scheduler.constrain(self._engine, vllm_id, request.sampling.grammar)
        self._rows[request.request_id] = _Row(self._submitted, request, vllm_id)
        self._submitted += 1
        self._counts.submitted()

    def step(self) -> list[Finished]:
        self._check_usable("step")
        ended, self._aborted = self._aborted, []
        if self._engine.has_unfinished_requests():
            try:
                with preserve_random_state(), self._compiler(), self._kernels():
                    outputs = self._engine.step()
            except Exception:
                self._unusable = "a step failed"
                raise
            self._counts.stepped()
            for output in outputs:
                # With drafts a step adds several tokens, and a stop string may end before the last.
                end = self._rows[output.request_id].end_by_text(output.outputs[0].token_ids)
                if output.finished:
                    row = self._rows.pop(output.request_id)
                    ended.append((row, self._finished(output, end)))
                elif end is not None:
                    ended.append(self._end_early(output.request_id, VllmFinishReason.STOP, end))
        return [finished for _, finished in sorted(ended, key=lambda pair: pair[0].number)]

    def has_work(self) -> bool:
        return bool(self._rows or self._aborted)

    def abort(self, request_id: str) -> None:
        if request_id in self._rows:
            self._aborted.append(self._end_early(request_id, VllmFinishReason.ABORT))

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights layer by layer, which needs memory for about one layer more.

        An engine that sleeps allocates its cache last.
        """
        self._check_usable("load_weights")
        check_idle(self, "load_weights")
        try:
            with preserve_process_state(), self._kernels(), torch.no_grad():
                self._wake("weights")
                self._weights.load(self._engine, self._without_tower(tensors))
                self._wake("kv_cache")
        except Exception as error:
            self._unusable = "loading weights failed"
            if isinstance(error, RolloutError):
                raise
            raise RolloutError(f"load_weights: vLLM refused the weights: {error}") from error
        self.policy_version = version
        self._is_asleep = False
        self.reset_cache()

    def _without_tower(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Return the weights of the language model; those of the tower are loaded first."""
        if self._images is None:
            return iter(tensors)
        (tower,) = self._engine.apply_model(tower_of)
        return tower.load_weights(tensors)

    def reset_cache(self) -> None:
        self._check_usable("reset_cache")
        check_idle(self, "reset_cache")
        if not self._engine.reset_prefix_cache():
            raise RolloutError("reset_cache: vLLM still holds blocks of ended requests")
        self._engine.reset_encoder_cache()

    def counts(self) -> dict[str, int]:
        return self._counts.take() | (
            {} if self._rejection_sampler is None else self._rejection_sampler.take_counts()
        )

    def sleep(self) -> None:
        """Drop weights and cache from the GPU; on the CPU vLLM keeps both."""
        self._check_usable("sleep")
        check_idle(self, "sleep")
        if not self._is_asleep and not self._on_cpu:
            self._engine.sleep(level=2)
            self._weights.is_loaded = False
        self._is_asleep = True

    def close(self) -> None:
        """Release all resources, except for a world that the role owns."""
        if self._unusable == "it is closed":
            return
        self._unusable = "it is closed"
        self._rows.clear()
        self._aborted.clear()
        if self._experts is not None:
            self._experts.close()
        core = self._engine.engine_core.engine_core
        core.structured_output_manager.clear_backend()
        core.model_executor.shutdown()
        core.scheduler.shutdown()
        del self._engine, self._experts, self._rejection_sampler, self._counts, core
        # The model runner is a cycle that holds weights.
        gc.collect()
        parallel_state.destroy_model_parallel()
        if self._owns_world:
            parallel_state.destroy_distributed_environment()
        elif parallel_state._WORLD is not None:
            parallel_state._WORLD.destroy()
            parallel_state._WORLD = None

    def _end_early(
        self, request_id: str, reason: VllmFinishReason, end: int | None = None
    ) -> tuple[_Row, Finished]:
        """End a request that vLLM would continue, with the tokens so far."""
        row = self._rows.pop(request_id)
        # vLLM drops an aborted request's tokens; its record still holds them.
        state = self._engine.output_processor.request_states[row.vllm_id]
        output = state.make_request_output([], None, reason, None)
        self._engine.abort_request([row.vllm_id], internal=True)
        return row, self._finished(output, end)

    def _wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Allocate the memory of the weights or of the cache again."""
        if self._is_asleep and not self._on_cpu:
            self._engine.wake_up(tags=[what])

    def _compiler(self) -> AbstractContextManager[object]:
        """Disable the compiler on the CPU, where vLLM would compile an unused rank count."""
        return torch.compiler.set_stance("force_eager") if self._on_cpu else nullcontext()

    def _kernels(self) -> AbstractContextManager[object]:
        """Allow the nondeterministic kernels of vLLM's sampler on GPUs."""
        return nullcontext() if self._on_cpu else nondeterministic_kernels()

    def _check_usable(self, what: str) -> None:
        if self._unusable is not None:
            raise RolloutError(f"{what}: the engine cannot be used: {self._unusable}")

    def _finished(self, output: RequestOutput, end: int | None = None) -> Finished:
        """Return a row's tokens, or those up to its stop string."""
        completion = output.outputs[0]
        reasons: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
        if completion.finish_reason not in reasons:
            raise RolloutError(
                f"request {output.request_id!r}: vLLM ended it with {completion.finish_reason!r}"
            )
        tokens = tuple(completion.token_ids[:end])
        logprobs = tuple(completion.logprobs.logprobs[:end]) if tokens else ()
        if len(logprobs) != len(tokens):
            raise RolloutError(
                f"request {output.request_id!r}: vLLM returned {len(logprobs)} log-probabilities "
                f"for {len(tokens)} tokens"
            )
        if any(map(math.isnan, logprobs)):
            raise nan_error(output.request_id, self.policy_version)
        experts = completion.routed_experts
        read = len(output.prompt_token_ids or ()) + len(tokens) - 1
        if tokens and self._tells_experts and (experts is None or len(experts) < read):
            raise RolloutError(f"request {output.request_id!r}: vLLM recorded no experts")
        return Finished(
            output.request_id,
            tokens,
            logprobs,
            reasons[completion.finish_reason] if end is None else "stop",
            self.policy_version,
            b"" if experts is None else experts[:read].tobytes(),
        )
