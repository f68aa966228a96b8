"""vLLM model classes: Qwen3.5, and language models of vision families with the trainer's tower.

Qwen3.5 uses vLLM's Qwen3-Next classes, whose matrices order their rows differently: vLLM's own
class, which has the same modules, imports torchvision.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.inputs.engine import MultiModalInput, TokensInput, mm_input, tokens_input
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.gemma4 import Gemma4ForCausalLM
from vllm.model_executor.models.glm4 import Glm4ForCausalLM
from vllm.model_executor.models.glm4_moe import Glm4MoeForCausalLM
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsMultiModal
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM, Qwen3Model
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM, Qwen3MoeModel
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM, Qwen3NextModel
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.processing import BaseProcessingInfo

from ppojob_trainer.data.media.images import unpacked
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.models.vision_tower import tower_of
from ppojob_trainer.rollout.protocol import Request

_DYNAMIC = {
    **dict.fromkeys(("input_ids", "intermediate_tensors", "inputs_embeds"), 0),
    "positions": -1,  # of images, in three rows
}
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


@support_torch_compile(dynamic_arg_dims=_DYNAMIC)
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


class _ImageInfo(BaseProcessingInfo):  # type: ignore[misc]
    def get_supported_mm_limits(self) -> Mapping[str, None]:
        return {"image": None}

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> Mapping[str, int]:
        """An image is shorter than its prompt."""
        return {"image": seq_len}


@dataclass(slots=True)
class _ImageInputs:
    """Replaces vLLM's processor, which needs a tokenizer and torchvision."""

    info: _ImageInfo
    dummies: None


class VisionLanguageModel(SupportsMultiModal):  # type: ignore[misc]
    """The trainer's vision tower, mixed into the language model of a vision family."""

    def embed_multimodal(self, *, image: Sequence[Tensor], **_: Tensor) -> Sequence[Tensor]:
        """Return the tower's embeddings of encoded image files, (bytes,) uint8 each."""
        tower = tower_of(self)
        assert tower is not None, "attached before the first request"
        return tower.encode([file.numpy().tobytes() for file in image])

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: Sequence[Tensor] | None = None,
        *,
        is_multimodal: Tensor | None = None,
    ) -> Tensor:
        if isinstance(self, PerLayerGemma4):
            self.set_per_layer_inputs(input_ids, is_multimodal)
        embedded: Tensor = SupportsMultiModal.embed_input_ids(
            self, input_ids, multimodal_embeddings, is_multimodal=is_multimodal
        )
        return embedded


class PerLayerGemma4(Gemma4ForCausalLM):  # type: ignore[misc]
    """Gemma 4 E2B and E4B, whose layers each have embeddings of the tokens.

    An image token has those of padding. They are at one fixed address, which CUDA graphs read.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._most_tokens = vllm_config.scheduler_config.max_num_batched_tokens

    @cached_property
    def _per_layer(self) -> Tensor:
        """Return the buffer, (t, layers, w); see `_VisionDeepstack`."""
        layers, width = self.config.num_hidden_layers, self.config.hidden_size_per_layer_input
        return self.model.embed_tokens.weight.new_zeros(self._most_tokens, layers, width)

    def set_per_layer_inputs(self, input_ids: Tensor, is_multimodal: Tensor | None) -> None:
        """Set the per-layer embeddings of the tokens (t,) of the next pass."""
        if is_multimodal is not None:
            shown = is_multimodal.to(input_ids.device)
            input_ids = input_ids.masked_fill(shown, self.config.pad_token_id)
        self._per_layer[: len(input_ids)] = self.model.get_per_layer_inputs(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        inputs = None if inputs_embeds is None else self._per_layer[: len(inputs_embeds)]
        return self.model(
            input_ids, positions, intermediate_tensors, inputs_embeds, per_layer_inputs=inputs
        )


class _VisionMRoPE(VisionLanguageModel, SupportsMRoPE):  # type: ignore[misc]
    """`VisionLanguageModel` with three position axes."""

    def get_mrope_input_positions(
        self, input_tokens: Sequence[int], mm_features: Sequence[Any]
    ) -> tuple[Tensor, int]:
        """Return (3, t) positions, and the offset of the next position from its index.

        A restarted row has generated tokens after its prompt.
        """
        own = torch.zeros(3, 1, dtype=torch.int64)
        if mm_features:
            own = mm_features[0].data["positions"].data
        behind = own.max() + 1 + torch.arange(len(input_tokens) - own.shape[1])
        ahead = int(own.max()) + 1 - own.shape[1]
        return torch.cat([own, behind.expand(3, -1)], dim=1), ahead


def _registered(kind: type[nn.Module]) -> type[nn.Module]:
    MULTIMODAL_REGISTRY.register_processor(
        _ImageInputs, info=_ImageInfo, dummy_inputs=lambda info: None
    )(kind)
    ModelRegistry.register_model(kind.__name__, kind)
    return kind


@cache
def with_vision_tower(
    base: type[nn.Module], given: type[VisionLanguageModel] = VisionLanguageModel
) -> type[nn.Module]:
    """Return a vLLM language model class with the trainer's tower."""
    own = {"embed_input_ids": given.embed_input_ids}
    name = f"{given.__name__.lstrip('_')}{base.__name__}"
    return _registered(type(name, (base, given), own))


class _DeepstackDecoder:
    """A decoder with additional inputs after its first layers."""

    embed_input_ids: Any
    layers: Any
    norm: Any

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: None = None,
        inputs_embeds: Tensor | None = None,
        deep_features: Tensor | None = None,
    ) -> Tensor:
        """Return states (t, h); the first d layers each add a part of `deep_features` (t, d, h)."""
        states = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        residual = None
        for number, layer in enumerate(self.layers):
            states, residual = layer(positions, states, residual)
            if deep_features is not None and number < deep_features.shape[1]:
                states = states + deep_features[:, number]
        return self.norm(states, residual)[0]


_compiled = support_torch_compile(dynamic_arg_dims={**_DYNAMIC, "deep_features": 0})


@_compiled
class _DeepstackQwen3(_DeepstackDecoder, Qwen3Model):  # type: ignore[misc]
    """Qwen3 with such a decoder."""


@_compiled
class _DeepstackQwen3Moe(_DeepstackDecoder, Qwen3MoeModel):  # type: ignore[misc]
    """Qwen3-MoE with such a decoder."""


class _VisionDeepstack(_VisionMRoPE):
    """The language model of Qwen3-VL, with deep image features for the first layers.

    vLLM's own imports torchvision. Deep features come with the embeddings, and are at one fixed
    address, which CUDA graphs read.
    """

    decoder: ClassVar[Any]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        build_parts(self, vllm_config.model_config.hf_config, self.decoder, vllm_config, prefix)
        self._most_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._used = 0  # tokens of `_deep_features` that may be nonzero

    @cached_property
    def _deep_features(self) -> Tensor:
        """Return (t, d, h), allocated by the first pass: a sleeping engine drops earlier memory."""
        depth = self.config.image_layers
        size = (self._most_tokens, depth, self.config.hidden_size)
        return self.model.embed_tokens.weight.new_zeros(size)

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: Sequence[Tensor] | None = None,
        *,
        is_multimodal: Tensor | None = None,
    ) -> Tensor:
        """Return embeddings (t, h) of the next pass, and store its deep features."""
        self._deep_features[: self._used].zero_()
        width, embeddings = self.config.hidden_size, multimodal_embeddings or ()
        self._used = len(input_ids) if embeddings else 0
        if embeddings:
            behind = torch.cat([one[:, width:] for one in embeddings])
            features = self._deep_features[: self._used]
            features[is_multimodal] = behind.view(len(behind), -1, width)
        first = [one[:, :width] for one in embeddings]
        return SupportsMultiModal.embed_input_ids(
            self, input_ids, first, is_multimodal=is_multimodal
        )

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        features = self._deep_features[: positions.shape[-1]]
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds, features)


@_registered
class _VisionQwen3(_VisionDeepstack, Qwen3ForCausalLM):  # type: ignore[misc]
    """The language model of Qwen3-VL with the trainer's tower."""

    decoder = _DeepstackQwen3


@_registered
class _VisionQwen3Moe(_VisionDeepstack, Qwen3MoeForCausalLM):  # type: ignore[misc]
    """Its mixture-of-experts model."""

    decoder = _DeepstackQwen3Moe


MROPE_MODELS = {
    "qwen2_vl": with_vision_tower(Qwen2ForCausalLM, _VisionMRoPE),
    "qwen2_5_vl": with_vision_tower(Qwen2ForCausalLM, _VisionMRoPE),
    "qwen2_5_omni_thinker": with_vision_tower(Qwen2ForCausalLM, _VisionMRoPE),
    "qwen3_vl": _VisionQwen3,
    "qwen3_vl_moe": _VisionQwen3Moe,
    "qwen3_omni_moe_thinker": _VisionQwen3Moe,
    "qwen3_5": with_vision_tower(UnfusedQwen3Next, _VisionMRoPE),
    "qwen3_5_moe": with_vision_tower(UnfusedQwen3Next, _VisionMRoPE),
    "glm4v": with_vision_tower(Glm4ForCausalLM, _VisionMRoPE),
    "glm_ocr": with_vision_tower(Glm4ForCausalLM, _VisionMRoPE),
    "glm4v_moe": with_vision_tower(Glm4MoeForCausalLM, _VisionMRoPE),
}
"""Classes with three position axes, by type of the language model."""
ModelRegistry.register_model(UnfusedQwen3Next.__name__, UnfusedQwen3Next)


def prompt_of(request: Request, form: MediaForm | None) -> TokensInput | MultiModalInput:
    """Return a request's prompt in vLLM's format."""
    ids = list(request.prompt)
    if not request.images:
        return tokens_input(ids)
    assert form is not None, "the model takes no images"
    return mm_input(ids, *_shown(form, request.prompt, request.images, request.later))


@lru_cache(maxsize=1)  # consecutive samples of a prompt share one copy of its files
def _shown(
    form: MediaForm, prompt: tuple[int, ...], images: bytes, later: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    """Return items, hashes and places of a prompt's images; caches key them by file."""
    field = MultiModalBatchedField(keep_on_cpu=True)
    rows = torch.tensor(form.positions(prompt, images, later))
    positions = MultiModalFieldElem(rows, field)
    items, hashes = [], []
    for file in unpacked(images):
        content = torch.frombuffer(bytearray(file), dtype=torch.uint8)
        image = MultiModalFieldElem(content, field)
        items.append(MultiModalKwargsItem({"image": image, "positions": positions}))
        hashes.append(hashlib.sha256(file).hexdigest())
    places = [_range(own) for own in form.places(prompt, images, later)]
    return MultiModalKwargsItems({"image": items}), {"image": hashes}, {"image": places}


def _range(places: Sequence[int]) -> PlaceholderRange:
    """Return the range of the image tokens at these positions; others in it are text."""
    first = places[0]
    seen = torch.zeros(places[-1] + 1 - first, dtype=torch.bool)
    seen[torch.tensor(places) - first] = True
    return PlaceholderRange(first, len(seen), None if seen.all() else seen)
