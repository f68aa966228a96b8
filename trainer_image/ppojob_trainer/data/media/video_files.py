"""Decodes frames of video files, by OpenCV. Loads no torch.

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
from ppojob_trainer.data.media.picture_cells import BadPicture
from ppojob_trainer.data.media.pictures import encoded

FPS: Final = 2.0
MOST_FRAMES: Final = 768
_LEAST_FRAMES, _FACTOR = 4, 2
_LEAST, _MOST = 1e-6, 2**40
_THERE: Final = 0.9
"""Of the frames that a file tells as many are there at least: some tell them out of the length of
its sound, which may go on longer."""
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
    if isinstance(said, bool) or not isinstance(said, int | float) or not _LEAST <= said <= _MOST:
        why = f"{key} says which frames of a video are seen, or how"
        raise BadPicture(shown(said), why, f"a number from {_LEAST} to {_MOST}, or none")
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
    if content is None:
        raise BadPicture("a struct without video", "it is what is shown", _ALLOWED)
    if not isinstance(content, str):
        raise BadPicture(type(content).__name__, "it is no video", _ALLOWED)
    path = content.removeprefix("file://")
    if not Path(path).is_file():
        raise BadPicture(shown(content), "no such file", _ALLOWED)
    return _read(Path(path), shown(content), told, sized)


def _read(
    path: Path, named: str, told: Mapping[object, object], sized: Sized, there: int | None = None
) -> Frames:
    """Some frames of a file, of which so many are there; None for as many as it tells."""
    import cv2

    video = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    try:
        total = int(video.get(cv2.CAP_PROP_FRAME_COUNT)) if video.isOpened() else 0
        rate = video.get(cv2.CAP_PROP_FPS)
        if total < _FACTOR or not rate > 0:
            raise BadPicture(named, f"{max(total, 0)} frames can be read of it", _ALLOWED)
        places = _places(there or total, rate, told, named)
        count = len(places)
        files = [
            encoded(frame.resize(sized(frame.size, count))) for frame in _frames(video, places)
        ]
        seen = int(video.get(cv2.CAP_PROP_POS_FRAMES))
    finally:
        video.release()
    if len(files) == count:
        shown_of = places[-1] + 1 - places[0]
        return Frames(files, [place / rate for place in places], count / shown_of * rate)
    if there is None and seen >= total * _THERE:
        return _read(path, named, told, sized, seen)
    why = f"it breaks off: {seen} of {total} frames can be read"
    raise BadPicture(named, why, "a whole video")


def _places(total: int, rate: float, told: Mapping[object, object], named: str) -> list[int]:
    """Which frames are shown, of as many as there are."""
    first, last = _part(total, rate, told)
    if last - first < _FACTOR - 1:
        why = f"{max(last + 1 - first, 0)} frames are between video_start and video_end"
        raise BadPicture(named, why, f"a part of {_FACTOR} frames at least")
    total = last + 1 - first
    count = _count(total, rate, told)
    if not _FACTOR <= count <= total:
        why = f"{count} frames are asked for, and it has {total}"
        raise BadPicture(named, why, "nframes, fps or max_frames for 2 frames, up to all")
    places: list[int] = np.linspace(first, last, count).round().astype(int).tolist()
    return places


def _part(total: int, rate: float, told: Mapping[object, object]) -> tuple[int, int]:
    """The first and the last frame of the seconds that are shown."""
    length = total / rate
    start = 0.0 if told.get("video_start") == 0 else number_of(told, "video_start", 0.0)
    end = number_of(told, "video_end", length)
    return math.ceil(min(start, length) * rate), min(math.floor(min(end, length) * rate), total - 1)


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
    """Return how many frames are sampled."""
    if told.get("nframes") is not None:
        if told.get("fps") is not None:
            raise BadPicture("nframes and fps", "each says how many frames are seen", "one of them")
        return round(number_of(told, "nframes", 0) / _FACTOR) * _FACTOR
    least = -(-number_of(told, "min_frames", _LEAST_FRAMES) // _FACTOR) * _FACTOR
    most = number_of(told, "max_frames", min(MOST_FRAMES, total)) // _FACTOR * _FACTOR
    wanted = total / rate * number_of(told, "fps", FPS)
    return int(min(max(wanted, least), most, total) // _FACTOR) * _FACTOR
