"""Reads the videos of a cell, as clips of frames resized for the model. Without torch.

Source of names and numbers: qwen-vl-utils 0.0.14, `vision_process.py`, by which verl reads videos.
Functions raise `BadImage` for what cannot be read.
"""

import io
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from ppojob_api.problem import counted, shown
from ppojob_trainer.data.media.image_cells import (
    UNCHANGED,
    BadImage,
    items_of,
    read_file,
    requested_size,
)
from ppojob_trainer.data.media.image_form import ImageForm, RequestedSize
from ppojob_trainer.data.media.images import encoded, opened, packed_clip
from ppojob_trainer.data.media.video_forms import smart_resize

FPS: Final = 2.0
MOST_FRAMES: Final = 768
_LEAST_FRAMES, _FACTOR = 4, 2
_LEAST, _MOST = 1e-6, 2**40
_READABLE: Final = 0.9
"""Share of a file's frame count that must be readable: some files count the frames by the duration
of their audio, which may be longer."""
_ALLOWED: Final = "a list of images, or a video file that OpenCV reads"
_LEAST_TOKENS, _MOST_TOKENS = 128, 768
"""Default limits of a frame."""
_ALL_TOKENS: Final = 128_000 * 0.9
"""Default limit of a video, shared by its frames."""
_OF_IMAGE: Final = 4, 16_384
"""Default limits of a frame that is given as an image."""
_UNSUPPORTED: Final = ("raw_fps",)
"""Entries of a video's struct that only qwen-vl-utils reads."""
_OF_FILES: Final = ("video_start", "video_end")
"""Entries that apply to video files only."""

TargetSize = Callable[[tuple[int, int], int], tuple[int, int]]
"""((width, height), number of frames) -> width and height to which they are resized."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Sampled frames of a video."""

    files: Sequence[bytes]  # encoded images in the model's size
    seconds: Sequence[float]
    fps: float  # frames per second, on average


def read_number(settings: Mapping[object, object], key: str, default: float) -> float:
    """Read a number from the struct of a video."""
    cell = settings.get(key)
    if cell is None:
        return default
    if isinstance(cell, bool) or not isinstance(cell, int | float) or not _LEAST <= cell <= _MOST:
        why = f"{key} sets which frames of a video are used, or their size"
        raise BadImage(shown(cell), why, f"a number from {_LEAST} to {_MOST}, or null")
    return float(cell)


def decode(content: object, settings: Mapping[object, object], target_size: TargetSize) -> Frames:
    """Decode evenly spaced frames of a video file, given as a path or as bytes."""
    if isinstance(content, bytes):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            return _read(Path(file.name), "bytes of a video", settings, target_size)
    if content is None:
        raise BadImage("a struct without video", "the video is required", _ALLOWED)
    if not isinstance(content, str):
        raise BadImage(type(content).__name__, "it is not a video", _ALLOWED)
    path = content.removeprefix("file://")
    if not Path(path).is_file():
        raise BadImage(shown(content), "no such file", _ALLOWED)
    return _read(Path(path), shown(content), settings, target_size)


def _read(
    path: Path,
    named: str,
    settings: Mapping[object, object],
    target_size: TargetSize,
    readable: int | None = None,
) -> Frames:
    """Sample frames of a file; `readable` is their number, None for the file's own count."""
    import cv2

    video = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    try:
        total = int(video.get(cv2.CAP_PROP_FRAME_COUNT)) if video.isOpened() else 0
        rate = video.get(cv2.CAP_PROP_FPS)
        if total < _FACTOR or not rate > 0:
            raise BadImage(named, f"{max(total, 0)} frames can be read of it", _ALLOWED)
        places = _places(readable or total, rate, settings, named)
        count = len(places)
        files = [
            encoded(frame.resize(target_size(frame.size, count)))
            for frame in _frames(video, places)
        ]
        seen = int(video.get(cv2.CAP_PROP_POS_FRAMES))
    finally:
        video.release()
    if len(files) == count:
        span = places[-1] + 1 - places[0]
        return Frames(files, [place / rate for place in places], count / span * rate)
    if readable is None and seen >= total * _READABLE:
        return _read(path, named, settings, target_size, seen)
    why = f"it is truncated: {seen} of {total} frames can be read"
    raise BadImage(named, why, "a complete video")


def _places(total: int, rate: float, settings: Mapping[object, object], named: str) -> list[int]:
    """Return the indices of the sampled frames."""
    first, last = _part(total, rate, settings)
    if last - first < _FACTOR - 1:
        why = f"{max(last + 1 - first, 0)} frames are between video_start and video_end"
        raise BadImage(named, why, f"a part of at least {_FACTOR} frames")
    total = last + 1 - first
    count = _count(total, rate, settings)
    if not _FACTOR <= count <= total:
        why = f"{count} frames are requested, and it has {total}"
        raise BadImage(named, why, "nframes, fps or max_frames for 2 frames, up to all")
    places: list[int] = np.linspace(first, last, count).round().astype(int).tolist()
    return places


def _part(total: int, rate: float, settings: Mapping[object, object]) -> tuple[int, int]:
    """Return the first and the last frame of the requested part."""
    length = total / rate
    start = 0.0 if settings.get("video_start") == 0 else read_number(settings, "video_start", 0.0)
    end = read_number(settings, "video_end", length)
    return math.ceil(min(start, length) * rate), min(math.floor(min(end, length) * rate), total - 1)


def _frames(video: Any, places: Sequence[int]) -> Iterator[Image.Image]:
    """Decode the frames at ascending indices, until the video ends."""
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


def _count(total: int, rate: float, settings: Mapping[object, object]) -> int:
    """Return how many frames are sampled."""
    if settings.get("nframes") is not None:
        if settings.get("fps") is not None:
            raise BadImage("nframes and fps", "both set the number of frames", "one of them")
        return round(read_number(settings, "nframes", 0) / _FACTOR) * _FACTOR
    least = -(-read_number(settings, "min_frames", _LEAST_FRAMES) // _FACTOR) * _FACTOR
    most = read_number(settings, "max_frames", min(MOST_FRAMES, total)) // _FACTOR * _FACTOR
    sampled = total / rate * read_number(settings, "fps", FPS)
    return int(min(max(sampled, least), most, total) // _FACTOR) * _FACTOR


def read_videos(
    cell: object, form: ImageForm, requested: RequestedSize = UNCHANGED
) -> list[list[bytes]]:
    """Read the clips of each video of a cell: one struct, or a list, as in verl's rows.

    Frames are resized as requested. The struct of a video overrides the request, by
    qwen-vl-utils' names.
    """
    cells = items_of(cell)
    if cells and form.video is None:
        allowed = "Qwen2-VL, 2.5-VL, 2.5-Omni, Qwen3-VL, 3-Omni or 3.5, or rows without this column"
        raise BadImage(counted(len(cells), "video"), "this model takes no videos", allowed)
    return [_clips(one, form, requested) for one in cells]


def _clips(cell: object, form: ImageForm, default: RequestedSize) -> list[bytes]:
    video = form.video
    assert video is not None
    settings = cell if isinstance(cell, Mapping) else {"video": cell}
    requested, content = requested_size(settings, default), settings.get("video")
    unsupported = _UNSUPPORTED + (_OF_FILES if isinstance(content, list) else ())
    if given := next((key for key in unsupported if settings.get(key) is not None), None):
        raise BadImage(given, "not in this version", "frames of that part and rate")
    total = read_number(settings, "total_pixels", _ALL_TOKENS * video.unit**2)

    def target_size(size: tuple[int, int], count: int) -> tuple[int, int]:
        whole = video.in_whole_clips(count)
        if requested.size or isinstance(content, list):
            size = _size_of_image(size, video.unit, requested)
        if not requested.size:
            size = _size(size, video.unit, requested, total / whole * video.frames)
        return video.target_size(whole, *size)

    if isinstance(content, list):
        frames = _listed(content, settings, target_size)
    else:
        frames = decode(content, settings, target_size)
    return [packed_clip(one) for one in video.clips(frames.files, frames.seconds, frames.fps)]


def _size_of_image(size: tuple[int, int], unit: int, requested: RequestedSize) -> tuple[int, int]:
    """Return the size of a frame as `fetch_image` resizes it."""
    least, most = (tokens * unit**2 for tokens in _OF_IMAGE)
    if requested.size:
        return smart_resize(*requested.size, unit, least, most, shortest=1)
    least, most = requested.min_pixels or least, requested.max_pixels or most
    return smart_resize(*size, unit, min(least, most), most, shortest=1)


def _size(
    size: tuple[int, int], unit: int, requested: RequestedSize, share: float
) -> tuple[int, int]:
    """Return the size of a frame as `fetch_video` resizes it; `share` is its share in pixels."""
    least = requested.min_pixels or _LEAST_TOKENS * unit**2
    most = max(min(_MOST_TOKENS * unit**2, share), int(least * 1.05))
    most = min(most, requested.max_pixels or most)
    return smart_resize(*size, unit, min(least, most), most, shortest=1)


def _listed(
    content: list[object], settings: Mapping[object, object], target_size: TargetSize
) -> Frames:
    """Read the frames of a video that is a list of images."""
    count = len(content)
    if not 1 <= count <= MOST_FRAMES:
        raise BadImage(f"{count} frames", "not a video", f"1 to {MOST_FRAMES} images")
    files = [read_file(one) for one in content]
    sizes = {Image.open(io.BytesIO(file)).size for file in files}
    if len(sizes) > 1:
        got = " and ".join(f"{width} by {height}" for width, height in sorted(sizes)[:2])
        raise BadImage(got, "frames of a video have one size", "frames of the same size")
    (size,) = sizes
    if (own := target_size(size, count)) != size:
        files = [encoded(opened(file).resize(own)) for file in files]
    fps = read_number(settings, "sample_fps", read_number(settings, "fps", FPS))
    return Frames(files, [number / fps for number in range(count)], fps)
