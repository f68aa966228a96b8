"""Reads the videos of a cell, as clips of frames resized for the model.

Source of names and numbers: qwen-vl-utils 0.0.14, `vision_process.py`, `fetch_video`, `fetch_image`
and `smart_resize`, by which verl reads videos.
"""

import io
from collections.abc import Mapping
from typing import Final

from PIL import Image

from ppojob_api.problem import counted
from ppojob_trainer.data.media.picture_cells import (
    UNCHANGED,
    BadPicture,
    items_of,
    read_file,
    requested_size,
)
from ppojob_trainer.data.media.picture_form import PictureForm, RequestedSize
from ppojob_trainer.data.media.pictures import encoded, opened
from ppojob_trainer.data.media.smart_resize import smart_resize
from ppojob_trainer.data.media.video_files import (
    FPS,
    MOST_FRAMES,
    Frames,
    TargetSize,
    decode,
    read_number,
)
from ppojob_trainer.data.media.videos import packed_clip

_LEAST_TOKENS, _MOST_TOKENS = 128, 768
"""Default limits of a frame."""
_ALL_TOKENS: Final = 128_000 * 0.9
"""Default limit of a video, shared by its frames."""
_OF_PICTURE: Final = 4, 16_384
"""Default limits of a frame that is given as a picture."""
_UNSUPPORTED: Final = ("raw_fps",)
"""Entries of a video's struct that only qwen-vl-utils reads."""
_OF_FILES: Final = ("video_start", "video_end")
"""Entries that apply to video files only."""


def read_videos(
    cell: object, form: PictureForm, requested: RequestedSize = UNCHANGED
) -> list[list[bytes]]:
    """Read the clips of each video of a cell: one struct, or a list, as in verl's rows.

    Frames are resized as requested. The struct of a video overrides the request, by
    qwen-vl-utils' names.
    """
    cells = items_of(cell)
    if cells and form.video is None:
        allowed = "Qwen2-VL, 2.5-VL, 2.5-Omni, Qwen3-VL, 3-Omni or 3.5, or rows without this column"
        raise BadPicture(counted(len(cells), "video"), "this model takes no videos", allowed)
    return [_clips(one, form, requested) for one in cells]


def _clips(cell: object, form: PictureForm, default: RequestedSize) -> list[bytes]:
    video = form.video
    assert video is not None
    settings = cell if isinstance(cell, Mapping) else {"video": cell}
    requested, content = requested_size(settings, default), settings.get("video")
    unsupported = _UNSUPPORTED + (_OF_FILES if isinstance(content, list) else ())
    if given := next((key for key in unsupported if settings.get(key) is not None), None):
        raise BadPicture(given, "not in this version", "frames of that part and rate")
    total = read_number(settings, "total_pixels", _ALL_TOKENS * video.unit**2)

    def target_size(size: tuple[int, int], count: int) -> tuple[int, int]:
        whole = video.in_whole_clips(count)
        if requested.size or isinstance(content, list):
            size = _size_of_picture(size, video.unit, requested)
        if not requested.size:
            size = _size(size, video.unit, requested, total / whole * video.frames)
        return video.target_size(whole, *size)

    if isinstance(content, list):
        frames = _listed(content, settings, target_size)
    else:
        frames = decode(content, settings, target_size)
    return [packed_clip(one) for one in video.clips(frames.files, frames.seconds, frames.fps)]


def _size_of_picture(size: tuple[int, int], unit: int, requested: RequestedSize) -> tuple[int, int]:
    """Return the size of a frame as `fetch_image` resizes it."""
    least, most = (tokens * unit**2 for tokens in _OF_PICTURE)
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
    """Read the frames of a video that is a list of pictures."""
    count = len(content)
    if not 1 <= count <= MOST_FRAMES:
        raise BadPicture(f"{count} frames", "not a video", f"1 to {MOST_FRAMES} pictures")
    files = [read_file(one) for one in content]
    sizes = {Image.open(io.BytesIO(file)).size for file in files}
    if len(sizes) > 1:
        got = " and ".join(f"{width} by {height}" for width, height in sorted(sizes)[:2])
        raise BadPicture(got, "frames of a video have one size", "frames of the same size")
    (size,) = sizes
    if (own := target_size(size, count)) != size:
        files = [encoded(opened(file).resize(own)) for file in files]
    fps = read_number(settings, "sample_fps", read_number(settings, "fps", FPS))
    return Frames(files, [number / fps for number in range(count)], fps)
