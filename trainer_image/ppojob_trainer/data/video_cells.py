"""Videos of rows out of cells, as clips of frames that are as large as models see them.

Source of names and numbers: qwen-vl-utils 0.0.14, `vision_process.py`, `fetch_video`, by which verl
reads videos.
"""

import io
import math
from collections.abc import Mapping
from typing import Final

from PIL import Image

from ppojob_trainer.data.picture_cells import AS_IT_IS, BadPicture, read_file, wanted_of
from ppojob_trainer.data.picture_forms import PictureForm, Wanted
from ppojob_trainer.data.pictures import encoded, opened
from ppojob_trainer.data.smart_resize import smart_resize
from ppojob_trainer.data.video_files import FPS, MOST_FRAMES, Frames, Sized, decoded, number_of
from ppojob_trainer.data.video_forms import VideoForm
from ppojob_trainer.data.videos import packed_clip

_LEAST_TOKENS, _MOST_TOKENS = 128, 768
"""Of a frame, where its row and the job say nothing else."""
_ALL_TOKENS: Final = 128_000 * 0.9
"""Of a video, shared by its frames."""
_UNREAD: Final = ("total_pixels", "raw_fps")
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
        allowed = "Qwen2-VL, Qwen2.5-VL, Qwen3-VL or Qwen3.5, or rows without this column"
        raise BadPicture(f"{len(cells)} videos", "this model is shown none", allowed)
    return [_clips(one, form, wanted) for one in cells]


def _clips(cell: object, form: PictureForm, all_want: Wanted) -> list[bytes]:
    video = form.video
    assert video is not None
    told = cell if isinstance(cell, Mapping) else {"video": cell}
    wanted, content = wanted_of(told, all_want), told.get("video")
    unread = _UNREAD + (_OF_FILES if isinstance(content, list) else ())
    if given := next((key for key in unread if told.get(key) is not None), None):
        raise BadPicture(given, "not in this version", "frames of that part and size")

    def sized(size: tuple[int, int], count: int) -> tuple[int, int]:
        return video.sides_of(count, *_sides(size, count, video, wanted))

    if isinstance(content, list):
        frames = _listed(content, told, sized)
    else:
        frames = decoded(content, told, sized)
    return [packed_clip(one) for one in video.clips(frames.files, frames.seconds, frames.fps)]


def _sides(size: tuple[int, int], count: int, video: VideoForm, wanted: Wanted) -> tuple[int, int]:
    """Of frames before the model's processor sees them."""
    if wanted.sides:
        return smart_resize(*wanted.sides, video.unit, 0, math.inf)
    pixels = video.unit**2
    least = wanted.least or _LEAST_TOKENS * pixels
    each = min(_MOST_TOKENS * pixels, _ALL_TOKENS * pixels / count * video.frames)
    most = max(each, int(least * 1.05))
    most = min(most, wanted.most or most)
    return smart_resize(*size, video.unit, min(least, most), most)


def _listed(content: list[object], told: Mapping[object, object], sized: Sized) -> Frames:
    """Frames that the cell has as pictures."""
    count = len(content)
    if not 2 <= count <= MOST_FRAMES:
        raise BadPicture(f"{count} frames", "no video", f"2 to {MOST_FRAMES} pictures")
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
