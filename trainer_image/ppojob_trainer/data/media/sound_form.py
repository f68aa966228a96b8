"""How a model takes sounds: at which pace, how long ones, and as how many tokens. Loads no torch.

Sources: transformers 5, `_process_audio` of `models/qwen2_audio/processing_qwen2_audio.py`;
`models/qwen2_5_omni/processing_qwen2_5_omni.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.picture_files import NEWER, PROCESSOR, read_json
from ppojob_trainer.data.media.sounds import sound_of

MODELS: Final = ("qwen2_audio", "qwen2_5_omni_thinker")
"""The `model_type` of those that hear, as config.json says it."""
_LEAST_FRAMES: Final = 3
"""Of which a token is made: two convolutions and a mean over two leave nothing of fewer."""
_Number = Annotated[int, msgspec.Meta(ge=1)]


class _Tower(msgspec.Struct):
    """What is read of an encoder; of one that reads pieces `n_window` is half the frames of one."""

    max_source_positions: _Number = 1500
    n_window: _Number | None = None


class _Config(msgspec.Struct):
    """What is read of a config.json."""

    audio_config: _Tower
    audio_token_index: int = 151_646


class _Processor(msgspec.Struct):
    """What is read of the settings of a feature extractor; noise would be other in each pass."""

    feature_extractor_type: Literal["WhisperFeatureExtractor"]
    sampling_rate: _Number = 16_000
    hop_length: _Number = 160
    chunk_length: _Number = 30
    dither: float = 0.0


@dataclass(frozen=True, slots=True)
class SoundForm(MediaForm):
    """How a model takes sounds.

    Attributes:
        rate: samples of a second.
        hop: samples from one frame of features to the next.
        seconds: of the longest sound.
        in_pieces: whether the tower reads as much as there is, piece by piece; else it reads as
            much of each as the longest may have, with silence at the end.
    """

    rate: int
    hop: int
    seconds: int
    in_pieces: bool = False

    @property
    def least(self) -> int:
        """Samples of the shortest sound that there is a token for."""
        return (_LEAST_FRAMES - 1) * self.hop + 1

    def read(self, samples: int) -> int:
        """Samples that features are made of, the sound's own and silence behind it."""
        longest = self.seconds * self.rate
        if not self.in_pieces:
            return longest
        # Features are those with silence up to the longest, in a hundredth of the time.
        return min(longest, (-(-samples // self.rate) + 1) * self.rate)

    def tokens_of(self, file: bytes) -> tuple[int, list[int]]:
        """See `MediaForm`."""
        samples = sound_of(file)
        assert samples is not None, "a picture for a model that hears"
        frames = -(-len(samples) // self.hop)
        return self.token, [self.token] * (((frames - 1) // 2 - 1) // 2 + 1)


def read_sound_form(config: Mapping[str, Any], folder: Path) -> SoundForm | None:
    """The form of a model in Hugging Face form; None where its files say something unknown."""
    own = read_json(folder / NEWER).get("feature_extractor") or read_json(folder / PROCESSOR)
    try:
        told, processor = msgspec.convert(config, _Config), msgspec.convert(own, _Processor)
    except msgspec.ValidationError:
        return None
    rate, hop, seconds = processor.sampling_rate, processor.hop_length, processor.chunk_length
    tower = told.audio_config
    in_pieces = tower.n_window is not None
    read = seconds * rate / (2 * hop) if tower.n_window is None else tower.n_window
    fits = read <= tower.max_source_positions if in_pieces else read == tower.max_source_positions
    if not fits or processor.dither:
        return None
    return SoundForm(told.audio_token_index, "Whisper", rate, hop, seconds, in_pieces)
