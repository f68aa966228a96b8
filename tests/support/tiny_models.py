"""Tiny models and tokenizers in Hugging Face form, made in milliseconds.

Run for a model as a process wants it that starts jobs and has not loaded torch itself:
`python tiny_models.py policy FOLDER DROPOUT`, the same with `pair` (two key heads), `mixture`,
`hybrid` (linear attention in its first layer), others of `OF_FAMILIES`,
`with_mtp`, `seeing`, `seeing_3`, `seeing_tiles`, `seeing_squares`, `seeing_crops`, `hearing`,
`omni 2.5`, `omni 3`, `talker` or `searcher`, or `classifier POLICY FOLDER` or
`teacher POLICY FOLDER`.
"""

import io
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3MoeForCausalLM,
)

# Half the time of making a config goes into its JSON, in messages that nobody sees.
PreTrainedConfig.__repr__ = object.__repr__

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
TWO_LAYERS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
"""Of a model whose numbers are compared: large enough weights for attention to matter."""
FOR_ENGINES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.05,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
"""Of a model whose heads are wide enough for kernels of vLLM, with rows of some length."""
MIXTURE = {
    "moe_intermediate_size": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
"""Of a mixture of experts, beside other sizes."""
SECTIONS = {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [1, 1, 2]}
"""Of a head of eight: how many of its angles tell of time, height and width of an image."""
INTERLEAVED = {**SECTIONS, "mrope_interleaved": True}
"""The same of Qwen3-VL: those of height and width lie between those of time."""
DELTA_NETWORKS = {
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "initializer_range": 0.15,  # what states say is normalised
    "head_dim": 16,
    "pad_token_id": 0,
}
"""Of layers that are gated delta networks, but for each second one."""
PARTLY_ROTATED = {**INTERLEAVED, "partial_rotary_factor": 0.5}
"""The same sections of Qwen3.5, of a half of each head of sixteen."""
CORRECTED = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
"""Of a mixture whose routers choose by a bias too."""
CONVOLUTIONS = {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "pad_token_id": 0,
}
"""Of layers that are short convolutions, but for one."""
HALF_ROTATED = {**SECTIONS, "partial_rotary_factor": 0.5}
"""The sections of GLM-4.1V, of a half of each head of sixteen."""
WIDE_HEADS = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rope_parameters": {**SECTIONS, "mrope_section": [4, 6, 6]},
}
"""The same of heads of 32, as vLLM on the CPU wants them."""
PATCH = 4
IMAGE, VIDEO = "~", "^"
BEGIN_SQUARE, END_SQUARE = "<start_of_image>", "<end_of_image>"
AROUND_POOLED = "<|image>", "<image|>"
AROUND_CROPS = "<fake_token_around_image>"
CROPS = (AROUND_CROPS, "<global-img>", *(f"<row_{n}_col_{m}>" for n in (1, 2) for m in (1, 2)))
UNUSED = ("<|vision_pad|>", "<|vision_end|>")
SPLITS = ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
SPLITS += tuple(f"<|img_row_{n}_col_{m}|>" for n in range(1, 5) for m in range(1, 5))
OVIS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
AYA = ("<|START_OF_IMG|>", "<|END_OF_IMG|>", "TILE_GLOBAL", *(f"TILE_{n}" for n in range(1, 5)))
AUDIO = "<|AUDIO|>"
AROUND_AUDIO = ("<|audio_bos|>", "<|audio_eos|>")
OMNI = (AUDIO, *AROUND_AUDIO, "<|IMAGE|>", "<|VIDEO|>", "<|vision_bos|>", "<|vision_eos|>")
MARKS = ("<img>", "</img>", "[IMG_BREAK]", "[IMG_END]", BEGIN_SQUARE, END_SQUARE, *CROPS)
MARKS += (*AROUND_POOLED, *OMNI, *SPLITS, *UNUSED, *AYA, *OVIS)
"""Tokens around images, and of and around audios."""
NAMES = ["<|pad|>", "<|im_start|>", "<|im_end|>", "\n", *map(chr, range(32, 127))]
"""The vocabulary of the tokenizer: a token a character."""
CALLS = [
    f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
    for a in range(1, 9)
    for b in range(1, 9)
]
"""Tokens of a model that calls a tool with one of them, as it does by chance."""
COMMANDS = [
    '<tool_call>\n{"name": "bash", "arguments": '
    f'{{"command": "expr {a} + {b} | tee -a log"}}}}\n</tool_call>'
    for a in range(1, 9)
    for b in range(1, 9)
]
"""The same of a model that calls the tool `bash`."""
SEARCHES = [f"<search>town {n}</search>" for n in range(40)]
ANSWERS = [f"<answer>{n}</answer>" for n in range(10)]
"""The same of a model that searches as Search-R1 does."""
SAID = {"talker": CALLS, "commander": COMMANDS, "searcher": [*SEARCHES, *ANSWERS]}
"""Tokens that are calls, by the kind of the model."""
ZOOMS = [
    f'<tool_call>\n{{"name": "zoom", "arguments": {{"part": {part}}}}}\n</tool_call>'
    for part in range(1, 41)
]
"""The same of a model that sees images."""
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

SEEING_TEMPLATE = TEMPLATE.replace(
    "m['content']",
    "(m['content'] if m['content'] is string else m['content']"
    " | map(attribute='text', default='~') | join)",
)
"""The same where a part of a content may be an image."""

VIDEO_TEMPLATE = TEMPLATE.replace(
    " + m['content'] + ",
    " }}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{{ p.text if 'text' in p else '^' if p.type == 'video' else '~' }}"
    "{% endfor %}{% endif %}{{ ",
)
"""The same where it may be a video, too."""


def make_model(
    model_class: type[PreTrainedModel] = LlamaForCausalLM, *, seed: int = 0, **changes: object
) -> PreTrainedModel:
    """A model with drawn weights; `changes` are of `SIZES` and the rest of its configuration."""
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**{**SIZES, **changes}))
    draw_corrections(model)
    if model.config.model_type == "phimoe":
        model.eval()  # in training its routers draw experts
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("_proj_bias", ".sinks")):
                weight.normal_(std=0.3)
            elif name.endswith(".gate.weight") and not weight.any():  # ERNIE's
                weight.normal_(std=model.config.initializer_range)
    return model


def draw_corrections(model: PreTrainedModel) -> None:
    """Draw what nobody trains."""
    for name, held in (*model.named_buffers(), *model.named_parameters()):
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            held.normal_(std=0.3)  # large enough to choose other experts
        elif name.endswith("layer_scalar"):
            held.uniform_(0.5, 1.5)


def save_model(
    folder: Path, model_class: type[PreTrainedModel] = LlamaForCausalLM, **changes: object
) -> PreTrainedModel:
    model = make_model(model_class, **changes)
    write_model(folder, model)
    return model


def write_model(folder: Path, model: PreTrainedModel) -> None:
    """Save a model as the hub has such.

    transformers reads the sizes of these in a section of config.json alone. It writes stacks of
    experts of Qwen3-VL with other axes than it was published with, and takes apart those of
    Qwen3.5 that did not come out of files.
    """
    is_as_held = model.config.model_type.startswith("qwen3_5_moe")
    model.save_pretrained(folder, save_original_format=not is_as_held)
    if "qwen3_vl_moe" in model.config.model_type:
        weights = load_file(folder / "model.safetensors")
        save_file(turned(weights), folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    text = json.loads(path.read_text())
    name = text["model_type"]
    apart = {"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm_ocr"}
    apart |= {"qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"}
    if name in apart and "text_config" not in text:
        whole = {key: text[key] for key in ("model_type", "architectures")}
        whole["tie_word_embeddings"] = model.config.tie_word_embeddings
        path.write_text(json.dumps(whole | {"text_config": {**text, "model_type": f"{name}_text"}}))


def turned(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights with the other axes of stacked experts."""
    return {
        name: tensor.mT.contiguous() if ".experts." in name else tensor
        for name, tensor in weights.items()
    }


def image(color: object, size: tuple[int, int] = (16, 16)) -> bytes:
    """A file of an image of one colour."""
    return _file(Image.new("RGB", size, color))  # type: ignore[arg-type]


def noise(seed: int, size: tuple[int, int] = (16, 16)) -> bytes:
    """A file of an image no part of which is as another one."""
    colors = random.Random(seed).randbytes(3 * size[0] * size[1])
    return _file(Image.frombytes("RGB", size, colors))


def _file(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def save_tokenizer(
    folder: Path,
    *,
    template: str = TEMPLATE,
    pad: str | None = "<|pad|>",
    names: Sequence[str] = NAMES,
) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    special = ["<|im_start|>", *filter(MARKS.__contains__, names)]
    if {BEGIN_SQUARE, AROUND_CROPS, *AROUND_POOLED, *SPLITS, *UNUSED, *AYA, *OVIS} & {*names}:
        special.append(IMAGE)
    if BEGIN_SQUARE in names:  # which a template writes for an image
        template = template.replace(f"'{IMAGE}'", f"'{BEGIN_SQUARE}'")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token=pad,
        additional_special_tokens=special,
    )
    fast.chat_template = template
    fast.save_pretrained(folder)


def save_policy(
    folder: Path,
    dropout: float,
    names: Sequence[str] = NAMES,
    model_class: type[PreTrainedModel] = LlamaForCausalLM,
    **changes: object,
) -> None:
    """Write a model that a tiny job trains, with its tokenizer.

    Attention dropout draws random numbers in every update, so that a checkpoint without the random
    state would be noticed. Heads of size 32: vLLM on the CPU wants multiples of that.
    """
    save_tokenizer(folder, names=names)
    sizes = {
        "vocab_size": len(names),
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "attention_dropout": dropout,
        "bos_token_id": None,
        "eos_token_id": NAMES.index("<|im_end|>"),
        "pad_token_id": NAMES.index("<|pad|>"),
    }
    save_model(folder, model_class, **{**sizes, **changes})


def save_classifier(policy: Path, folder: Path) -> None:
    """Write a reward model of two layers that reads what a policy writes."""
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
    config = LlamaConfig.from_pretrained(
        policy, num_labels=1, num_hidden_layers=2, attention_dropout=0.0, tie_word_embeddings=False
    )
    torch.manual_seed(1)
    dtype = config.dtype or torch.float32
    LlamaForSequenceClassification(config).to(dtype).save_pretrained(folder)


def save_teacher(policy: Path, folder: Path) -> None:
    """Write a larger model with the policy's tokens, surer of them, and with rows of padding.

    It says the same whatever stands before, so that a small model can learn it in a few steps.
    """
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
    config = LlamaConfig.from_pretrained(
        policy,
        num_hidden_layers=3,
        hidden_size=128,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        initializer_range=0.2,
        attention_dropout=0.0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(2)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.copy_(embedding[1].clone())  # that of padding is zero
    model.save_pretrained(folder)


OF_FAMILIES = (
    "hybrid",
    "granitemoehybrid",
    "nemotron_h",
    "lfm2_moe",
    "gpt_oss",
    "gpt2",
    "gpt_neox",
)


def save_of_family(folder: Path, dropout: float, kind: str) -> None:
    """Write a policy some of whose layers keep a state, or of a family of `OF_FAMILIES`."""
    from family_models import FAMILY_MODELS  # which is made of what is here

    model_class, own = FAMILY_MODELS.get(kind, (Qwen3_5ForCausalLM, DELTA_NETWORKS))
    sizes: dict[str, object] = {"initializer_range": 0.1}
    if kind == "hybrid":
        sizes = {"head_dim": 32, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    elif kind == "gpt_oss":
        sizes |= {"head_dim": 32, "tie_word_embeddings": False}
    elif kind == "granitemoehybrid":
        sizes |= {"mamba_d_head": 16, "mamba_d_state": 16, "num_attention_heads": 2}
    else:
        sizes |= {"tie_word_embeddings": kind in ("lfm2_moe", "gpt2")}
    save_policy(folder, dropout, model_class=model_class, **{**own, **sizes})


def save_with_tower(folder: Path, kind: str, dropout: float) -> None:
    # Which are made of what is here.
    from hearing_models import save_hearing_policy
    from omni_models import save_omni_policy
    from seeing_models import save_seeing_policy

    if kind == "hearing":
        save_hearing_policy(folder, dropout)
    elif kind.startswith("omni"):
        save_omni_policy(folder, kind.removeprefix("omni "), dropout)
    else:
        save_seeing_policy(folder, kind, dropout)


def make(kind: str, first: str, second: str) -> None:
    if kind == "policy":
        save_policy(Path(first), float(second))
    elif kind == "mixture":
        drawn = {"initializer_range": 0.3}  # large enough for the choice of experts to matter
        save_policy(Path(first), float(second), model_class=Qwen3MoeForCausalLM, **MIXTURE, **drawn)
    elif kind in OF_FAMILIES:
        save_of_family(Path(first), float(second), kind)
    elif kind.startswith(("hearing", "omni", "seeing")):
        save_with_tower(Path(first), kind, float(second))
    elif kind == "whole":
        from whole_models import save_whole  # which not every job loads

        sizes = {"head_dim": 32, "initializer_range": 0.02, "tie_word_embeddings": True}
        save_whole(Path(first), "gemma3", **sizes, attention_dropout=float(second))
        save_tokenizer(Path(first))
    elif kind == "with_mtp":
        from mtp_models import save_mtp_model  # which is made of what is here

        save_mtp_model(Path(first), "glm4_moe", trains=True, head_dim=32)
    elif kind in SAID:
        save_policy(Path(first), float(second), [*NAMES, *SAID[kind]])
    elif kind == "teacher":
        save_teacher(Path(first), Path(second))
    else:
        save_classifier(Path(first), Path(second))


if __name__ == "__main__":
    make(*sys.argv[1:])
