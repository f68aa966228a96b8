"""Tower classes: vision towers and audio encoders by the type of their configuration."""

from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.models.aya_vision import modeling_aya_vision as aya_vision
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.gemma4 import modeling_gemma4 as gemma4
from transformers.models.gemma4_unified import modeling_gemma4_unified as gemma4_unified
from transformers.models.glm4v.modeling_glm4v import Glm4vVisionEmbeddings, Glm4vVisionModel
from transformers.models.glm_ocr.modeling_glm_ocr import GlmOcrVisionModel
from transformers.models.idefics3 import modeling_idefics3 as idefics3
from transformers.models.internvl import modeling_internvl as internvl
from transformers.models.lfm2_vl import modeling_lfm2_vl as lfm2_vl
from transformers.models.lighton_ocr import modeling_lighton_ocr as lighton_ocr
from transformers.models.llava import modeling_llava as llava
from transformers.models.llava_next import modeling_llava_next as llava_next
from transformers.models.llava_onevision import modeling_llava_onevision as llava_onevision
from transformers.models.mistral3 import modeling_mistral3 as mistral3
from transformers.models.ovis2 import modeling_ovis2 as ovis2
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as qwen2_5_omni
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.models.qwen2_audio import modeling_qwen2_audio as qwen2_audio
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeVisionModel
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as qwen3_omni_moe
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeVisionModel
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings

from ppojob_trainer.data.media.image_files import THINKER


class _RepeatedPositions(Glm4vVisionEmbeddings):  # type: ignore[misc]
    """Patch position embeddings whose gradient is deterministic on a GPU.

    transformers' own is not: there PyTorch sums gradients of interpolation in any order.
    """

    def forward(self, embeddings: Tensor, *where: Tensor) -> Tensor:
        """Add to patches (n, h) their position embeddings, interpolated from the grid."""
        if not self.position_embedding.weight.requires_grad:
            plain: Tensor = super().forward(embeddings, *where)
            return plain
        places = torch.arange(self.num_positions, device=embeddings.device)
        grid, one_each = self.position_embedding(places), torch.eye(len(places)).to(places.device)
        with torch.autocast(embeddings.device.type, enabled=False):
            # With one-hot inputs it returns each patch's interpolation weights.
            given = embeddings.new_zeros(len(embeddings), len(places), dtype=torch.float32), *where
            each = {"position_embedding.weight": one_each}
            shares = torch.func.functional_call(self, each, given)
            added: Tensor = (shares @ grid.float()).to(grid.dtype)
            return embeddings + added


class _GlmTower(Glm4vVisionModel):  # type: ignore[misc]
    """GLM-4.1V and GLM-4.5V."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings.__class__ = _RepeatedPositions


class _Projected:
    """A tower with its projector to the language model's width; `config` is the whole model's."""

    section: ClassVar = "vision_config"
    names: ClassVar = ("vision_tower", "multi_modal_projector")  # in files
    projector: ClassVar[Any]

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        # Without a dtype transformers takes the section's, and rounds loaded weights to it.
        own, dtype = getattr(config, self.section), torch.get_default_dtype()
        parts = AutoModel.from_config(own, dtype=dtype), self.projector(config)
        for name, part in zip(self.names, parts, strict=True):
            setattr(self, name, part)
        self.post_init()  # type: ignore[attr-defined]


class _OfSquares(_Projected):
    """A tower that reads an image as square tiles."""

    get_image_features: ClassVar[Any]

    def forward(self, pixel_values: Tensor, **_: Tensor) -> Any:
        """Return (tokens, h) of the tiles (n, 3, y, x) of an image, concatenated."""
        output = self.get_image_features(pixel_values)
        output.pooler_output = output.pooler_output.flatten(0, 1)
        return output


class _InternVLTower(_OfSquares, internvl.InternVLPreTrainedModel):  # type: ignore[misc]
    projector = internvl.InternVLMultiModalProjector
    pixel_shuffle = internvl.InternVLModel.pixel_shuffle
    get_image_features = internvl.InternVLModel.get_image_features


class _AyaTower(_OfSquares, aya_vision.AyaVisionPreTrainedModel):  # type: ignore[misc]
    projector = aya_vision.AyaVisionMultiModalProjector
    get_image_features = aya_vision.AyaVisionModel.get_image_features


class _LlavaTower(_Projected, llava.LlavaPreTrainedModel):  # type: ignore[misc]
    """The tower of LLaVA 1.5, and that of Pixtral 12B."""

    projector = llava.LlavaMultiModalProjector
    get_image_features = llava.LlavaModel.get_image_features

    def forward(self, pixel_values: Tensor, sizes: Tensor | None = None, **_: Tensor) -> Any:
        """Return (tokens, h) of an image, with `sizes` its height and width.

        Pixels are (1, 3, y, x), or (1, n, 3, y, x) of the squares of a grid.
        """
        output = self.get_image_features(pixel_values, image_sizes=sizes)
        output.pooler_output = torch.cat(list(output.pooler_output))
        return output


class _WithNewline(_LlavaTower):
    """A tower with the embedding that ends a line of tokens."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.image_newline = nn.Parameter(torch.zeros(config.text_config.hidden_size))


class _LlavaNextTower(_WithNewline):
    get_image_features = llava_next.LlavaNextModel.get_image_features
    pack_image_features = llava_next.LlavaNextModel.pack_image_features


class _LlavaOnevisionTower(_WithNewline):
    get_image_features = llava_onevision.LlavaOnevisionModel.get_image_features
    pack_image_features = llava_onevision.LlavaOnevisionModel.pack_image_features


class _Ovis2Tower(ovis2.Ovis2PreTrainedModel):  # type: ignore[misc]
    """The tower of Ovis2, with the table of embeddings of which its features are means."""

    get_image_features = ovis2.Ovis2Model.get_image_features

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        entries = self.visual_vocab_size = config.vision_config.vocab_size
        self.vision_tower = ovis2.Ovis2VisionModel(config.vision_config)
        self.visual_embeddings_table = ovis2.Ovis2VisualEmbeddingTable(entries, config.hidden_size)
        self.post_init()

    def forward(self, pixel_values: Tensor, grids: Tensor) -> Any:
        """Return (tokens, h) of the tiles (n, 3, y, x) of an image, and of what stands around them.

        `grids` (1, 2) int64 are the rows and columns of the tiles behind the first, if it has more.
        """
        output = self.get_image_features(pixel_values)
        whole, *tiles = output.pooler_output
        begin, behind_whole, column_end, row_end, end = output.visual_indicator_features[:, None]
        found, columns = [begin, whole, behind_whole], int(grids[0, 1])
        for number, tile in enumerate(tiles):
            if number:
                found.append(column_end if number % columns else row_end)
            found.append(tile)
        output.pooler_output = torch.cat([*found, end])
        return output


class _Pixtral(_Projected):
    """A tower that reads an image whole."""

    def forward(self, pixel_values: Tensor, sizes: Tensor) -> Any:
        """Return (tokens, h) of an image (1, 3, y, x), with `sizes` its height and width."""
        encoder, projector = (getattr(self, name) for name in self.names)
        output = encoder(pixel_values, image_sizes=sizes)
        output.pooler_output = projector(output.last_hidden_state[0], sizes)
        return output


class _Mistral3Tower(_Pixtral, mistral3.Mistral3PreTrainedModel):  # type: ignore[misc]
    """The tower of Mistral Small 3 and Ministral 3."""

    projector = mistral3.Mistral3MultiModalProjector


class _LightOnTower(_Pixtral, lighton_ocr.LightOnOcrPreTrainedModel):  # type: ignore[misc]
    names = ("vision_encoder", "vision_projection")
    projector = lighton_ocr.LightOnOcrMultiModalProjector


class _ResizedPositions(Siglip2VisionEmbeddings):  # type: ignore[misc]
    """Patch position embeddings of SigLIP 2 whose gradient is deterministic on a GPU.

    transformers' own is not; see `_RepeatedPositions`.
    """

    def forward(self, pixel_values: Tensor, spatial_shapes: Tensor) -> Tensor:
        """Return (tiles, n, h) of patches (tiles, n, y x 3), with their positions' embeddings."""
        if not self.position_embedding.weight.requires_grad:
            plain: Tensor = super().forward(pixel_values, spatial_shapes)
            return plain
        places = torch.arange(self.num_patches, device=pixel_values.device)
        grid, side = self.position_embedding(places), self.position_embedding_size
        with torch.autocast(grid.device.type, enabled=False):
            # Of one-hot embeddings transformers returns each patch's interpolation weights.
            one_hot = torch.eye(len(places), device=grid.device).view(side, side, -1)
            shares = self.resize_positional_embeddings(
                one_hot, spatial_shapes, pixel_values.shape[1]
            )
            added = (shares @ grid.float()).to(grid.dtype)
        embedded: Tensor = self.patch_embedding(pixel_values) + added
        return embedded


class _Lfm2VLTower(_Projected, lfm2_vl.Lfm2VlPreTrainedModel):  # type: ignore[misc]
    projector = lfm2_vl.Lfm2VlMultiModalProjector

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_tower.embeddings.__class__ = _ResizedPositions

    def forward(self, pixel_values: Tensor, spatial_shapes: Tensor) -> Any:
        """Return (tokens, h) of the tiles of an image, concatenated.

        Patches of all tiles are (n, y x 3), and rows and columns of those of each (tiles, 2) int64.
        """
        tokens, lengths = [], spatial_shapes.prod(dim=-1).tolist()
        parts = torch.split(pixel_values, lengths)
        for patches, shape in zip(parts, spatial_shapes, strict=True):
            mask = torch.ones(1, len(patches), dtype=torch.int32, device=patches.device)
            output = self.vision_tower(
                pixel_values=patches[None], pixel_attention_mask=mask, spatial_shapes=shape[None]
            )
            grid = output.last_hidden_state.unflatten(1, shape.tolist())
            tokens.append(self.multi_modal_projector(grid).flatten(0, 2))
        output.pooler_output = torch.cat(tokens)
        return output


class _Gemma3Tower(_OfSquares, gemma3.Gemma3PreTrainedModel):  # type: ignore[misc]
    projector = gemma3.Gemma3MultiModalProjector
    get_image_features = gemma3.Gemma3Model.get_image_features


def _unpadded(pixel_values: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Remove the processor's padding, which has negative positions."""
    own = (position_ids[0] >= 0).all(dim=-1)
    return pixel_values[:, own], position_ids[:, own]


class _Gemma4Tower(_Projected, gemma4.Gemma4PreTrainedModel):  # type: ignore[misc]
    """The tower of Gemma 4, without its audio encoder, which stays in the folder."""

    names = ("vision_tower", "embed_vision")

    @staticmethod
    def projector(config: Any) -> Any:
        return gemma4.Gemma4MultimodalEmbedder(config.vision_config, config.text_config)

    def forward(self, pixel_values: Tensor, position_ids: Tensor, **_: Tensor) -> Any:
        """Return (tokens, h) of an image with patches (1, n, 3 y x) at positions (1, n, 2)."""
        pixels, positions = _unpadded(pixel_values, position_ids)
        output = self.vision_tower(pixel_values=pixels, pixel_position_ids=positions)
        output.pooler_output = self.embed_vision(inputs_embeds=output.last_hidden_state)
        return output


class _Gemma4UnifiedTower(gemma4_unified.Gemma4UnifiedPreTrainedModel):  # type: ignore[misc]
    """The patch embedder that Gemma 4 12B has in place of a tower, under the names of files."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        own, text = config.vision_config, config.text_config
        self.vision_embedder = gemma4_unified.Gemma4UnifiedVisionEmbedder(own, text)
        self.vision_embedder.multimodal_embedder = nn.Identity()  # outside of it in files
        self.embed_vision = gemma4_unified.Gemma4UnifiedMultimodalEmbedder(own, text)
        self.post_init()

    def forward(self, pixel_values: Tensor, position_ids: Tensor, **_: Tensor) -> Any:
        """Return (tokens, h) of an image with pixels (1, n, 3 y x) at positions (1, n, 2)."""
        output = self.vision_embedder(*_unpadded(pixel_values, position_ids))
        output.pooler_output = self.embed_vision(output.pooler_output[0])
        return output


class _UnroundedPositions(idefics3.Idefics3VisionEmbeddings):  # type: ignore[misc]
    """Patch positions of a tile, computed in float32 whatever the dtype of its pixels.

    transformers' own rounds fractional positions to that dtype: in bfloat16 several of the 27
    patches of a side, as SmolVLM of 2.2B has, would coincide.
    """

    def forward(self, pixel_values: Tensor, **_: Tensor) -> Tensor:
        """Return (n, patches, h) of full-size tiles, (n, 3, y, x)."""
        patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        side = self.num_patches_per_side
        shares = torch.arange(side, dtype=torch.float32) * (1.0 / side)  # not divided, as there
        shares = shares.clamp(max=1.0 - 1e-6)
        edges = torch.arange(1 / side, 1.0, 1 / side, dtype=torch.float32)
        along = torch.bucketize(shares, edges, right=True)
        places = (along[:, None] * side + along).flatten()
        added: Tensor = patches + self.position_embedding(places.to(patches.device))
        return added


class _Idefics3Tower(_Projected, idefics3.Idefics3PreTrainedModel):  # type: ignore[misc]
    """The tower of Idefics3 and SmolVLM, which have equal classes in transformers."""

    names = ("vision_model", "connector")
    projector = idefics3.Idefics3Connector

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_model.embeddings.__class__ = _UnroundedPositions

    def forward(self, pixel_values: Tensor, **_: Tensor) -> Any:
        """Return (tokens, h) of the tiles (1, n, 3, y, x) of an image, concatenated."""
        output = self.vision_model(pixel_values[0])
        output.pooler_output = self.connector(output.last_hidden_state).flatten(0, 1)
        return output


class _Qwen2AudioTower(_Projected, qwen2_audio.Qwen2AudioPreTrainedModel):  # type: ignore[misc]
    """The audio encoder of Qwen2-Audio."""

    section = "audio_config"
    names = ("audio_tower", "multi_modal_projector")
    projector = qwen2_audio.Qwen2AudioMultiModalProjector

    def forward(self, pixel_values: Tensor, frames: Tensor) -> Any:
        """Return (tokens, h) of audio features (1, mel, f), of which the first `frames` are valid.

        Attention is limited to those. The rest is silent padding up to the longest audio.
        """
        length, tokens = self.audio_tower._get_feat_extract_output_lengths(frames)
        mask = torch.arange(pixel_values.shape[-1] // 2, device=frames.device) < length[:, None]
        output = self.audio_tower(pixel_values, attention_mask=mask[:, None, None])
        features = self.multi_modal_projector(output.last_hidden_state[0])
        output.pooler_output = features[: int(tokens)]
        return output


class _WithAudio:
    """A vision tower with an audio encoder in it."""

    encoder: ClassVar[Any]

    def __init__(self, config: Any) -> None:
        super().__init__(config.vision_config)  # type: ignore[call-arg]
        own, dtype = config.audio_config, torch.get_default_dtype()  # see `_Projected`
        self.audio_tower = self.encoder._from_config(own, dtype=dtype)

    def forward(
        self, pixel_values: Tensor, grid_thw: Tensor | None = None, frames: Tensor | None = None
    ) -> Any:
        """Return (tokens, h) of an image, or of audio features (1, mel, f) with `frames` valid."""
        if frames is None:
            return super().forward(pixel_values, grid_thw)  # type: ignore[misc]
        output = self.audio_tower(pixel_values[0, :, : int(frames)], feature_lens=frames)
        output.pooler_output = output.last_hidden_state
        return output


class _OmniTower(_WithAudio, qwen2_5_omni.Qwen2_5OmniVisionEncoder):  # type: ignore[misc]
    encoder = qwen2_5_omni.Qwen2_5OmniAudioEncoder


class _Omni3Tower(_WithAudio, qwen3_omni_moe.Qwen3OmniMoeVisionEncoder):  # type: ignore[misc]
    """The tower of Qwen3-Omni, which has no deep features for audio."""

    encoder = qwen3_omni_moe.Qwen3OmniMoeAudioEncoder

    def forward(
        self, pixel_values: Tensor, grid_thw: Tensor | None = None, frames: Tensor | None = None
    ) -> Any:
        """See `_WithAudio.forward`."""
        output = super().forward(pixel_values, grid_thw, frames)
        if frames is not None:
            zeros = torch.zeros_like(output.pooler_output)
            output.deepstack_features = [zeros] * len(self.deepstack_visual_indexes)
        return output


TOWERS: Final = {
    "qwen2_vl_vision": Qwen2VisionTransformerPretrainedModel,
    "qwen2_5_vl_vision": Qwen2_5_VisionTransformerPretrainedModel,
    "qwen3_vl_vision": Qwen3VLVisionModel,
    "qwen3_vl_moe_vision": Qwen3VLMoeVisionModel,
    "qwen3_5_vision": Qwen3_5VisionModel,
    "qwen3_5_moe_vision": Qwen3_5MoeVisionModel,
    "glm4v_vision": _GlmTower,
    "glm4v_moe_vision": _GlmTower,
    "glm_ocr_vision": GlmOcrVisionModel,
    "aya_vision": _AyaTower,
    "gemma3": _Gemma3Tower,
    "gemma4": _Gemma4Tower,
    "gemma4_unified": _Gemma4UnifiedTower,
    "idefics3": _Idefics3Tower,
    "internvl": _InternVLTower,
    "lfm2_vl": _Lfm2VLTower,
    "lighton_ocr": _LightOnTower,
    "llava": _LlavaTower,
    "llava_next": _LlavaNextTower,
    "llava_onevision": _LlavaOnevisionTower,
    "mistral3": _Mistral3Tower,
    "ovis2": _Ovis2Tower,
    "qwen2_5_omni_thinker": _OmniTower,
    "qwen2_audio": _Qwen2AudioTower,
    "qwen3_omni_moe_thinker": _Omni3Tower,
    "smolvlm": _Idefics3Tower,
}


def new_tower(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Make the tower of a folder's model; its weights are not read."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config = getattr(config, THINKER, config)
    config = config if config.model_type in TOWERS else config.vision_config
    tower: PreTrainedModel = TOWERS[config.model_type]._from_config(config, dtype=dtype)
    return tower
