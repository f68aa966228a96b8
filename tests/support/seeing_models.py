"""Tiny models that see images, as transformers has them: a tower beside a language model."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import (
    AROUND_POOLED,
    AYA,
    BEGIN_SQUARE,
    CONVOLUTIONS,
    CORRECTED,
    CROPS,
    DELTA_NETWORKS,
    END_SQUARE,
    HALF_ROTATED,
    IMAGE,
    MIXTURE,
    NAMES,
    OVIS,
    PARTLY_ROTATED,
    PATCH,
    SECTIONS,
    SEEING_TEMPLATE,
    SIZES,
    SPLITS,
    TWO_LAYERS,
    UNUSED,
    VIDEO,
    VIDEO_TEMPLATE,
    WIDE_HEADS,
    ZOOMS,
    draw_corrections,
    save_tokenizer,
    write_model,
)
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.image_forms import read_form


def whole_class(kind: str) -> type[PreTrainedModel]:
    """transformers' class of a model with a tower, by its `model_type`; of Gemma 4 see `TOLD`."""
    name = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[re.sub("_(told|lines|siglip)$", "", kind)]
    found: type[PreTrainedModel] = getattr(transformers, name)
    return found


SEEING = {
    "seeing": "qwen2_5_vl",
    "seeing_3": "qwen3_vl",
    "seeing_caller": "qwen2_5_vl",
    "seeing_glm": "glm4v_moe",
    "seeing_tiles": "internvl",
    "seeing_lines": "mistral3",
    "seeing_squares": "gemma3",
    "seeing_crops": "smolvlm",
    "seeing_pooled": "gemma4",
    "seeing_told": "gemma4_told",
    "seeing_splits": "lfm2_vl",
    "seeing_grids": "llava_onevision",
}
"""Models that see images, by what the command line calls them."""
DEEP = {"qwen3_vl", "qwen3_vl_moe"}
"""With a tower that also says what is added behind layers."""
QWEN3_5 = {"qwen3_5", "qwen3_5_moe"}
TIMED = DEEP | QWEN3_5
"""Which are told the time of a video in text."""
VIDEOS = {"qwen2_vl", "qwen2_5_vl", *TIMED}
FILMED = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"]
"""Of `VIDEOS`, those without experts."""
GLM = {
    "glm4v": "Glm4vImageProcessor",
    "glm4v_moe": "Glm46VImageProcessor",
    "glm_ocr": "Glm46VImageProcessor",
}
"""With the processors of which GLM-4.1V and GLM-4.6V have one each."""
CROPPED = {"idefics3": "Idefics3ImageProcessor", "smolvlm": "SmolVLMImageProcessorFast"}
"""Which cut images into squares that have names, with their processors."""
THREE_WAYS = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", *GLM]
"""Whose places in an image are counted three ways: of time, down and across."""
POOLED = ["gemma4_unified", "gemma4", "gemma4_told"]
"""Whose images keep their shapes, with up to 70 tokens each."""

LLAVA = {
    "llava": "CLIPImageProcessor",
    "llava_siglip": "SiglipImageProcessor",
    "llava_next": "LlavaNextImageProcessor",
    "llava_onevision": "LlavaOnevisionImageProcessor",
}
"""With their processors: the first cuts a square out, the last two have grids of squares."""
MARKS = {
    "llava_lines": ("[IMG_BREAK]", "[IMG_END]"),
    **dict.fromkeys(LLAVA, UNUSED),
    "aya_vision": AYA,
    "ovis2": OVIS,
    **dict.fromkeys(CROPPED, CROPS),
    "internvl": ("<img>", "</img>"),
    "mistral3": ("[IMG_BREAK]", "[IMG_END]"),
    "lighton_ocr": UNUSED,
    "lfm2_vl": SPLITS,
    "gemma3": (BEGIN_SQUARE, END_SQUARE),
    **dict.fromkeys(POOLED, AROUND_POOLED),
}
"""Of those whose images have tokens around them, these."""
FAMILIES = [*THREE_WAYS, *MARKS]
AS_OTHERS = {"glm_ocr", "lighton_ocr", "aya_vision", "ovis2", "llava_lines", *LLAVA}
AS_OTHERS -= {"llava_onevision"}
"""Of these, the ones that see by the code of others, such as GLM-4.1V and InternVL."""
DYNAMIC = {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}
PLAIN = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, "model_type": "mistral"}
IN_WINDOWS = {"sliding_window_pattern": 2, "sliding_window": 6}
IN_WINDOWS |= {"head_dim": 32, "query_pre_attn_scalar": 32, "model_type": "gemma3_text"}
IN_WINDOWS |= {"rope_parameters": None}
OF_GEMMA4 = {"model_type": "gemma4_text", "rope_parameters": None, "pad_token_id": 0}
OF_GEMMA4 |= {"sliding_window": 72, "num_hidden_layers": 3}
OF_GEMMA4 |= {
    "max_position_embeddings": 512,
    "head_dim": 32,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
}
OF_GEMMA4 |= {"use_bidirectional_attention": "vision", "attention_k_eq_v": True}
OF_GEMMA4 |= {"final_logit_softcapping": 3.0}
TOLD = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": False,
}
TOLD |= {"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 128}
TOLD |= {"use_bidirectional_attention": None}
"""As E2B and E4B, whose layers are told of tokens, and share keys, and see nothing ahead."""
TEXTS = {
    "internvl": {"rope_parameters": DYNAMIC, "model_type": "qwen2"},
    "mistral3": PLAIN,
    "llava_lines": {**PLAIN, "max_position_embeddings": 512},
    "llava": {**PLAIN, "model_type": "llama"},
    "llava_siglip": {**PLAIN, "model_type": "qwen2"},
    "ovis2": {**PLAIN, "model_type": "qwen2", "max_position_embeddings": 512},
    "llava_next": {**PLAIN, "max_position_embeddings": 512},
    "llava_onevision": {**PLAIN, "model_type": "qwen2", "max_position_embeddings": 512},
    "aya_vision": {  # of which transformers' whole forgets the scale of logits
        **{**PLAIN, "model_type": "cohere2", "pad_token_id": 0, "logit_scale": 1.0},
        **{"sliding_window": 20, "sliding_window_pattern": 2},
    },
    "lighton_ocr": {**PLAIN, "model_type": "qwen3", "head_dim": 32},
    "lfm2_vl": {**PLAIN, **CONVOLUTIONS, "model_type": "lfm2", "block_multiple_of": 8},
    "gemma3": IN_WINDOWS,
    "gemma4_unified": {**OF_GEMMA4, "model_type": "gemma4_unified_text"},
    "gemma4": OF_GEMMA4,
    "gemma4_told": {**OF_GEMMA4, **TOLD},
    **{kind: {**PLAIN, "model_type": "llama"} for kind in CROPPED},
}
"""Of those whose tokens of images are counted as those of text, what their text is."""
TILE = 4 * PATCH
GRIDS = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE], [TILE, 4 * TILE]]
GRIDS += [[4 * TILE, TILE]]


def save_seeing_model(folder: Path, kind: str = "qwen2_5_vl", **changes: object) -> PreTrainedModel:
    """Write a model with a vision tower, as transformers has it; `changes` are of the rest."""
    sizes = {**_seeing_sizes(kind), **changes}
    if kind in DEEP:
        sizes.setdefault("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
    if kind in POOLED:
        # The last layer sees all; so does one before it, of which what is behind reads images.
        kinds = ["sliding_attention", "full_attention"] * 2
        sizes["layer_types"] = kinds[-int(str(sizes["num_hidden_layers"])) :]
    model_class = whole_class(kind)
    # What Ovis2 reads outside of its text's section.
    outer = {key: sizes[key] for key in ("hidden_size", "vocab_size") if kind == "ovis2"}
    config = model_class.config_class(
        **_token_ids(kind),
        **outer,
        text_config=sizes,
        vision_config=_tower_sizes(kind, sizes["hidden_size"]),
        image_token_id=NAMES.index(IMAGE),
        tie_word_embeddings=sizes.get("tie_word_embeddings", False),
    )
    torch.manual_seed(0)
    model = model_class(config)
    draw_corrections(model)
    _draw_more(model)
    write_model(folder, model)
    (folder / "preprocessor_config.json").write_text(json.dumps(_processor(kind)))
    if kind == "gemma3":
        (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": 4}))
    if kind == "ovis2":
        (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": 4}))
    if kind in CROPPED:
        (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": 4}))
    if kind in TIMED:
        size = {"shortest_edge": 4 * PATCH**2, "longest_edge": 128 * PATCH**2}
        settings = json.dumps({"patch_size": PATCH, "size": size})
        (folder / "video_preprocessor_config.json").write_text(settings)
    if kind in MARKS:
        save_tokenizer(folder, template=SEEING_TEMPLATE, names=[*NAMES, *MARKS[kind]])
    return model


def _token_ids(kind: str) -> dict[str, object]:
    """What config.json says of an image's tokens beside the one that stands for it."""
    first = len(NAMES)
    if kind in ("llava_lines", "llava_siglip"):
        return {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    if kind in ("llava_next", "llava_onevision"):
        most = {"vision_aspect_ratio": "anyres_max_2"} if kind == "llava_onevision" else {}
        return {"image_grid_pinpoints": GRIDS, **most}
    if kind == "ovis2":
        return {"visual_indicator_token_ids": list(range(first, first + 5))}
    if kind in VIDEOS:
        return {"video_token_id": NAMES.index(VIDEO)}
    if kind == "gemma3":
        return {"mm_tokens_per_image": 4, "boi_token_index": first, "eoi_token_index": first + 1}
    if kind == "lfm2_vl":
        return {"projector_hidden_size": 24}
    return {"boi_token_id": first, "eoi_token_id": first + 1} if kind in POOLED else {}


def _draw_more(model: PreTrainedModel) -> None:
    """Draw what transformers begins with 0 or 1 throughout, or without bounds."""
    for name, weight in model.named_parameters():
        if name.endswith(("position_embeddings", "cls_token", "input_projection_weight", "_table")):
            weight.data.normal_(std=0.3)
    for name, buffer in model.named_buffers():
        if name.endswith(("std_bias", "std_scale")):
            buffer.normal_(mean=1.0, std=0.3)
        if name.endswith(("_min", "_max")):  # which cut some numbers off, as those of the hub
            buffer.fill_(0.5 if name.endswith("_max") else -0.5)


def tried(kinds: Iterable[str]) -> list[Any]:
    """Parameters of a test, of which those that see as others are tried with `-m long` alone."""
    return [pytest.param(one, marks=[pytest.mark.long] * (one in AS_OTHERS)) for one in kinds]


def form_of(folder: Path) -> ImageForm:
    """What the folder of a model that sees images says of them."""
    form = read_form(folder)
    assert form is not None
    return form


def save_seeing_policy(folder: Path, kind: str, dropout: float) -> None:
    """Write a model that a tiny job trains, with its tokenizer; `kind` is one of `SEEING`."""
    model = SEEING[kind]
    changes = {**WIDE_HEADS, "attention_dropout": dropout, "tie_word_embeddings": True}
    names = [*NAMES, *MARKS.get(model, ())]
    changes |= TEXTS.get(model, {})
    if kind == "seeing_caller":
        names += ZOOMS
    save_seeing_model(folder, model, vocab_size=len(names), **changes)
    save_tokenizer(folder, template=VIDEO_TEMPLATE, names=names)


def _processor(kind: str) -> dict[str, object]:
    """What is said of images, as folders of the hub have it."""
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": PATCH}
    least, most = 4 * PATCH**2, 64 * PATCH**2
    if kind in ("internvl", "aya_vision"):
        tile = {"height": TILE, "width": TILE}
        name = "GotOcr2ImageProcessorFast"
        return {"image_processor_type": name, "size": tile, "max_patches": 4} | {
            "crop_to_patches": False  # which the model's processor asks for all the same
        }
    if kind == "ovis2":
        tile = {"size": {"height": TILE, "width": TILE}, "max_patches": 4}
        return {"image_processor_type": "Ovis2ImageProcessor", "crop_to_patches": True, **tile}
    if kind in LLAVA:
        size: dict[str, object] = {"height": TILE, "width": TILE}
        cut = {"size": {"shortest_edge": TILE}, "crop_size": size}
        said = {"size": size} if kind in ("llava_siglip", "llava_onevision") else cut
        grids = {} if kind in ("llava", "llava_siglip") else {"image_grid_pinpoints": GRIDS}
        return {"image_processor_type": LLAVA[kind], **said, **grids}
    if kind in ("mistral3", "lighton_ocr", "llava_lines"):
        return {"image_processor_type": "PixtralImageProcessorFast", "patch_size": PATCH} | {
            "size": {"longest_edge": 16 * PATCH}
        }
    if kind == "lfm2_vl":
        limits = {"min_image_tokens": 2, "max_image_tokens": 6, "max_pixels_tolerance": 1.5}
        limits |= {"max_tiles": 4, "tile_size": TILE, "encoder_patch_size": PATCH}
        return {"image_processor_type": "Lfm2VlImageProcessorFast", **limits}
    if kind == "gemma3":
        size = {"height": TILE, "width": TILE}
        return {"image_processor_type": "Gemma3ImageProcessor", "size": size}
    if kind in POOLED:
        pooled = {"patch_size": PATCH, "pooling_kernel_size": 2, "max_soft_tokens": 70}
        is_joined = kind == "gemma4_unified"
        name = "Gemma4UnifiedImageProcessor" if is_joined else "Gemma4ImageProcessor"
        return {"image_processor_type": name, **pooled}
    if kind in CROPPED:
        size = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
        return {"image_processor_type": CROPPED[kind], **size}
    if kind in GLM:  # of two frames
        processor["image_processor_type"] = GLM[kind]
        return processor | {"size": {"shortest_edge": 2 * least, "longest_edge": 2 * most}}
    return processor | {"min_pixels": least, "max_pixels": most}


def _seeing_sizes(kind: str) -> dict[str, object]:
    """Of the language model of one that sees images."""
    sizes = {**SIZES, **TWO_LAYERS, "vocab_size": len(NAMES), "rope_parameters": SECTIONS}
    sizes |= {"bos_token_id": None, "eos_token_id": NAMES.index("<|im_end|>")}
    if kind == "qwen3_vl_moe":
        sizes |= {**MIXTURE, "moe_intermediate_size": 24}
    if kind in MARKS:
        vocabulary = len(NAMES) + len(MARKS[kind])
        return {**sizes, "vocab_size": vocabulary, **TEXTS[kind]}
    if kind in QWEN3_5:
        sizes |= {**DELTA_NETWORKS, "rope_parameters": PARTLY_ROTATED}
    if kind == "qwen3_5_moe":
        sizes |= {**MIXTURE, "shared_expert_intermediate_size": 40}
    if kind in GLM:
        sizes |= {"rope_parameters": HALF_ROTATED, "pad_token_id": 0}
    if kind == "glm4v":  # whose heads have the width of the states
        sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    if kind == "glm4v_moe":
        sizes |= {**CORRECTED, "head_dim": 16}
    if kind == "glm_ocr":
        sizes |= {"head_dim": 16}
    return sizes


def _tower_sizes(kind: str, hidden: object) -> dict[str, object]:
    if kind == "internvl":
        tower = {"num_hidden_layers": 2, "num_attention_heads": 2, "layer_scale_init_value": 0.5}
        tower |= {"hidden_size": 16, "intermediate_size": 24, "initializer_range": 0.2}
        return tower | {"image_size": [TILE, TILE], "patch_size": [PATCH, PATCH]}
    if kind in ("mistral3", "lighton_ocr", "llava_lines"):
        tower = {"num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": PATCH}
        tower |= {"hidden_size": 16, "intermediate_size": 24, "initializer_range": 0.2}
        return tower | {"model_type": "pixtral", "image_size": 16 * PATCH}
    if kind == "gemma3":
        tower = {"num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": PATCH}
        tower |= {"hidden_size": 16, "intermediate_size": 24, "image_size": TILE}
        return tower | {"vision_use_head": False}
    if kind in (*CROPPED, *LLAVA, "lfm2_vl", "aya_vision", "ovis2"):
        clip = {"model_type": "clip_vision_model"} if kind in ("llava", "llava_next") else {}
        clip |= {"model_type": "siglip_vision_model"} if kind == "llava_siglip" else {}
        tower = {**clip, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": PATCH}
        tower |= {"hidden_size": 16, "intermediate_size": 24, "image_size": TILE}
        tower |= {"vocab_size": 40, "hidden_stride": 2} if kind == "ovis2" else {}
        return tower | {"initializer_range": 0.2, "num_patches": 16, "vision_use_head": False}
    if kind == "gemma4_unified":
        tower = {"patch_size": PATCH, "pooling_kernel_size": 2, "initializer_range": 0.2}
        return tower | {"mm_embed_dim": 16, "output_proj_dims": 16, "mm_posemb_size": 70}
    if kind in POOLED:
        tower = {"num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": PATCH}
        tower |= {"hidden_size": 16, "intermediate_size": 24, "initializer_range": 0.2}
        tower |= {"num_key_value_heads": 2, "head_dim": 8, "pooling_kernel_size": 2}
        is_small = kind == "gemma4_told"
        tower |= {"standardize": not is_small, "use_clipped_linears": is_small}
        return tower | {"position_embedding_size": 140}
    tower = {"depth": 2, "num_heads": 2, "patch_size": PATCH}
    if kind == "qwen2_vl":
        return tower | {"embed_dim": 16, "hidden_size": hidden, "mlp_ratio": 2}
    tower |= {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": hidden}
    if kind == "qwen2_5_vl":
        windows = {"window_size": 4 * PATCH, "fullatt_block_indexes": [1]}
        return tower | windows | {"tokens_per_second": 2}
    tower |= {"initializer_range": 0.2}  # large enough for what is said behind layers to matter
    if kind in GLM:
        return tower | {"image_size": 4 * PATCH}
    tower |= {"num_position_embeddings": 16}
    return tower | ({"deepstack_visual_indexes": [0, 1]} if kind in DEEP else {})
