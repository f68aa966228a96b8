"""Video formats of Qwen models, and the resizing of images and frames. Loads no torch.

transformers' own classes define them too, but load torch and torchvision. Sources: transformers 5,
`resize` of `models/qwen2_vl/video_processing_qwen2_vl.py` and
`models/qwen3_vl/video_processing_qwen3_vl.py`; `replace_video_token` of
`models/qwen3_vl/processing_qwen3_vl.py`; `get_rope_index` of
`models/qwen2_5_vl/modeling_qwen2_5_vl.py`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ppojob_trainer.data.media.image_settings import QwenSettings
from ppojob_trainer.data.media.images import Clip

_LEAST_TOKENS, _MOST_TOKENS = 128, 768
"""transformers' default limits, of a frame or of all frames."""
_SHARE: Final = 0.9


def smart_resize(
    width: int,
    height: int,
    unit: int,
    least: float,
    most: float,
    *,
    frames: int = 1,
    shortest: int = 0,
) -> tuple[int, int]:
    """Return width and height as multiples of a unit, within limits in pixels, about.

    Smaller images than `least` pixels are enlarged, larger ones than `most` reduced; `frames`
    share these pixels. Before that a side has at least `shortest` units. Sources: `smart_resize` of
    `models/qwen2_vl/image_processing_pil_qwen2_vl.py` and of GLM's, and of qwen-vl-utils 0.0.14.
    """
    down, across = (max(shortest, round(side / unit)) for side in (height, width))
    pixels = frames * down * across * unit**2
    if pixels > most:
        shrink = math.sqrt(frames * height * width / most)
        down, across = (max(1, math.floor(s / shrink / unit)) for s in (height, width))
    elif pixels < least:
        grow = math.sqrt(least / (frames * height * width))
        down, across = (math.ceil(side * grow / unit) for side in (height, width))
    return across * unit, down * unit


def no_shorter(width: int, height: int, unit: int) -> tuple[int, int]:
    """Enlarge width and height, in proportion, so that no side is shorter than a unit."""
    if min(height, width) >= unit:
        return width, height
    grow = max(unit / height, unit / width)
    return int(width * grow), int(height * grow)


@dataclass(frozen=True, slots=True)
class VideoForm(ABC):
    """Video format of a model."""

    token: int  # placeholder of a video or a clip in text, and token of its features
    unit: int  # pixels of a side of a token
    frames: int  # frames of a clip, which the tower reads at once
    least: float  # pixels to which smaller frames are enlarged, about
    most: float  # pixels to which larger frames are reduced
    bound: int | None  # tokens that limit the frames of a long video; None for no such limit

    @staticmethod
    def read(settings: QwenSettings, unit: int) -> "VideoForm | None":
        """Read the format from a model's settings; None if it takes no videos."""
        kind = _KINDS.get(settings.model_type)
        token = settings.video_token_id
        token = settings.video_token_index if token is None else token
        if kind is None or token is None:
            return None
        least, most, size = None, None, settings.video_size
        # For Qwen-Omni transformers ignores the limits of the folder.
        if kind.time != "moments" and size is not None:
            least, most = size.shortest_edge, size.longest_edge
        if kind.time in ("numbers", "seconds"):
            least, most = settings.video_min_pixels or least, settings.video_max_pixels or most
        least = least or _LEAST_TOKENS * (2 * kind.patch) ** 2
        most = most or _MOST_TOKENS * (2 * kind.patch) ** 2
        bound = None
        if settings.video_cap_pixels_per_frame:
            bound = settings.video_max_video_tokens or kind.bound
        sizes = token, unit, settings.video_temporal_patch_size, least, most, bound
        if kind.time == "text":
            return Qwen3VlVideo(*sizes)
        if kind.time == "moments":
            return QwenVideo(*sizes, settings.position_id_per_seconds, True)
        paced = settings.tower_tokens_per_second
        return QwenVideo(*sizes, paced if kind.time == "seconds" else None)

    def in_whole_clips(self, count: int) -> int:
        """Round a number of frames up to whole clips."""
        return count + -count % self.frames

    def clips(self, frames: Sequence[bytes], seconds: Sequence[float], fps: float) -> list[Clip]:
        """Split a video into clips; the last frame is repeated to fill the last clip.

        `seconds` are the times of the frames, `fps` is their average rate.
        """
        lacking = self.in_whole_clips(len(frames)) - len(frames)
        shown = [*frames, *[frames[-1]] * lacking]
        times = [*seconds, *(seconds[-1] + (n + 1) / fps for n in range(lacking))]
        found = []
        for number, first in enumerate(range(0, len(shown), self.frames)):
            own, last = shown[first : first + self.frames], first + self.frames - 1
            middle = (times[first] + times[last]) / 2
            found.append(self._clip(own, number, middle, fps))
        return found

    @abstractmethod
    def target_size(self, count: int, width: int, height: int) -> tuple[int, int]:
        """Return width and height to which frames are resized, in pixels.

        `count` is the number of frames, in whole clips.
        """

    @abstractmethod
    def _clip(self, frames: list[bytes], number: int, middle: float, fps: float) -> Clip: ...


@dataclass(frozen=True, slots=True)
class QwenVideo(VideoForm):
    """Video format of Qwen2-VL, 2.5-VL and Qwen-Omni: one run of tokens, with time positions."""

    per_second: float | None  # time positions per second; None if each clip has the next one
    # Whether a position is rounded from the clip's time, or from a multiple of the rounded duration
    # of a clip.
    by_moments: bool = False

    def target_size(self, count: int, width: int, height: int) -> tuple[int, int]:
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
class Qwen3VlVideo(VideoForm):
    """Video format of Qwen3-VL and Qwen3.5: each clip is like an image, after its time as text."""

    def target_size(self, count: int, width: int, height: int) -> tuple[int, int]:
        """See `VideoForm`: the limits are those of all frames together."""
        most = self.most
        if self.bound is not None:
            each = min(self.bound * self.unit**2, most // count)
            most = max(each, int(self.least * 1.05)) * count
        size = no_shorter(width, height, self.unit)
        return smart_resize(*size, self.unit, self.least, most, frames=count)

    def _clip(self, frames: list[bytes], number: int, middle: float, fps: float) -> Clip:
        del fps
        return Clip(frames, number, text=f"<{middle:.1f} seconds>")


@dataclass(frozen=True, slots=True)
class _Kind:
    """transformers' constants of a family, and how it encodes the time of a clip."""

    time: Literal["numbers", "seconds", "moments", "text"]
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
