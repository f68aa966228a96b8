"""vLLM engine (0.32), in the trainer's process; imports the other vllm_* modules.

Order in a rank: the role's torch world first, then this engine, then the training model. vLLM
builds its groups over whatever default group it finds; it neither owns nor ends that world.

Neighbours in that world may share an engine (`parallelism.tensor`). Each drives the whole engine:
the same requests in the same order make the same schedule everywhere, and each samples the same
tokens from the same gathered logits. So no rank directs the others, and the answers are on all of
them.

Six facts about vLLM on the CPU, each with its line and its test here:

- Linear layers are re-packed when they are loaded, so new weights go in layer by layer through
  vLLM's reload, and a tied `lm_head`, which no checkpoint names, keeps its old packing unless it is
  packed again.
- Norms and rotations read columns of a wider matrix, which latent attention has, as if they were a
  matrix of their own.
- Experts of a mixture are packed when they are loaded first, and read as packed when they were
  loaded again and are not.
- A seeded request whose prompt is prefilled in chunks crashes (a CPU generator has no offset), so
  prompts are never chunked.
- The default block of 128 tokens is longer than many prompts, and only whole blocks are shared. -
It replaces `torch.set_num_threads`, seeds every global generator and sets `LD_PRELOAD`.
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
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.picture_forms import read_form
from ppojob_trainer.deterministic import nondeterministic_kernels
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.model_classes import language_config
from ppojob_trainer.models.vision_tower import attach_tower, tower_of
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
    check_idle,
    check_request,
    not_a_number,
)


def _set_variables() -> None:
    """Set what vLLM reads while it is imported, and when an engine starts in a fork of that."""
    # The engine core runs in this process. Its warnings are about settings chosen on purpose (eager
    # mode, seeds, the CPU without Triton).
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Ranks of an engine sum by NCCL: other ways reach into the memory of the other ranks, which may
    # be in other pods, or add up in any order.
    os.environ.setdefault("VLLM_ALLREDUCE_USE_SYMM_MEM", "0")
    os.environ.setdefault("VLLM_ALLREDUCE_USE_FLASHINFER", "0")


_set_variables()
with process_state_kept(), garbage_kept():
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.outputs import RequestOutput
    from vllm.v1.engine import FinishReason as VllmFinishReason
    from vllm.v1.engine.llm_engine import LLMEngine

    from ppojob_trainer.rollout import (
        vllm_arguments,
        vllm_bidirectional,
        vllm_counts,
        vllm_drafts,
        vllm_experts,
        vllm_pictures,
        vllm_structured_output,
        vllm_weights,
    )

# Adapter ranks that vLLM supports; smaller adapters are padded with zeros.
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(slots=True)
class _Row:
    """A request in flight."""

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


class VllmEngine:
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
        tells_experts: bool = False,
    ) -> None:
        """Build the model; it sleeps. Collective over the role's world, if there is one.

        Arguments are those of `factory.build_engine`; only the folder's configuration is read.

        Raises:
            ConfigError: If the installed vLLM is built for another device.
        """
        _set_variables()
        vllm_arguments.check_device(device)
        assert rollout.max_model_tokens is not None, "a run is resolved before it is started"
        self._max_model_tokens = rollout.max_model_tokens
        self._on_cpu = device == "cpu"
        config = language_config(model_folder)
        self._vocab_size = int(config.vocab_size)
        self._pictures = self._form_of(model_folder)
        self._adapters = None if lora is None else vllm_weights.ADAPTERS
        self._tells_experts = tells_experts
        dtype = DTYPES[rollout.dtype]
        self._weights = vllm_weights.EngineWeights(config, lora, dtype, on_cpu=self._on_cpu)
        self._owns_world = not dist.is_initialized()
        with process_state_kept(), self._kernels():
            arguments = vllm_arguments.engine_args(
                rollout, config, device, shares_device, tells_experts
            )
            arguments.hf_overrides = partial(
                vllm_arguments.model_config,
                changes=overrides or {},
                form=self._pictures,
            )
            if lora is not None:
                self._make_room(arguments, lora)
            # While it starts, vLLM collects garbage three times, half a second each for the modules
            # that the process has loaded. It freezes all of that itself when it has started.
            gc.freeze()
            self._engine = LLMEngine.from_engine_args(arguments)
        if self._pictures is not None:
            self._give_tower(model_folder, dtype, torch.device(device))
        records = tells_experts and self._on_cpu
        self._experts = vllm_experts.ExpertRecorder(self._engine) if records else None
        self._counts = vllm_counts.SchedulerCounts(self._engine)
        drafts = rollout.drafts
        self._judge = None if drafts is None else vllm_drafts.ExactJudge(self._engine, drafts)
        # It would end torch's default world, which belongs to the role, when the engine is freed.
        self._engine.engine_core._finalizer.detach()
        self._policy_version = 0
        self._submitted = 0
        self._rows: dict[str, _Row] = {}
        self._aborted: list[tuple[_Row, Finished]] = []
        self._is_asleep = False
        self._unusable: str | None = None
        self.sleep()

    def _form_of(self, model_folder: Path) -> MediaForm | None:
        """Return the format of the model's pictures; None for text only.

        Pictures with bidirectional attention are not supported on a GPU (`media.picture_forms`).
        """
        form = read_form(model_folder)
        return None if form is None or (form.sees_ahead and not self._on_cpu) else form

    def _make_room(self, arguments: EngineArgs, lora: LoraSpec) -> None:
        """Reserve room for unmerged adapters."""
        arguments.enable_lora = True
        arguments.max_lora_rank = next(room for room in _LORA_RANKS if room >= lora.rank)
        names = self._weights.adapter_names
        arguments.lora_target_modules = sorted({name.split(".")[-2] for name in names})

    def _give_tower(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Attach the trainer's vision tower to the model."""
        self._engine.apply_model(partial(attach_tower, folder=folder, dtype=dtype, device=device))
        if self._pictures is not None and self._pictures.sees_ahead:
            self._engine.apply_model(vllm_bidirectional.make_bidirectional)

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
            vllm_arguments.sampling_params(request.sampling, request.seed),
            lora_request=self._adapters,
        )
        if request.sampling.grammar is not None:
            vllm_structured_output.constrain(self._engine, vllm_id, request.sampling.grammar)
        self._rows[request.request_id] = _Row(self._submitted, request, vllm_id)
        self._submitted += 1
        self._counts.submitted()

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
            self._counts.stepped()
            for output in outputs:
                # With drafts a step adds several tokens, and a stop string may end before the last.
                end = self._rows[output.request_id].end_by_text(output.outputs[0].token_ids)
                if output.finished:
                    row = self._rows.pop(output.request_id)
                    ended.append((row, self._finished(output, end)))
                elif end is not None:
                    ended.append(self._taken_out(output.request_id, VllmFinishReason.STOP, end))
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
            with process_state_kept(), self._kernels(), torch.no_grad():
                self._wake("weights")
                self._weights.take(self._engine, self._but_of_tower(tensors))
                self._wake("kv_cache")
        except Exception as error:
            self._unusable = "loading weights failed"
            if isinstance(error, RolloutError):
                raise
            raise RolloutError(f"load_weights: vLLM refused the weights: {error}") from error
        self._policy_version = version
        self._is_asleep = False
        self.reset_cache()

    def _but_of_tower(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of the language model, after loading those of its tower."""
        if self._pictures is None:
            return iter(tensors)
        (tower,) = self._engine.apply_model(tower_of)
        return tower.load_weights(tensors)

    def reset_cache(self) -> None:
        """See `RolloutEngine`."""
        self._refuse_unusable("reset_cache")
        check_idle(self, "reset_cache")
        if not self._engine.reset_prefix_cache():
            raise RolloutError("reset_cache: vLLM still holds blocks of ended requests")
        self._engine.reset_encoder_cache()

    def counts(self) -> dict[str, int]:
        """See `RolloutEngine`."""
        return self._counts.take() | ({} if self._judge is None else self._judge.take_counts())

    def sleep(self) -> None:
        """Drop weights and cache from the GPU; on the CPU vLLM cannot, and both stay in memory."""
        self._refuse_unusable("sleep")
        check_idle(self, "sleep")
        if not self._is_asleep and not self._on_cpu:
            self._engine.sleep(level=2)
            self._weights.are_there = False
        self._is_asleep = True

    def close(self) -> None:
        """See `RolloutEngine`. The role's world, if it was there before, stays."""
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
        del self._engine, self._experts, self._judge, self._counts, core
        # vLLM has collected garbage, but its model runner, a cycle with weights, was none yet.
        gc.collect()
        parallel_state.destroy_model_parallel()
        if self._owns_world:
            parallel_state.destroy_distributed_environment()
        elif parallel_state._WORLD is not None:
            parallel_state._WORLD.destroy()
            parallel_state._WORLD = None

    def _taken_out(
        self, request_id: str, reason: VllmFinishReason, end: int | None = None
    ) -> tuple[_Row, Finished]:
        """End a request that vLLM would continue; it keeps what was generated."""
        row = self._rows.pop(request_id)
        # vLLM drops an aborted request's tokens; its record still holds them.
        state = self._engine.output_processor.request_states[row.vllm_id]
        output = state.make_request_output([], None, reason, None)
        self._engine.abort_request([row.vllm_id], internal=True)
        return row, self._finished(output, end)

    def _wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take the memory of the weights or of the cache back from the trainer."""
        if self._is_asleep and not self._on_cpu:
            self._engine.wake_up(tags=[what])

    def _compiler(self) -> AbstractContextManager[object]:
        """On the CPU vLLM would still compile its sampler's rank count, which nobody reads."""
        return torch.compiler.set_stance("force_eager") if self._on_cpu else nullcontext()

    def _kernels(self) -> AbstractContextManager[object]:
        """On GPUs vLLM's sampler adds up in an order that torch refuses the trainer."""
        return nullcontext() if self._on_cpu else nondeterministic_kernels()

    def _refuse_unusable(self, what: str) -> None:
        if self._unusable is not None:
            raise RolloutError(f"{what}: the engine cannot be used: {self._unusable}")

    def _finished(self, output: RequestOutput, end: int | None = None) -> Finished:
        """Return a row's tokens, or those up to the stop string that ends it."""
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
                f"request {output.request_id!r}: vLLM gave {len(logprobs)} log-probabilities for "
                f"{len(tokens)} tokens"
            )
        if any(map(math.isnan, logprobs)):
            raise not_a_number(output.request_id, self._policy_version)
        experts = completion.routed_experts
        read = len(output.prompt_token_ids or ()) + len(tokens) - 1
        if tokens and self._tells_experts and (experts is None or len(experts) < read):
            raise RolloutError(f"request {output.request_id!r}: vLLM told no experts of its tokens")
        return Finished(
            output.request_id,
            tokens,
            logprobs,
            reasons[completion.finish_reason] if end is None else "stop",
            self._policy_version,
            b"" if experts is None else experts[:read].tobytes(),
        )
