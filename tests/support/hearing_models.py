"""Tiny models that hear audios, as transformers has them: an encoder beside a language model."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import run_folders
import soundfile
import torch
from padded_reference import token_logprobs
from safetensors.torch import load_file, save_file
from tiny_models import (
    AROUND_AUDIO,
    AUDIO,
    NAMES,
    SIZES,
    TWO_LAYERS,
    WIDE_HEADS,
    save_tokenizer,
    write_model,
)
from torch import Tensor
from transformers import (
    AutoTokenizer,
    PreTrainedModel,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    WhisperFeatureExtractor,
)

from ppojob_trainer.data.media.audio_form import AudioForm
from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.data.media.images import audio_of, packed, packed_audio, unpacked
from ppojob_trainer.models.weight_files import own_name

HEARING_NAMES = [*NAMES, AUDIO, *AROUND_AUDIO]
TOKEN = HEARING_NAMES.index(AUDIO)
TEMPLATE = Qwen2AudioProcessor.default_chat_template.fget(None)
RATE, SECONDS, MELS = 16_000, 1, 8
_TEXT: dict[str, object] = {
    "max_position_embeddings": 256,
    "model_type": "qwen2",
    "vocab_size": len(HEARING_NAMES),
}
_TEXT |= {"bos_token_id": None, "eos_token_id": NAMES.index("<|im_end|>"), "pad_token_id": 0}
_PLAIN = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}


def save_hearing_model(folder: Path, **changes: object) -> PreTrainedModel:
    """Write a model with an encoder of audios of a second; `changes` are of its text."""
    text = {**SIZES, **TWO_LAYERS, **_TEXT, **_PLAIN, **changes}
    tower = {"num_mel_bins": MELS, "max_source_positions": 50 * SECONDS, "d_model": 16}
    tower |= {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
    config = Qwen2AudioForConditionalGeneration.config_class(
        text_config=text, audio_config={**tower, "initializer_range": 0.2}, audio_token_index=TOKEN
    )
    torch.manual_seed(0)
    model = Qwen2AudioForConditionalGeneration(config).eval()
    for weight in model.model.audio_tower.parameters():
        weight.data.normal_(std=0.3)
    model.model.multi_modal_projector.linear.weight.data.normal_(std=0.3)
    write_model(folder, model)
    weights = load_file(folder / "model.safetensors")  # by names that only transformers 5 writes
    hub = {name.replace("model.model.", "model."): one for name, one in weights.items()}
    save_file(hub, folder / "model.safetensors", {"format": "pt"})
    told = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MELS}
    told |= {"chunk_length": SECONDS, "sampling_rate": RATE, "return_attention_mask": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    save_tokenizer(folder, template=TEMPLATE, names=HEARING_NAMES)
    return model


def save_hearing_policy(folder: Path, dropout: float) -> None:
    """Write a model that a tiny job trains, with its tokenizer."""
    wide = {**WIDE_HEADS, **_PLAIN, "num_key_value_heads": 2, "attention_dropout": dropout}
    save_hearing_model(folder, **wide)


def audio_form(folder: Path) -> AudioForm:
    """What the folder of a model that hears says of audios."""
    form = read_form(folder)
    assert isinstance(form, AudioForm)
    return form


def tone(pitch: float, seconds: float, rate: int = RATE) -> np.ndarray[Any, Any]:
    """A sine of a pitch in hertz."""
    times = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * pitch * times)).astype(np.float32)


def tone_file(pitch: float, seconds: float, rate: int = RATE, kind: str = "WAV") -> bytes:
    """The file of a tone, of one channel."""
    file = io.BytesIO()
    soundfile.write(file, tone(pitch, seconds, rate), rate, format=kind)
    return file.getvalue()


def heard(*tones: tuple[float, float]) -> bytes:
    return packed([packed_audio(tone(*one)) for one in tones])


def processor_of(folder: Path) -> Qwen2AudioProcessor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Qwen2AudioProcessor(WhisperFeatureExtractor.from_pretrained(folder), tokenizer)


def hearing_logits(
    whole: PreTrainedModel, folder: Path, prompt: Tensor, audios: bytes, response: Tensor
) -> Tensor:
    """(response, vocabulary) logits of transformers' whole model, from samples."""
    ids = torch.cat([prompt, response[:-1]])[None]
    given: dict[str, Tensor] = {}
    if audios:
        made = features_of(folder, unpacked(audios))
        given = {"input_features": made["input_features"]}
        given["feature_attention_mask"] = made["attention_mask"]
    logits: Tensor = whole(input_ids=ids, attention_mask=torch.ones_like(ids), **given).logits
    return logits[0, len(prompt) - 1 :]


def hearing_logprobs(
    whole: PreTrainedModel, folder: Path, prompt: Tensor, audios: bytes, response: Tensor
) -> Tensor:
    """(response,) log-probabilities of its tokens, of that model."""
    return token_logprobs(hearing_logits(whole, folder, prompt, audios, response), response)[0]


def features_of(folder: Path, files: Sequence[bytes], **options: object) -> dict[str, Tensor]:
    """What transformers' processor makes of audios."""
    samples = [one for one in map(audio_of, files) if one is not None]
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    told = {"sampling_rate": RATE, "return_attention_mask": True, "return_tensors": "pt"}
    return dict(extractor(samples, **told, **options))


def assert_decoder_alone_learnt(model: Path, run: Path, steps: int) -> None:
    """Engines agreed with the trainer, and what is no decoder is in the export as it was."""
    run_folders.assert_trained(run, steps)
    trained = [record for record in run_folders.metrics(run) if record["step"]]
    assert all(record["training/rollout_probs_diff_mean"] < 1e-6 for record in trained)
    before, _, kept = run_folders.kept(model, run)
    assert kept == {name for name in before if own_name(name).startswith("visual.")}
