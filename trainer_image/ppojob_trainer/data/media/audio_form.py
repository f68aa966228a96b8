"""Audio format of a model: sampling rate, length limit and token count. Loads no torch.

Sources: transformers 5, `_process_audio` of `models/qwen2_audio/processing_qwen2_audio.py`;
`models/qwen2_5_omni/processing_qwen2_5_omni.py`; `_get_feat_extract_output_lengths` of
`models/qwen3_omni_moe/processing_qwen3_omni_moe.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from ppojob_trainer.data.media.image_files import NEWER, PROCESSOR, read_json
from ppojob_trainer.data.media.images import audio_of
from ppojob_trainer.data.media.media_form import MediaForm

_LEAST_FRAMES: Final = 3
"""Frames of one token: two convolutions and a mean over two leave nothing of fewer."""
_CHUNK, _PER_TOKEN = 100, 8
"""Qwen3-Omni's frames per chunk of convolution, and per token."""
_Number = Annotated[int, msgspec.Meta(ge=1)]


class _Settings(msgspec.Struct):
    """Settings of config.json, of its audio_config (`tower_`) and of the feature extractor."""

    feature_extractor_type: Literal["WhisperFeatureExtractor"]
    audio_token_index: int = 151_646
    audio_token_id: int | None = None
    tower_max_source_positions: _Number = 1500
    tower_n_window: _Number | None = None  # half the frames of a chunk; None without chunks
    sampling_rate: _Number = 16_000
    hop_length: _Number = 160
    chunk_length: _Number = 30
    dither: float = 0.0  # adds noise, which would differ in each pass


@dataclass(frozen=True, slots=True)
class AudioForm(MediaForm):
    """Audio format of a model; this is Qwen2-Audio, others are subclasses."""

    rate: int
    hop: int  # samples between two frames of features
    seconds: int  # of the longest audio

    @property
    def least(self) -> int:
        """Return the number of samples of the shortest audio that has a token."""
        return (_LEAST_FRAMES - 1) * self.hop + 1

    def fits(self, model: _Settings) -> bool:
        """Whether a model reads audios as this class does."""
        longest = 2 * self.hop * model.tower_max_source_positions
        return model.tower_n_window is None and self.seconds * self.rate == longest

    def read(self, samples: int) -> int:
        """Return the number of samples of the features: those of the audio, padded by silence."""
        del samples
        return self.seconds * self.rate

    def tokens(self, samples: int) -> int:
        """Return the number of tokens of an audio, by its number of samples."""
        frames = -(-samples // self.hop)
        return ((frames - 1) // 2 - 1) // 2 + 1

    def tokens_of(self, file: bytes) -> tuple[int, list[int]]:
        samples = audio_of(file)
        assert samples is not None, "an image for an audio model"
        return self.token, [self.token] * self.tokens(len(samples))


@dataclass(frozen=True, slots=True)
class Qwen25OmniAudio(AudioForm):
    """Audio format of Qwen2.5-Omni: the tower reads an audio without padding, in pieces."""

    def fits(self, model: _Settings) -> bool:
        half = model.tower_n_window
        return half is not None and half <= model.tower_max_source_positions

    def read(self, samples: int) -> int:
        """See `AudioForm`: at least a second of silence, as far as the longest audio."""
        return min(self.seconds * self.rate, (-(-samples // self.rate) + 1) * self.rate)


@dataclass(frozen=True, slots=True)
class Qwen3OmniAudio(AudioForm):
    """Audio format of Qwen3-Omni: the tower reads whole frames without padding, in chunks."""

    def fits(self, model: _Settings) -> bool:
        """See `AudioForm`: transformers counts tokens of no other chunks."""
        most = -(-_CHUNK // _PER_TOKEN)
        return model.tower_n_window == _CHUNK // 2 and most <= model.tower_max_source_positions

    def read(self, samples: int) -> int:
        return samples

    def tokens(self, samples: int) -> int:
        chunks, rest = divmod(samples // self.hop, _CHUNK)
        return chunks * -(-_CHUNK // _PER_TOKEN) + -(-rest // _PER_TOKEN)


MODELS: Final[Mapping[str, type[AudioForm]]] = {
    "qwen2_audio": AudioForm,
    "qwen2_5_omni_thinker": Qwen25OmniAudio,
    "qwen3_omni_moe_thinker": Qwen3OmniAudio,
}
"""Audio models by the `model_type` of their config.json."""


def read_audio_form(config: Mapping[str, Any], folder: Path) -> AudioForm | None:
    """Read the audio format of a Hugging Face model; None if it is not supported."""
    own = read_json(folder / NEWER).get("feature_extractor") or read_json(folder / PROCESSOR)
    tower = config.get("audio_config")
    if not isinstance(own, dict) or not isinstance(tower, dict):
        return None
    flat = {**config, **own, **{f"tower_{key}": value for key, value in tower.items()}}
    try:
        model = msgspec.convert(flat, _Settings)
    except msgspec.ValidationError:
        return None
    token = model.audio_token_index if model.audio_token_id is None else model.audio_token_id
    sizes = model.sampling_rate, model.hop_length, model.chunk_length
    form = MODELS[config["model_type"]](token, "Whisper", *sizes)
    return form if form.fits(model) and not model.dither else None
