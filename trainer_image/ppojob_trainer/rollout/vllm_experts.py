"""Expert routing in vLLM on CPUs: records the experts of tokens, and makes two corrections.

vLLM records routing only with its second model runner, for GPUs, and on the first rank of an
engine. Here each rank has a scheduler, and the first model runner gets the attributes of the
second. With expert parallelism, vLLM's CPU kernels take global expert numbers for local ones, and
its router applies a selection bias to grouped routing only.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor
from vllm.distributed.aux_output_connector import worker
from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector
from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector, PendingAuxOutput
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.v1.engine.llm_engine import LLMEngine


class _EachRank:
    """Replaces the tensor-parallel group, so that every rank records."""

    is_first_rank = True


worker.get_tp_group = _EachRank
_compute, _build_router = CPUUnquantizedExperts.apply, CPURouter.__init__


def _compute_own(
    kernel: CPUUnquantizedExperts,
    *,
    topk_weights: Tensor,
    topk_ids: Tensor,
    expert_map: Tensor | None,
    **others: Any,
) -> None:
    """Compute only the experts of this rank.

    `expert_map`, (E,), has the number of each expert on this rank, or -1; None if all are here.
    """
    if expert_map is not None:
        own = expert_map[topk_ids]
        topk_weights = topk_weights * (own >= 0)
        if others["apply_router_weight_on_input"]:  # Llama 4's only expert: outputs are not weighed
            others["hidden_states"] = others["hidden_states"] * (own >= 0)
        topk_ids = own.clamp(min=0).to(topk_ids.dtype)
    chosen = {"topk_weights": topk_weights, "topk_ids": topk_ids, "expert_map": expert_map}
    _compute(kernel, **chosen, **others)


def _build_grouped(router: CPURouter, *arguments: Any, **named: Any) -> None:
    """Route by one group of all experts, if there is a selection bias and no other group."""
    _build_router(router, *arguments, **named)
    if router.e_score_correction_bias is not None:
        router.use_grouped_topk = True
        router.num_expert_group = router.num_expert_group or 1
        router.topk_group = router.topk_group or 1


CPUUnquantizedExperts.apply, CPURouter.__init__ = _compute_own, _build_grouped


class WorkerExtension:
    """Imported by the workers of a judge's server, which so get these corrections."""


class ExpertRecorder:
    """Records experts around the steps of vLLM's first model runner, and adds them to its outputs.

    Steps are not scheduled asynchronously, so there is one at a time.
    """

    def __init__(self, engine: LLMEngine) -> None:
        core = engine.engine_core.engine_core
        core.scheduler.aux_output_connector = AuxOutputSchedulerConnector()
        self._runner: Any = core.model_executor.driver_worker.worker.model_runner
        self._record = AuxOutputWorkerConnector(
            vllm_config=engine.vllm_config,
            model=self._runner.model,
            kv_cache_config=self._runner.kv_cache_config,
        )
        self._step: PendingAuxOutput | None = None
        self._drafts = np.zeros(0, dtype=np.int64)  # of each row of the step
        self._execute, self._sample = self._runner.execute_model, self._runner.sample_tokens
        self._runner.execute_model = self._execute_model
        self._runner.sample_tokens = self._sample_tokens

    def close(self) -> None:
        """End the thread that stores the experts of cached prefixes."""
        self._record.close()

    def _execute_model(self, scheduled: Any, *arguments: Any) -> Any:
        """Compute logits; tokens are ordered by request."""
        self._record.begin_step(scheduled.aux_output_connector_metadata)
        output = self._execute(scheduled, *arguments)
        if output is None:  # there are some
            batch = self._runner.input_batch
            sizes = [scheduled.num_scheduled_tokens[one] for one in batch.req_ids]
            drafts = scheduled.scheduled_spec_decode_tokens
            self._drafts = np.array([len(drafts.get(one, ())) for one in batch.req_ids])
            self._step = self._record.prepare_output(
                SimpleNamespace(
                    req_ids=batch.req_ids,
                    query_start_loc_np=np.cumsum([0, *sizes]),
                    num_computed_tokens_np=batch.num_computed_tokens_cpu[: len(sizes)].copy(),
                )
            )
        return output

    def _sample_tokens(self, *arguments: Any) -> Any:
        """Sample tokens, and add the experts of those that were read."""
        output = self._sample(*arguments)
        step, self._step = self._step, None
        if step is not None:
            drawn = np.array([len(tokens) for tokens in output.sampled_token_ids])
            # A row keeps its drafts up to the last token that it samples.
            step.enqueue_cpu_copy(drawn, self._drafts + 1 - drawn)
            output.aux_output_connector_output = step.process_output()
        return output
