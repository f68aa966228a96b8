"""Reads the videos of rows from cells, as clips of frames resized for the model.

Source of names and numbers: qwen-vl-utils 0.0.14, `vision_process.py`, `fetch_video`, `fetch_image`
and `smart_resize`, by which verl reads videos.
"""

import io
from collections.abc import Mapping
from typing import Final

from PIL import Image

from ppojob_api.problem import counted
from ppojob_trainer.data.media.picture_cells import AS_IT_IS, BadPicture, read_file, wanted_of
from ppojob_trainer.data.media.picture_form import PictureForm, Wanted
from ppojob_trainer.data.media.pictures import encoded, opened
from ppojob_trainer.data.media.smart_resize import smart_resize
from ppojob_trainer.data.media.video_files import (
    FPS,
    MOST_FRAMES,
    Frames,
    Sized,
    decoded,
    number_of,
)
from ppojob_trainer.data.media.videos import packed_clip

_LEAST_TOKENS, _MOST_TOKENS = 128, 768
"""Of a frame, where its row and the job say nothing else."""
_ALL_TOKENS: Final = 128_000 * 0.9
"""Of a video, shared by its frames."""
_OF_PICTURE: Final = 4, 16_384
"""Tokens of a picture: that is what a frame of a list is first, and one of these sides."""
_UNREAD: Final = ("raw_fps",)
"""What qwen-vl-utils reads besides."""
_OF_FILES: Final = ("video_start", "video_end")
"""What says nothing of frames that are there already."""


def read_videos(cell: object, form: PictureForm, wanted: Wanted = AS_IT_IS) -> list[list[bytes]]:
    """The clips of each video of a cell: a list of structs, or one, as verl's rows have them.

    Its frames are as large as is wanted, and as their struct says, by qwen-vl-utils' names.

    Raises:
        BadPicture: something is none, or cannot be read; or the model takes no videos.
    """
    cells = cell if isinstance(cell, list) else [] if cell is None else [cell]
    if cells and form.video is None:
        allowed = "Qwen2-VL, 2.5-VL, 2.5-Omni, Qwen3-VL, 3-Omni or 3.5, or rows without this column"
        raise BadPicture(counted(len(cells), "video"), "this model is shown none", allowed)
    return [_clips(one, form, wanted) for one in cells]


def _clips(cell: object, form: PictureForm, all_want: Wanted) -> list[bytes]:
    video = form.video
    assert video is not None
    told = cell if isinstance(cell, Mapping) else {"video": cell}
    wanted, content = wanted_of(told, all_want), told.get("video")
    unread = _UNREAD + (_OF_FILES if isinstance(content, list) else ())
    if given := next((key for key in unread if told.get(key) is not None), None):
        raise BadPicture(given, "not in this version", "frames of that part and pace")
    total = number_of(told, "total_pixels", _ALL_TOKENS * video.unit**2)

    def sized(size: tuple[int, int], count: int) -> tuple[int, int]:
        whole = video.whole(count)
        if wanted.sides or isinstance(content, list):
            size = _sides_of_picture(size, video.unit, wanted)
        if not wanted.sides:
            size = _sides(size, video.unit, wanted, total / whole * video.frames)
        return video.sides_of(whole, *size)

    if isinstance(content, list):
        frames = _listed(content, told, sized)
    else:
        frames = decoded(content, told, sized)
    return [packed_clip(one) for one in video.clips(frames.files, frames.seconds, frames.fps)]


def _sides_of_picture(size: tuple[int, int], unit: int, wanted: Wanted) -> tuple[int, int]:
    """Of a frame as the picture that it is by itself."""
    least, most = (tokens * unit**2 for tokens in _OF_PICTURE)
    if wanted.sides:
        return smart_resize(*wanted.sides, unit, least, most, shortest=1)
    least, most = wanted.least or least, wanted.most or most
    return smart_resize(*size, unit, min(least, most), most, shortest=1)


def _sides(size: tuple[int, int], unit: int, wanted: Wanted, share: float) -> tuple[int, int]:
    """Of frames of so many pixels at most, before the model's processor sees them."""
    least = wanted.least or _LEAST_TOKENS * unit**2
    most = max(min(_MOST_TOKENS * unit**2, share), int(least * 1.05))
    most = min(most, wanted.most or most)
    return smart_resize(*size, unit, min(least, most), most, shortest=1)


def _listed(content: list[object], told: Mapping[object, object], sized: Sized) -> Frames:
    """Frames that the cell has as pictures."""
    count = len(content)
    if not 1 <= count <= MOST_FRAMES:
        raise BadPicture(f"{count} frames", "no video", f"1 to {MOST_FRAMES} pictures")
    files = [read_file(one) for one in content]
    sizes = {Image.open(io.BytesIO(file)).size for file in files}
    if len(sizes) > 1:
        got = " and ".join(f"{width} by {height}" for width, height in sorted(sizes)[:2])
        raise BadPicture(got, "frames of a video have one size", "frames of the same size")
    (size,) = sizes
    if (own := sized(size, count)) != size:
        files = [encoded(opened(file).resize(own)) for file in files]
    fps = number_of(told, "sample_fps", number_of(told, "fps", FPS))
    return Frames(files, [number / fps for number in range(count)], fps)
