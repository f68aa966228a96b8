"""Tiny models whose language model is a part, read for its text alone: `families.MULTIMODAL`."""

import json
from pathlib import Path

import torch
from hearing_models import save_hearing_model
from seeing_models import whole_class
from tiny_models import CONVOLUTIONS, NAMES, SIZES, TWO_LAYERS, write_model
from transformers import PreTrainedModel

WHOLES = ("llama4", "gemma3", "gemma4", "gemma4_unified", "mistral3", "internvl", "lfm2_vl")
WHOLES += ("lighton_ocr", "idefics3", "smolvlm", "qwen2_audio", "llava", "llava_next")
WHOLES += ("llava_onevision", "aya_vision", "ovis2")


def save_whole(folder: Path, name: str, **changes: object) -> PreTrainedModel:
    """Write a model as transformers has it, by a name of `WHOLES`; `changes` are of its text."""
    if name == "qwen2_audio":
        return save_hearing_model(folder, **changes)
    model_class = whole_class(name)
    text = {**SIZES, **TWO_LAYERS, "vocab_size": len(NAMES), "pad_token_id": 0, **changes}
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    tower |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    more: dict[str, object] = {}
    if name == "llama4":
        text = {"head_dim": 8, "num_local_experts": 6, "intermediate_size_mlp": 40, **text}
        text = {"interleave_moe_layer_step": 2, **text}
        tower |= {"intermediate_size": 64, "vision_output_dim": 16}
        tower |= {"projector_input_dim": 16, "projector_output_dim": 16}
    elif name == "gemma3":
        text, more = {"head_dim": 8, **text}, {"mm_tokens_per_image": 4}
    elif name == "gemma4":
        told = {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 128}
        text = {"head_dim": 8, "global_head_dim": 16, **told, **text}
        tower |= {"num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16}
    elif name == "gemma4_unified":
        text = {"head_dim": 8, "global_head_dim": 16, "attention_k_eq_v": True, **text}
        tower = {"patch_size": 4, "mm_embed_dim": 16, "mm_posemb_size": 8}
        tower |= {"output_proj_dims": text["hidden_size"]}
        more = {"audio_config": {"audio_embed_dim": 16}}
    elif name in ("mistral3", "lighton_ocr"):
        kind = "mistral" if name == "mistral3" else "qwen3"
        text = {"head_dim": 8, "model_type": kind, **text}
        tower |= {"model_type": "pixtral", "head_dim": 8}
    elif name == "lfm2_vl":
        text = {**text, **CONVOLUTIONS, "model_type": "lfm2", "block_multiple_of": 8}
        tower |= {"num_patches": 4, "vision_use_head": False}
    elif name.startswith(("llava", "aya", "ovis")):
        kinds = {"llava": "llama", "llava_next": "mistral", "llava_onevision": "qwen2"}
        kinds |= {"aya_vision": "cohere2", "ovis2": "qwen2"}
        more = {key: text[key] for key in ("hidden_size", "vocab_size") if name == "ovis2"}
        text = {"model_type": kinds[name], **text, "logit_scale": 1.0}  # which Aya's whole forgets
        tower |= {} if kinds[name] in ("llama", "mistral") else {"vision_use_head": False}
    elif name in ("idefics3", "smolvlm"):
        text = {"head_dim": 8, "model_type": "llama", **text}
    else:
        text = {"head_dim": 8, "model_type": "qwen3", **text}
        tower |= {"image_size": [28, 28], "patch_size": [14, 14]}
    is_tied = text.setdefault("tie_word_embeddings", False)
    config = model_class.config_class(
        text_config=text, vision_config=tower, tie_word_embeddings=is_tied, **more
    )
    torch.manual_seed(0)
    model = model_class(config).eval()
    write_model(folder, model)
    processor = {"image_processor_type": "GotOcr2ImageProcessor", "patch_size": 14}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model
