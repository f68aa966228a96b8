"""Pictures in vLLM: language models of vision families, fed by the trainer's own tower.

Imported by vllm_engine alone, which first sets what vLLM reads while it is imported.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.inputs.engine import MultiModalInput, TokensInput, mm_input, tokens_input
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.gemma4 import Gemma4ForCausalLM
from vllm.model_executor.models.glm4 import Glm4ForCausalLM
from vllm.model_executor.models.glm4_moe import Glm4MoeForCausalLM
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsMultiModal
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM, Qwen3Model
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM, Qwen3MoeModel
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.processing import BaseProcessingInfo

from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.pictures import unpacked
from ppojob_trainer.models.vision_tower import tower_of
from ppojob_trainer.rollout.protocol import Request
from ppojob_trainer.rollout.vllm_hybrids import UnjoinedQwen3Next, give_parts


class _PictureInfo(BaseProcessingInfo):  # type: ignore[misc]
    """Limits of pictures, for vLLM."""

    def get_supported_mm_limits(self) -> Mapping[str, None]:
        """Return no limit but the prompt length."""
        return {"image": None}

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the most tokens of a picture: it is shorter than its prompt."""
        return {"image": seq_len}


@dataclass(slots=True)
class _PictureInputs:
    """Replaces vLLM's processor, which would need a tokenizer and torchvision."""

    info: _PictureInfo
    dummies: None


class Seeing(SupportsMultiModal):  # type: ignore[misc]
    """The trainer's vision tower, mixed into the language model of a vision family."""

    def embed_multimodal(self, *, picture: Sequence[Tensor], **_: Tensor) -> Sequence[Tensor]:
        """Return the tower's embeddings of pictures, whose encoded files are (bytes,) uint8."""
        tower = tower_of(self)
        assert tower is not None, "it is given before the first request"
        return tower.encode([file.numpy().tobytes() for file in picture])

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: Sequence[Tensor] | None = None,
        *,
        is_multimodal: Tensor | None = None,
    ) -> Tensor:
        """Return embeddings (t, h) of the next pass."""
        if isinstance(self, ToldGemma4):
            self.tell(input_ids, is_multimodal)
        embedded: Tensor = SupportsMultiModal.embed_input_ids(
            self, input_ids, multimodal_embeddings, is_multimodal=is_multimodal
        )
        return embedded


class ToldGemma4(Gemma4ForCausalLM):  # type: ignore[misc]
    """Gemma 4 E2B and E4B, each layer of which has per-layer embeddings of tokens.

    A picture token has those of padding. They are kept for the pass at one fixed address, which
    CUDA graphs read.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        """As `Gemma4ForCausalLM`."""
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._most_tokens = vllm_config.scheduler_config.max_num_batched_tokens

    @cached_property
    def _told(self) -> Tensor:
        """Return the buffer, (t, layers, w). See `_SeeingDeep`."""
        layers, width = self.config.num_hidden_layers, self.config.hidden_size_per_layer_input
        return self.model.embed_tokens.weight.new_zeros(self._most_tokens, layers, width)

    def tell(self, input_ids: Tensor, is_multimodal: Tensor | None) -> None:
        """Set the per-layer embeddings of the tokens (t,) of the next pass."""
        if is_multimodal is not None:
            shown = is_multimodal.to(input_ids.device)
            input_ids = input_ids.masked_fill(shown, self.config.pad_token_id)
        self._told[: len(input_ids)] = self.model.get_per_layer_inputs(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """States (t, h)."""
        told = None if inputs_embeds is None else self._told[: len(inputs_embeds)]
        return self.model(
            input_ids, positions, intermediate_tensors, inputs_embeds, per_layer_inputs=told
        )


class _SeeingAxes(Seeing, SupportsMRoPE):  # type: ignore[misc]
    """`Seeing` with three position axes for picture tokens."""

    def get_mrope_input_positions(
        self, input_tokens: Sequence[int], mm_features: Sequence[Any]
    ) -> tuple[Tensor, int]:
        """Return (3, t) positions, and the offset of the next token's position from its index.

        After the prompt come the tokens that a restarted row had generated already.
        """
        own = torch.zeros(3, 1, dtype=torch.int64)
        if mm_features:
            own = mm_features[0].data["positions"].data
        behind = own.max() + 1 + torch.arange(len(input_tokens) - own.shape[1])
        ahead = int(own.max()) + 1 - own.shape[1]
        return torch.cat([own, behind.expand(3, -1)], dim=1), ahead


def _registered(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the same class, registered with vLLM by its name."""
    MULTIMODAL_REGISTRY.register_processor(
        _PictureInputs, info=_PictureInfo, dummy_inputs=lambda info: None
    )(kind)
    ModelRegistry.register_model(kind.__name__, kind)
    return kind


@cache
def seeing(base: type[nn.Module], given: type[Seeing] = Seeing) -> type[nn.Module]:
    """Return a vLLM language model class with the trainer's tower."""
    own = {"embed_input_ids": given.embed_input_ids}
    name = f"{given.__name__.lstrip('_')}{base.__name__}"
    return _registered(type(name, (base, given), own))


class _Told:
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
        behind_layers: Tensor | None = None,
    ) -> Tensor:
        """Return states (t, h); the first d layers each add a part of `behind_layers` (t, d, h)."""
        states = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        residual = None
        for number, layer in enumerate(self.layers):
            states, residual = layer(positions, states, residual)
            if behind_layers is not None and number < behind_layers.shape[1]:
                states = states + behind_layers[:, number]
        return self.norm(states, residual)[0]


_compiled = support_torch_compile(
    dynamic_arg_dims={
        "input_ids": 0,
        "positions": -1,
        "intermediate_tensors": 0,
        "inputs_embeds": 0,
        "behind_layers": 0,
    }
)


@_compiled
class _ToldQwen3(_Told, Qwen3Model):  # type: ignore[misc]
    """Qwen3 with such a decoder."""


@_compiled
class _ToldQwen3Moe(_Told, Qwen3MoeModel):  # type: ignore[misc]
    """Its mixture-of-experts model."""


class _SeeingDeep(_SeeingAxes):
    """The language model of Qwen3-VL, whose towers give deep features for the first layers.

    vLLM's own imports torchvision. As there, the deep features come with the embeddings, and are
    kept for the pass at one fixed address, which CUDA graphs read.
    """

    decoder: ClassVar[Any]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        """As `Qwen3ForCausalLM`, with another model."""
        nn.Module.__init__(self)
        give_parts(self, vllm_config.model_config.hf_config, self.decoder, vllm_config, prefix)
        self._most_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._told = 0  # tokens at the beginning of `_behind_layers` that may be nonzero

    @cached_property
    def _behind_layers(self) -> Tensor:
        """Return (t, d, h), allocated by the first pass: a sleeping engine drops earlier memory."""
        depth = self.config.picture_layers
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
        self._behind_layers[: self._told].zero_()
        width, said = self.config.hidden_size, multimodal_embeddings or ()
        self._told = len(input_ids) if said else 0
        if said:
            behind = torch.cat([one[:, width:] for one in said])
            told = self._behind_layers[: self._told]
            told[is_multimodal] = behind.view(len(behind), -1, width)
        first = [one[:, :width] for one in said]
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
        """States (t, h)."""
        told = self._behind_layers[: positions.shape[-1]]
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds, told)


@_registered
class _SeeingQwen3(_SeeingDeep, Qwen3ForCausalLM):  # type: ignore[misc]
    """The language model of Qwen3-VL with the trainer's tower."""

    decoder = _ToldQwen3


@_registered
class _SeeingQwen3Moe(_SeeingDeep, Qwen3MoeForCausalLM):  # type: ignore[misc]
    """Its mixture-of-experts model."""

    decoder = _ToldQwen3Moe


SEEING = {
    "qwen2_vl": seeing(Qwen2ForCausalLM, _SeeingAxes),
    "qwen2_5_vl": seeing(Qwen2ForCausalLM, _SeeingAxes),
    "qwen2_5_omni_thinker": seeing(Qwen2ForCausalLM, _SeeingAxes),
    "qwen3_vl": _SeeingQwen3,
    "qwen3_vl_moe": _SeeingQwen3Moe,
    "qwen3_omni_moe_thinker": _SeeingQwen3Moe,
    "qwen3_5": seeing(UnjoinedQwen3Next, _SeeingAxes),
    "qwen3_5_moe": seeing(UnjoinedQwen3Next, _SeeingAxes),
    "glm4v": seeing(Glm4ForCausalLM, _SeeingAxes),
    "glm4v_moe": seeing(Glm4MoeForCausalLM, _SeeingAxes),
}
"""By type of the language model, for picture tokens with three position axes."""
ModelRegistry.register_model(UnjoinedQwen3Next.__name__, UnjoinedQwen3Next)


def prompt_of(request: Request, form: MediaForm | None) -> TokensInput | MultiModalInput:
    """Return a request's prompt in vLLM's format."""
    ids = list(request.prompt)
    if not request.pictures:
        return tokens_input(ids)
    assert form is not None, "pictures for a model that sees none"
    return mm_input(ids, *_shown(form, request.prompt, request.pictures, request.later))


@lru_cache(maxsize=1)  # consecutive samples of a prompt share one copy of its files
def _shown(
    form: MediaForm, prompt: tuple[int, ...], pictures: bytes, later: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    """Return items, hashes and places of a prompt's pictures; caches key them by file."""
    field = MultiModalBatchedField(keep_on_cpu=True)
    rows = torch.tensor(form.positions(prompt, pictures, later))
    positions = MultiModalFieldElem(rows, field)
    items, hashes = [], []
    for file in unpacked(pictures):
        content = torch.frombuffer(bytearray(file), dtype=torch.uint8)
        picture = MultiModalFieldElem(content, field)
        items.append(MultiModalKwargsItem({"picture": picture, "positions": positions}))
        hashes.append(hashlib.sha256(file).hexdigest())
    places = [_range(own) for own in form.places(prompt, pictures, later)]
    return MultiModalKwargsItems({"image": items}), {"image": hashes}, {"image": places}


def _range(places: Sequence[int]) -> PlaceholderRange:
    """Return a range of tokens with those in these places; others in it are text."""
    first = places[0]
    seen = torch.zeros(places[-1] + 1 - first, dtype=torch.bool)
    seen[torch.tensor(places) - first] = True
    return PlaceholderRange(first, len(seen), None if seen.all() else seen)
