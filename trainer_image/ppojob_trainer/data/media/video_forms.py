"""Video formats of Qwen models: frame sizes and clips. Loads no torch.

transformers' own classes say it too, but load torch, and want torchvision. Sources: transformers 5,
`resize` of `models/qwen2_vl/video_processing_qwen2_vl.py` and
`models/qwen3_vl/video_processing_qwen3_vl.py`; `replace_video_token` of
`models/qwen3_vl/processing_qwen3_vl.py`; `get_rope_index` of
`models/qwen2_5_vl/modeling_qwen2_5_vl.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ppojob_trainer.data.media.smart_resize import no_shorter, smart_resize
from ppojob_trainer.data.media.videos import Clip

Settings = Mapping[str, Any]

_PER_SECOND, _PER_MOMENT, _FRAMES = 4.0, 25, 2
_LEAST_TOKENS, _MOST_TOKENS = 128, 768
"""Of a frame, or of all of them, where a folder says no limits: transformers'."""
_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class VideoForm(ABC):
    """Video format of a model.

    Attributes:
        token: what stands for a video or a clip in text, and then as often as there are features.
        unit: pixels of a side of what becomes one token.
        frames: that the tower sees at once.
        least: pixels to which smaller frames are enlarged, about.
        most: those that larger ones are reduced to.
        bound: tokens by which frames are bounded where many are; None for no such bound.
    """

    token: int
    unit: int
    frames: int
    least: float
    most: float
    bound: int | None

    @staticmethod
    def of(config: Settings, processor: Settings, unit: int) -> "VideoForm | None":
        """Out of config.json and the settings of videos; None where the model has none."""
        kind = _KINDS.get(str(config.get("model_type")))
        token = config.get("video_token_id", config.get("video_token_index"))
        if kind is None or not isinstance(token, int):
            return None
        frames = processor.get("temporal_patch_size", _FRAMES)
        # Those of Qwen-Omni are transformers', whatever a folder says.
        size = {} if kind.tells == "moments" else dict(processor.get("size") or {})
        if kind.tells in ("numbers", "seconds"):
            size["shortest_edge"] = processor.get("min_pixels") or size.get("shortest_edge")
            size["longest_edge"] = processor.get("max_pixels") or size.get("longest_edge")
        least = size.get("shortest_edge") or _LEAST_TOKENS * (2 * kind.patch) ** 2
        most = size.get("longest_edge") or _MOST_TOKENS * (2 * kind.patch) ** 2
        bound = None
        if processor.get("cap_pixels_per_frame"):
            bound = processor.get("max_video_tokens", kind.bound)
        sizes = token, unit, frames, least, most, bound
        if kind.tells == "text":
            return Timed(*sizes)
        if kind.tells == "moments":
            return Joined(*sizes, config.get("position_id_per_seconds", _PER_MOMENT), True)
        paced = config["vision_config"].get("tokens_per_second", _PER_SECOND)
        return Joined(*sizes, paced if kind.tells == "seconds" else None)

    def whole(self, count: int) -> int:
        """Return how many frames whole clips of so many frames have."""
        return count + -count % self.frames

    def clips(self, frames: Sequence[bytes], seconds: Sequence[float], fps: float) -> list[Clip]:
        """A video as clips; its last frame goes on where the last clip lacks some."""
        lacking = self.whole(len(frames)) - len(frames)
        shown = [*frames, *[frames[-1]] * lacking]
        times = [*seconds, *(seconds[-1] + (n + 1) / fps for n in range(lacking))]
        found = []
        for number, first in enumerate(range(0, len(shown), self.frames)):
            own, last = shown[first : first + self.frames], first + self.frames - 1
            middle = (times[first] + times[last]) / 2
            found.append(self._clip(own, number, middle, fps))
        return found

    @abstractmethod
    def sides_of(self, count: int, width: int, height: int) -> tuple[int, int]:
        """Width and height in pixels of what the model sees of frames of these sides.

        So many are those of whole clips.
        """

    @abstractmethod
    def _clip(self, frames: list[bytes], number: int, middle: float, fps: float) -> Clip: ...


@dataclass(frozen=True, slots=True)
class Joined(VideoForm):
    """Of Qwen2-VL, 2.5-VL and Qwen-Omni: one run of tokens, whose positions tell the time.

    Attributes:
        per_second: positions of a second; None where each clip has the next one.
        by_moments: whether those of a clip are made of its time; else of the time of one clip.
    """

    per_second: float | None
    by_moments: bool = False

    def sides_of(self, count: int, width: int, height: int) -> tuple[int, int]:
        """See `VideoForm`: the limits are those of a frame."""
        most = self.most
        if self.bound is not None:
            pixels = int(self.bound * self.unit**2 * _SHARE)
            most = max(min(most, pixels * self.frames // count), int(self.least * 1.05))
        return smart_resize(width, height, self.unit, self.least, most)

    def _clip(self, frames: list[bytes], number: int, middle: float, fps: float) -> Clip:
        del middle
        if self.per_second is None:
            return Clip(frames, number, number)
        # In the type of transformers' tensors.
        seconds, paced = np.float32(self.frames / fps), np.float32(self.per_second)
        if self.by_moments:
            return Clip(frames, number, int(np.float32(number) * seconds * paced))
        return Clip(frames, number, int(np.float32(number) * (seconds * paced)))


@dataclass(frozen=True, slots=True)
class Timed(VideoForm):
    """Of Qwen3-VL and Qwen3.5: each clip is told its time in text, and is else as a picture."""

    def sides_of(self, count: int, width: int, height: int) -> tuple[int, int]:
        """See `VideoForm`: the limits are those of all frames together."""
        most = self.most
        if self.bound is not None:
            each = min(self.bound * self.unit**2, most // count)
            most = max(each, int(self.least * 1.05)) * count
        sides = no_shorter(width, height, self.unit)
        return smart_resize(*sides, self.unit, self.least, most, frames=count)

    def _clip(self, frames: list[bytes], number: int, middle: float, fps: float) -> Clip:
        del fps
        return Clip(frames, number, text=f"<{middle:.1f} seconds>")


@dataclass(frozen=True, slots=True)
class _Kind:
    """What transformers takes for granted of a family: how time is told, and sizes."""

    tells: str
    patch: int
    bound: int


_TIMED: Final = _Kind("text", 16, 768)
_KINDS: Final = {
    "qwen2_vl": _Kind("numbers", 14, 128_000),
    "qwen2_5_vl": _Kind("seconds", 14, 128_000),
    "qwen2_5_omni_thinker": _Kind("moments", 14, 128_000),
    "qwen3_omni_moe_thinker": _Kind("moments", 16, 128_000),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _TIMED),
}
