"""Sound format of a model: sampling rate, length limit and token count. Loads no torch.

Sources: transformers 5, `_process_audio` of `models/qwen2_audio/processing_qwen2_audio.py`;
`models/qwen2_5_omni/processing_qwen2_5_omni.py`; `_get_feat_extract_output_lengths` of
`models/qwen3_omni_moe/processing_qwen3_omni_moe.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.picture_files import NEWER, PROCESSOR, read_json
from ppojob_trainer.data.media.sounds import sound_of

_LEAST_FRAMES: Final = 3
"""Of which a token is made: two convolutions and a mean over two leave nothing of fewer."""
_CHUNK, _PER_TOKEN = 100, 8
"""Of Qwen3-Omni: frames that are convolved together, and those that become one token."""
_Number = Annotated[int, msgspec.Meta(ge=1)]


class _Tower(msgspec.Struct):
    """What is read of an encoder; of one that reads pieces or chunks, half the frames of one."""

    max_source_positions: _Number = 1500
    n_window: _Number | None = None


class _Config(msgspec.Struct):
    """What is read of a config.json."""

    audio_config: _Tower
    audio_token_index: int = 151_646
    audio_token_id: int | None = None


class _Processor(msgspec.Struct):
    """What is read of the settings of a feature extractor; noise would be other in each pass."""

    feature_extractor_type: Literal["WhisperFeatureExtractor"]
    sampling_rate: _Number = 16_000
    hop_length: _Number = 160
    chunk_length: _Number = 30
    dither: float = 0.0


@dataclass(frozen=True, slots=True)
class SoundForm(MediaForm):
    """Sound format of a model; this is Qwen2-Audio, others are subclasses.

    Attributes:
        rate: samples of a second.
        hop: samples from one frame of features to the next.
        seconds: of the longest sound.
    """

    rate: int
    hop: int
    seconds: int

    @property
    def least(self) -> int:
        """Samples of the shortest sound that there is a token for."""
        return (_LEAST_FRAMES - 1) * self.hop + 1

    def fits(self, tower: _Tower) -> bool:
        """Whether an encoder is one that reads sounds so."""
        longest = self.seconds * self.rate
        return tower.n_window is None and longest == 2 * self.hop * tower.max_source_positions

    def read(self, samples: int) -> int:
        """Samples that features are made of, the sound's own and silence behind it."""
        del samples
        return self.seconds * self.rate

    def tokens(self, samples: int) -> int:
        """Return the number of tokens for so many samples."""
        frames = -(-samples // self.hop)
        return ((frames - 1) // 2 - 1) // 2 + 1

    def tokens_of(self, file: bytes) -> tuple[int, list[int]]:
        """See `MediaForm`."""
        samples = sound_of(file)
        assert samples is not None, "a picture for a model that hears"
        return self.token, [self.token] * self.tokens(len(samples))


@dataclass(frozen=True, slots=True)
class InPieces(SoundForm):
    """Of Qwen2.5-Omni: the tower reads as much as there is, piece by piece."""

    def fits(self, tower: _Tower) -> bool:
        """See `SoundForm`."""
        return tower.n_window is not None and tower.n_window <= tower.max_source_positions

    def read(self, samples: int) -> int:
        """See `SoundForm`: features are those with silence up to the longest, a hundredth of it."""
        return min(self.seconds * self.rate, (-(-samples // self.rate) + 1) * self.rate)


@dataclass(frozen=True, slots=True)
class ByChunks(SoundForm):
    """Of Qwen3-Omni: the tower reads whole frames alone, chunk by chunk, and no silence."""

    def fits(self, tower: _Tower) -> bool:
        """See `SoundForm`: transformers counts tokens of no other chunks."""
        most = -(-_CHUNK // _PER_TOKEN)
        return tower.n_window == _CHUNK // 2 and most <= tower.max_source_positions

    def read(self, samples: int) -> int:
        """See `SoundForm`."""
        return samples

    def tokens(self, samples: int) -> int:
        """See `SoundForm`."""
        chunks, rest = divmod(samples // self.hop, _CHUNK)
        return chunks * -(-_CHUNK // _PER_TOKEN) + -(-rest // _PER_TOKEN)


MODELS: Final[Mapping[str, type[SoundForm]]] = {
    "qwen2_audio": SoundForm,
    "qwen2_5_omni_thinker": InPieces,
    "qwen3_omni_moe_thinker": ByChunks,
}
"""Models that hear, by `model_type` of config.json."""


def read_sound_form(config: Mapping[str, Any], folder: Path) -> SoundForm | None:
    """The form of a model in Hugging Face form; None where its files say something unknown."""
    own = read_json(folder / NEWER).get("feature_extractor") or read_json(folder / PROCESSOR)
    try:
        told, processor = msgspec.convert(config, _Config), msgspec.convert(own, _Processor)
    except msgspec.ValidationError:
        return None
    token = told.audio_token_index if told.audio_token_id is None else told.audio_token_id
    sizes = processor.sampling_rate, processor.hop_length, processor.chunk_length
    form = MODELS[config["model_type"]](token, "Whisper", *sizes)
    return form if form.fits(told.audio_config) and not processor.dither else None
