"""Weight sync into a vLLM engine: vLLM's reload, and corrections where it fails.

vLLM's reload replaces what is loaded through its layers' loaders. Some models write past them, and
on the CPU some layers keep an earlier packed copy.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from vllm.distributed import parallel_state
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models import apertus
from vllm.model_executor.models.glm4 import Glm4ForCausalLM
from vllm.model_executor.models.phimoe import PhiMoEForCausalLM
from vllm.v1.engine.llm_engine import LLMEngine

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.models.adapter_names import LAYERS, is_adapter, peft_name
from ppojob_trainer.models.architectures import (
    EMBEDDING,
    HEAD,
    adapter_shapes,
    backbone_tensors,
    sizes_by,
)
from ppojob_trainer.models.config_files import file_name
from ppojob_trainer.models.family import CORRECTION, MixtureOfExperts
from ppojob_trainer.models.kinds import POLICY
from ppojob_trainer.models.mixtures import is_sent_float32, mixture_in
from ppojob_trainer.rollout.protocol import RolloutError

# The only set of adapters.
ADAPTERS = LoRARequest("adapters", 1, lora_path="(in memory)")
_SINKS = ".sinks"
# Its files have gate and up in one matrix with one adapter; vLLM expects two.
Glm4ForCausalLM.packed_modules_mapping = {
    **Glm4ForCausalLM.packed_modules_mapping,
    "gate_up_proj": ["gate_up_proj"],
}
# vLLM loads the bias of its output layer, and does not add it.
PhiMoEForCausalLM.compute_logits = lambda model, states: model.logits_processor(
    model.lm_head, states, model.lm_head.bias
)
# vLLM keeps the parameters of this activation in bfloat16 by default.
_ACTIVATION = apertus.XIELU
apertus.XIELU = lambda: _ACTIVATION(dtype=torch.get_default_dtype())


class EngineWeights:
    """The weights and adapters of an engine."""

    def __init__(
        self, config: PreTrainedConfig, lora: LoraSpec | None, dtype: torch.dtype, *, on_cpu: bool
    ) -> None:
        sizes = sizes_by(config.to_dict())
        self._names = frozenset(dict((*backbone_tensors(sizes), *POLICY.head(sizes))))
        self._lora = lora
        self.adapter_names = frozenset({} if lora is None else adapter_shapes(sizes, lora))
        self._is_tied = bool(getattr(config, "tie_word_embeddings", False))
        self._mixture, self._model_type = mixture_in(config.to_dict()), config.model_type
        # What vLLM's loaders leave out: sinks, and Laguna's bias, as they know only experts' names.
        self._apart = (_SINKS, CORRECTION) if config.model_type == "laguna" else (_SINKS,)
        self._dtype, self._on_cpu = dtype, on_cpu
        self.is_loaded = False

    def load(self, engine: LLMEngine, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Load weights, if any come, and the adapters after them."""
        first = next(tensors, ("no tensor", torch.empty(0)))
        has_adapters_alone = self.is_loaded and is_adapter(first[0])
        names = self.adapter_names | (frozenset() if has_adapters_alone else self._names)
        stored: dict[str, Tensor] = {}
        weights = self._checked(chain([first], tensors), names, stored)
        if has_adapters_alone:
            deque(weights, maxlen=0)
        else:
            engine.apply_model(_name_loaders)
            if self._on_cpu:
                engine.apply_model(_reset_packed_experts)
            weights = _by_expert(weights, self._mixture)
            if self._is_tied and any(
                engine.apply_model(lambda model: HEAD in dict(model.named_parameters()))
            ):
                heads = {EMBEDDING: (EMBEDDING, HEAD)}
                weights = ((own, one) for name, one in weights for own in heads.get(name, (name,)))
            weights = ((file_name(name, self._model_type), one) for name, one in weights)
            engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            engine.apply_model(_repack_tied_heads)
            engine.apply_model(_refresh_conv_filters)
            ranks = parallel_state.get_tp_group()
            apart = {name: one for name, one in stored.items() if not is_adapter(name)}
            arguments = {"tensors": apart, "rank": ranks.rank_in_group, "ranks": ranks.world_size}
            engine.apply_model(partial(_set_apart, **arguments))
            self.is_loaded = True
        if self._lora is not None:
            layers = file_name(f"{LAYERS}.", self._model_type).rstrip(".")
            adapters = {name: one for name, one in stored.items() if is_adapter(name)}
            arguments = {"lora": self._lora, "layers": layers, "tensors": adapters}
            engine.apply_model(partial(_set_adapters, **arguments))

    def _checked(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        names: frozenset[str],
        stored: dict[str, Tensor],
    ) -> Iterator[tuple[str, Tensor]]:
        """Cast tensors while streaming, and check names; vLLM only warns of missing ones.

        Adapters, and what vLLM's loaders leave out, are stored.
        """
        missing = set(names)
        for name, tensor in tensors:
            if name not in names and name != "lm_head.weight":
                raise RolloutError(f"load_weights: got {name!r}: the model has no such tensor")
            missing.discard(name)
            kind = torch.float32 if is_sent_float32(name) else self._dtype
            if is_adapter(name) or name.endswith(self._apart):
                # Copied: vLLM scales adapters in place, and some tensors are set last.
                stored[name] = tensor.detach().to(kind, copy=True)
            else:
                yield name, tensor.detach().to(kind)
        if missing:
            raise RolloutError(
                f"load_weights: {len(missing)} tensors missing, first {min(missing)}"
            )


def _by_expert(
    tensors: Iterable[tuple[str, Tensor]], mixture: MixtureOfExperts | None
) -> Iterator[tuple[str, Tensor]]:
    """Split stacked experts into single ones, unless vLLM's model reads stacks.

    Granite's model reads single ones only if all ranks of an engine have a part of each.
    """
    reads_stacks = mixture and mixture.is_out_first and not mixture.is_split_in_vllm
    if mixture is None or not mixture.is_stacked or reads_stacks:
        yield from tensors
        return
    for name, tensor in tensors:
        at, _, kind = name.rpartition(".")
        if not at.endswith(".experts"):
            yield name, tensor
            continue
        for number, own in enumerate(tensor):
            if mixture.is_clamped:  # vLLM has a model with such stacks, and a name for each part
                yield f"{at}.{number}.{kind}", own
                continue
            names = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
            rows = own if mixture.is_out_first else own.mT
            for part, matrix in zip(names, rows.chunk(len(names)), strict=True):
                yield f"{at}.{number}.{part}.weight", matrix


def _set_apart(model: nn.Module, tensors: Mapping[str, Tensor], rank: int, ranks: int) -> None:
    """Set attention sinks (H,), of which kernels may have a copy, and selection biases (E,)."""
    for name, whole in tensors.items():
        if name.endswith(CORRECTION):
            block = name.removesuffix(f".gate.{CORRECTION}")
            experts: Any = model.get_submodule(f"{block}.experts.routed_experts")
            experts.e_score_correction_bias.data.copy_(whole)
            continue
        layer, _, place = name.removesuffix(_SINKS).rpartition(".")
        of_layer: Any = model.get_submodule(layer)
        attention = getattr(of_layer, place, None) or of_layer.attn
        for held in (attention.sinks, attention.attn.impl.sinks):
            held.data.copy_(whole.chunk(ranks)[rank])


def _set_adapters(model: Any, lora: LoraSpec, layers: str, tensors: Mapping[str, Tensor]) -> None:
    """Replace the adapters in memory; vLLM itself reads them from a folder."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    made = LoRAModel.from_lora_tensors(
        ADAPTERS.lora_int_id,
        {peft_name(name, lora, layers=layers): tensor for name, tensor in tensors.items()},
        PEFTHelper(lora.rows, lora.alpha_of_rows, [], use_rslora=lora.rank_stabilized),
        device="cpu",
        weights_mapper=mapper and mapper.get_rename_mapper(),
    )
    model.lora_manager.remove_adapter(made.id)
    model.lora_manager.add_adapter(made)
    model.lora_manager.activate_adapter(made.id)


def _reset_packed_experts(model: nn.Module) -> None:
    """Make a reload pack experts, as at the first load.

    Otherwise it writes plain weights into packed memory (CPU only).
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def _name_loaders(model: nn.Module) -> None:
    """Give names to partial loaders, which vLLM's reload asks for (MiniMax-M2)."""
    for weight in model.parameters():
        loader = getattr(weight, "weight_loader", None)
        if isinstance(loader, partial):
            loader.__name__ = loader.func.__name__  # type: ignore[attr-defined]


def _refresh_conv_filters(model: nn.Module) -> None:
    """Copy repacked convolution filters (bfloat16, CPU) to where Mamba-2 layers read them."""
    for module in model.modules():
        unpacked = getattr(getattr(module, "conv1d", None), "_cpu_unpacked_conv_weight", None)
        read = getattr(module, "conv_weights", None)
        if isinstance(read, Tensor) and unpacked is not None:
            read.copy_(unpacked)


def _repack_tied_heads(model: nn.Module) -> None:
    """Repack an output head that shares the embedding's weight.

    A reload rebuilds only layers with tensors of their own, so a tied head's packed copy (CPU) is
    old.
    """
    layers = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    for layer in layers:
        shared = sum(other.weight is layer.weight for other in layers) > 1
        if shared and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)
