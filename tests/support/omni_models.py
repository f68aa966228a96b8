"""Tiny models of Qwen-Omni, as transformers has them: a decoder, eyes, ears and a voice."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from hearing_models import MELS, RATE, features_of, tone
from padded_reference import pixels_of, token_logprobs
from seeing_models import form_of
from tiny_models import (
    INTERLEAVED,
    MIXTURE,
    NAMES,
    OMNI,
    PATCH,
    SECTIONS,
    SIZES,
    TWO_LAYERS,
    WIDE_HEADS,
    noise,
    save_tokenizer,
    write_model,
)
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)
from video_reference import FPS, frames_of, pixels_of_video, videos_in

from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.images import (
    audio_of,
    is_image,
    packed,
    packed_audio,
    packed_clip,
    unpacked,
)

SPEAKING = {
    "2.5": (Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniThinkerForConditionalGeneration),
    "3": (Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeThinkerForConditionalGeneration),
}
"""By the number of Qwen: a whole, and its thinker."""
OMNI_NAMES = [*NAMES, *OMNI]
TOKEN, BEGIN, END, IMAGE, VIDEO, SEE, SEEN = map(OMNI_NAMES.index, OMNI)
HEARD = [BEGIN, TOKEN, END]
SHOWN, FILMED = [SEE, IMAGE, SEEN], [SEE, VIDEO, SEEN]
"""What the template writes for an audio, an image and a video."""
SECONDS, WINDOW = 3, 20
"""Of the longest audio; and half the frames of a piece."""
TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}{{ '<|vision_bos|><|IMAGE|><|vision_eos|>' }}"
    "{% elif p.type == 'audio' %}{{ '<|audio_bos|><|AUDIO|><|audio_eos|>' }}"
    "{% elif p.type == 'video' %}{{ '<|vision_bos|><|VIDEO|><|vision_eos|>' }}"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""What the hub's writes, without the numbers of images that it may be asked for."""


def save_omni_model(
    folder: Path, kind: str = "2.5", *, speaks: bool = False, **changes: object
) -> PreTrainedModel:
    """Write a thinker, or a folder as the hub has it, with what speaks; `changes` are of its text.

    Returns:
        The thinker.
    """
    text = {**SIZES, **TWO_LAYERS, "vocab_size": len(OMNI_NAMES), "rope_parameters": SECTIONS}
    text |= {"pad_token_id": 0, "eos_token_id": NAMES.index("<|im_end|>"), "bos_token_id": None}
    text |= {"max_position_embeddings": 256, "tie_word_embeddings": False}
    if kind == "3":
        text |= {**MIXTURE, "moe_intermediate_size": 24, "rope_parameters": INTERLEAVED}
        text |= {"head_dim": 8, "initializer_range": 0.1}
    text |= changes
    config = {
        "text_config": text,
        "vision_config": _eyes(kind, text["hidden_size"]),
        "audio_config": _ears(kind, text["hidden_size"]),
        "tie_word_embeddings": text["tie_word_embeddings"],
        "position_id_per_seconds": 3,
    }
    end = {"2.5": "index", "3": "id"}[kind]
    names = (f"audio_token_{end}", "audio_start_token_id", "audio_end_token_id")
    config |= dict(zip(names, (TOKEN, BEGIN, END), strict=True))
    config |= {f"image_token_{end}": IMAGE, f"video_token_{end}": VIDEO}
    config |= {"vision_start_token_id": SEE, "vision_end_token_id": SEEN}
    torch.manual_seed(0)
    speaking, thinking = SPEAKING[kind]
    if speaks:
        whole = speaking(_whole_config(kind, config, text["hidden_size"]))
        thinker = whole.thinker
    else:
        whole = thinker = thinking(thinking.config_class(**config))
    drawn = [*thinker.audio_tower.parameters(), *thinker.visual.parameters()]
    if speaks and kind == "3":  # of whose experts transformers draws none
        drawn += whole.talker.parameters()
    for weight in drawn:
        weight.data.normal_(std=0.3)
    write_model(folder, whole.eval())
    if speaks and kind == "2.5":
        torch.save({"Chelsie": {"bos_token": 1}}, folder / "spk_dict.pt")
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))
    save_tokenizer(folder, template=TEMPLATE, names=OMNI_NAMES)
    return thinker


def _whole_config(kind: str, thinker: dict[str, object], width: object) -> PreTrainedConfig:
    if kind == "2.5":
        return Qwen2_5OmniConfig(
            thinker_config=thinker, talker_config=_talker(width), token2wav_config=_AUDIO
        )
    text = {**SIZES, **MIXTURE, "head_dim": 8, "rope_parameters": INTERLEAVED, "pad_token_id": 0}
    text["shared_expert_intermediate_size"] = 24
    sizes = {**SIZES, "head_dim": 8, "num_code_groups": 3, "rope_parameters": None}
    talker = {"text_config": text, "code_predictor_config": sizes, "num_code_groups": 3}
    talker |= {"thinker_hidden_size": width, "speaker_id": {"ethan": 1}, "spatial_merge_size": 2}
    return Qwen3OmniMoeConfig(thinker_config=thinker, talker_config=talker, code2wav_config=_CODES)


def save_omni_policy(folder: Path, kind: str, dropout: float) -> None:
    """Write a model that a tiny job trains, with its tokenizer."""
    wide = {**WIDE_HEADS, "num_key_value_heads": 2, "attention_dropout": dropout}
    if kind == "3":
        wide["head_dim"] = 32
    save_omni_model(folder, kind, speaks=True, **wide)


_PROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": MELS,
    "chunk_length": SECONDS,
    "sampling_rate": RATE,
    "return_attention_mask": True,
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": PATCH,
    "min_pixels": 4 * PATCH**2,
    "max_pixels": 64 * PATCH**2,
}
"""Both processors, as the hub's folder has them in one file."""
_AUDIO = {
    "dit_config": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
        "emb_dim": 8,
        "num_embeds": 20,
        "mel_dim": 8,
        "enc_emb_dim": 8,
        "enc_dim": 8,
        "enc_channels": [8, 8, 8, 8, 24],
        "enc_attention_channels": 8,
        "enc_se_channels": 8,
    },
    "bigvgan_config": {
        "mel_dim": 8,
        "upsample_initial_channel": 8,
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3, 5]],
        "upsample_rates": [2],
        "upsample_kernel_sizes": [4],
    },
}
_CODES = {
    "codebook_size": 20,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_quantizers": 2,
    "upsample_rates": [2],
    "upsampling_ratios": [2],
    "decoder_dim": 16,
}


def _talker(width: object) -> dict[str, object]:
    sizes = {**SIZES, "head_dim": 8, "embedding_size": width, "rope_parameters": SECTIONS}
    return {**sizes, "pad_token_id": 0}


def _eyes(kind: str, width: object) -> dict[str, object]:
    tower = {"depth": 2, "num_heads": 2, "patch_size": PATCH, "hidden_size": 16}
    tower |= {"intermediate_size": 24, "out_hidden_size": width}
    if kind == "3":
        return tower | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    return tower | {"window_size": 4 * PATCH, "fullatt_block_indexes": [1]}


def _ears(kind: str, width: object) -> dict[str, object]:
    tower = {"num_mel_bins": MELS, "max_source_positions": 2 * WINDOW, "n_window": WINDOW}
    tower |= {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
    if kind == "3":  # whose chunks are of a second, and its windows of two
        tower |= {"n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 8}
    return tower | {"d_model": 16, "output_dim": width}


def omni_form(folder: Path) -> ImageForm:
    """What the folder says of images, videos and audios."""
    form = form_of(folder)
    assert form.audio is not None
    return form


def omni_prompts(form: ImageForm) -> list[tuple[list[int], bytes]]:
    """Of two audios of several pieces; of all kinds, in two orders; and of text alone."""
    short, long, other = (
        packed_audio(tone(pitch, seconds))
        for pitch, seconds in ((440, 1.31), (300, 2.3), (900, 0.6))
    )
    assert form.video is not None
    times = [n / FPS for n in range(6)]
    video = [*map(packed_clip, form.video.clips(frames_of(6, (16, 24)), times, FPS))]
    wide = noise(1, (40, 20))
    return [
        ([5, *HEARD, 7, 8, *HEARD, 9], packed([short, long])),
        ([*SHOWN, 6, *HEARD, *FILMED, 8], packed([wide, other, *video])),
        ([*FILMED, 6, *HEARD, 7, *SHOWN], packed([*video, short, wide])),
        ([10, 11, 12], b""),
    ]


def heard_by(folder: Path, audios: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """Features of audios (n, mel, f), and which of them are an audio's (n, f).

    transformers' processor of Qwen3-Omni makes them of each as long as the longest one is, so that
    a shorter one ends otherwise beside it than alone. As here, each is alone.
    """
    if '"n_window_infer"' not in (folder / "config.json").read_text():
        made = features_of(folder, audios)
        return made["input_features"], made["attention_mask"]
    alone = [features_of(folder, [one], padding=True, truncation=False) for one in audios]
    features = [one["input_features"][0].T for one in alone]
    masks = [one["attention_mask"][0] for one in alone]
    return pad_sequence(features, batch_first=True).mT, pad_sequence(masks, batch_first=True)


def omni_inputs(folder: Path, ids: Tensor, shown: bytes) -> dict[str, Tensor]:
    """What transformers' thinker is given of a text, (1, t), and of what it shows."""
    files, given = unpacked(shown), {}
    if images := [one for one in files if is_image(one)]:
        given = pixels_of(folder, images)
    if videos := videos_in(files):
        patches, grids = zip(*(pixels_of_video(folder, one) for one in videos), strict=True)
        given |= {"pixel_values_videos": torch.cat(patches), "video_grid_thw": torch.tensor(grids)}
        given["video_second_per_grid"] = torch.tensor([2 / FPS] * len(videos))
    if audios := [one for one in files if audio_of(one) is not None]:
        given["input_features"], given["feature_attention_mask"] = heard_by(folder, audios)
    return {**given, "attention_mask": torch.ones_like(ids)}


def omni_logits(
    thinker: PreTrainedModel, folder: Path, prompt: Tensor, shown: bytes, response: Tensor
) -> Tensor:
    """(response, vocabulary) of transformers' thinker, before each token."""
    ids = torch.cat([prompt, response[:-1]])[None]
    said = thinker(input_ids=ids, use_cache=False, **omni_inputs(folder, ids, shown))
    logits: Tensor = said.logits[0, len(prompt) - 1 :]
    return logits


def omni_logprobs(
    thinker: PreTrainedModel, folder: Path, prompt: Tensor, shown: bytes, response: Tensor
) -> Tensor:
    """(response,) log-probabilities of its tokens, of transformers' thinker."""
    return token_logprobs(omni_logits(thinker, folder, prompt, shown, response), response)[0]
