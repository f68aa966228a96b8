"""Qwen3.5 in vLLM, by its Qwen3-Next classes, whose matrices order their rows differently.

vLLM's own class, which has the same modules, imports torchvision.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM, Qwen3NextModel

_FUSED = {"qkvz": ("in_proj_qkv", "in_proj_z"), "ba": ("in_proj_b", "in_proj_a")}


def build_parts(
    model: Any, config: Any, decoder: type[nn.Module], vllm_config: VllmConfig, prefix: str
) -> None:
    """Replace the decoder and the head of a vLLM language model."""
    model.config = config
    model.model = decoder(vllm_config=vllm_config, prefix=f"{prefix}.model".lstrip("."))
    model.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix="lm_head")
    if config.tie_word_embeddings:
        model.lm_head = model.lm_head.tie_weights(model.model.embed_tokens)
    model.logits_processor = LogitsProcessor(config.vocab_size)
    model.make_empty_intermediate_tensors = model.model.make_empty_intermediate_tensors


@support_torch_compile(
    dynamic_arg_dims={
        "input_ids": 0,
        "positions": -1,  # positions of pictures, in three rows
        "intermediate_tensors": 0,
        "inputs_embeds": 0,
    }
)
class _Model(Qwen3NextModel):  # type: ignore[misc]
    """Qwen3-Next's model with three position axes."""


class UnfusedQwen3Next(Qwen3NextForCausalLM):  # type: ignore[misc]
    """The language model of Qwen3.5; layers without experts are in `mlp_only_layers`."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        build_parts(self, vllm_config.model_config.hf_text_config, _Model, vllm_config, prefix)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        loaded: set[str] = super().load_weights(_fuse(weights, self.config))
        return loaded


def _fuse(weights: Iterable[tuple[str, Tensor]], config: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with each delta network's four matrices merged into two.

    Their rows are ordered by key head: its query, key, values and gates; and the inputs of the
    write strengths and decays of its values.
    """
    waiting: dict[str, Tensor] = {}
    for name, tensor in weights:
        layer, _, part = name.removesuffix(".weight").rpartition(".")
        pair = next((pair for pair in _FUSED.items() if part in pair[1]), None)
        if pair is None:
            yield name, tensor
            continue
        waiting[name] = tensor
        fused, names = pair
        needed = [f"{layer}.{one}.weight" for one in names]
        if all(one in waiting for one in needed):
            first, second = (waiting.pop(one) for one in needed)
            parts = [first, second]
            if fused == "qkvz":
                keys = config.linear_num_key_heads * config.linear_key_head_dim
                parts = [*torch.split(first, [keys, keys, len(second)]), second]
            by_head = [one.view(config.linear_num_key_heads, -1, one.shape[1]) for one in parts]
            yield f"{layer}.in_proj_{fused}.weight", torch.cat(by_head, dim=1).flatten(0, 1)
