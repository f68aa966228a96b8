"""Frames of video files, by the OpenCV that vLLM brings. Loads no torch.

Source of the numbers: qwen-vl-utils 0.0.14, `vision_process.py`, `smart_nframes`,
`calculate_video_frame_range` and `_read_video_torchvision`, by which verl reads videos.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from ppojob_api.problem import shown
from ppojob_trainer.data.picture_cells import BadPicture
from ppojob_trainer.data.pictures import encoded

FPS: Final = 2.0
MOST_FRAMES: Final = 768
_LEAST_FRAMES, _FACTOR = 4, 2
_ALLOWED: Final = "a list of pictures, or a video file that OpenCV reads"

Sized = Callable[[tuple[int, int], int], tuple[int, int]]
"""Says of what sides, and how many frames, how large a model sees them."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a video that models are shown.

    Attributes:
        files: encoded, as large as the model sees them.
        seconds: when each is seen.
        fps: how many a second has, on average.
    """

    files: Sequence[bytes]
    seconds: Sequence[float]
    fps: float


def number_of(told: Mapping[object, object], key: str, usual: float) -> float:
    """What the struct of a video says of its frames.

    Raises:
        BadPicture: it is no number, or one that no video has.
    """
    said = told.get(key)
    if said is None:
        return usual
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said <= 10_000:
        why = f"{key} says which frames of a video are seen"
        raise BadPicture(shown(said), why, "a number above 0, up to 10000")
    return float(said)


def decoded(content: object, told: Mapping[object, object], sized: Sized) -> Frames:
    """Some frames of a file, at equal distances: those of its path, or of its bytes.

    Raises:
        BadPicture: it cannot be read, or has too few frames.
    """
    if isinstance(content, bytes):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            return _read(Path(file.name), "bytes of a video", told, sized)
    if not isinstance(content, str):
        raise BadPicture(type(content).__name__, "it is no video", _ALLOWED)
    path = content.removeprefix("file://")
    if not Path(path).is_file():
        raise BadPicture(shown(content), "no such file", _ALLOWED)
    return _read(Path(path), shown(content), told, sized)


def _read(path: Path, named: str, told: Mapping[object, object], sized: Sized) -> Frames:
    import cv2

    video = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    try:
        total = int(video.get(cv2.CAP_PROP_FRAME_COUNT)) if video.isOpened() else 0
        rate = video.get(cv2.CAP_PROP_FPS)
        if total < _FACTOR or not rate > 0:
            raise BadPicture(named, f"{max(total, 0)} frames can be read of it", _ALLOWED)
        first, last = _part(total, rate, told)
        total = last + 1 - first
        count = _count(total, rate, told)
        if not _FACTOR <= count <= total:
            why = f"{count} frames are asked for, and it has {total}"
            raise BadPicture(named, why, "nframes, fps or max_frames for 2 frames at least")
        places = np.linspace(first, last, count).round().astype(int).tolist()
        files = [
            encoded(frame.resize(sized(frame.size, count))) for frame in _frames(video, places)
        ]
    finally:
        video.release()
    if len(files) < count:
        why = f"it breaks off: {len(files)} of {count} frames can be read"
        raise BadPicture(named, why, "a whole video")
    return Frames(files, [place / rate for place in places], count / total * rate)


def _part(total: int, rate: float, told: Mapping[object, object]) -> tuple[int, int]:
    """The first and the last frame of the seconds that are shown."""
    start, end = (
        min(number_of(told, key, usual), total / rate) if told.get(key) else usual
        for key, usual in (("video_start", 0.0), ("video_end", total / rate))
    )
    return math.ceil(start * rate), min(math.floor(end * rate), total - 1)


def _frames(video: Any, places: Sequence[int]) -> Iterator[Image.Image]:
    """Frames of these places, from the first to the last, until the video ends."""
    at = -1
    for place in places:
        while at < place:
            if not video.grab():
                return
            at += 1
        is_read, pixels = video.retrieve()
        if not is_read:
            return
        yield Image.fromarray(pixels[:, :, ::-1].copy())


def _count(total: int, rate: float, told: Mapping[object, object]) -> int:
    """How many frames are shown."""
    if told.get("nframes") is not None:
        return round(number_of(told, "nframes", 0) / _FACTOR) * _FACTOR
    least = -(-number_of(told, "min_frames", _LEAST_FRAMES) // _FACTOR) * _FACTOR
    most = number_of(told, "max_frames", min(MOST_FRAMES, total)) // _FACTOR * _FACTOR
    wanted = total / rate * number_of(told, "fps", FPS)
    return int(min(max(wanted, least), most, total) // _FACTOR) * _FACTOR
