"""Picture format of a model: sizes and tokens of a picture. Loads no torch.

transformers' own classes define it too, but load torch, which the controller must not.
"""

import io
import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from PIL import Image

from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.pictures import clip_of, encoded, opened, sound_of
from ppojob_trainer.data.media.sound_form import SoundForm
from ppojob_trainer.data.media.video_forms import VideoForm


@dataclass(frozen=True, slots=True)
class RequestedSize:
    """The size to which a row or the job resizes a picture, before the model's processor does."""

    # Smaller pictures are enlarged to it; None for the processor's limit.
    min_pixels: int | None = None
    # Larger pictures are reduced to it; None for the processor's limit.
    max_pixels: int | None = None
    # Width and height instead of the picture's own; None for its own.
    size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PictureForm(MediaForm):
    """Picture format of a model."""

    @property
    def video(self) -> VideoForm | None:
        """Return the model's video format; None if it takes no videos."""
        return None

    @property
    def sound(self) -> SoundForm | None:
        """Return the model's sound format; None if it takes no sounds."""
        return None

    @abstractmethod
    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height to which the model's processor resizes a picture, in pixels."""

    @abstractmethod
    def tokens(self, width: int, height: int) -> list[int]:
        """Return the tokens of a picture of a target size."""

    def size_of(self, picture: bytes) -> tuple[int, int]:
        """Return width and height of the model's input for a picture or a clip, in pixels."""
        clip = clip_of(picture)
        with Image.open(io.BytesIO(clip.frames[0] if clip else picture)) as image:
            return image.size if clip else self.target_size(*image.size)

    def resized(self, picture: bytes, requested: RequestedSize) -> bytes:
        """Return a picture in the requested size; here unchanged, as the processor sets it."""
        del requested
        return picture

    def tokens_of(self, file: bytes) -> tuple[int, list[int]]:
        if self.sound is not None and sound_of(file) is not None:
            return self.sound.tokens_of(file)
        if clip_of(file) is None:
            return self.token, self.tokens(*self.size_of(file))
        assert self.video is not None, "a clip for a model without video input"
        return self.video.token, [self.video.token] * len(self.tokens(*self.size_of(file)))


@dataclass(frozen=True, slots=True)
class ResizablePictureForm(PictureForm):
    """Picture format of a model whose pictures may have any size within limits."""

    least: float  # pixels (or tiles) to which a smaller picture is enlarged, about
    most: float  # pixels (or tiles) to which a larger one is reduced

    def with_limits(self, requested: RequestedSize) -> Self:
        """Return the format with the requested limits, where there are some."""
        least, most = requested.min_pixels or self.least, requested.max_pixels or self.most
        return replace(self, least=least, most=max(least, most))

    def resized(self, picture: bytes, requested: RequestedSize) -> bytes:
        """Return a picture in the requested size, or the same file if it has that size.

        Source: qwen-vl-utils, `vision_process.py`, `fetch_image`, by which verl resizes pictures
        before the model's processor does.
        """
        image = opened(picture)
        size = self.with_limits(requested).target_size(*(requested.size or image.size))
        return picture if size == image.size else encoded(image.resize(size))


@dataclass(frozen=True, slots=True)
class UnchangedPictureForm(ResizablePictureForm):
    """Picture format whose tokens depend on a picture's own size, within limits of a row."""

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`: the picture's own within limits; the processor makes several of it."""
        pixels = width * height
        scale = math.sqrt(min(max(pixels, self.least), self.most) / pixels)
        if scale == 1:
            return width, height
        rounded = math.floor if scale < 1 else math.ceil
        return max(1, rounded(width * scale)), max(1, rounded(height * scale))


@dataclass(frozen=True, slots=True)
class EqualPictureForm(PictureForm):
    """Picture format of a model whose pictures all have one size."""

    size: tuple[int, int]  # width and height in pixels of every picture
    features: int  # tokens of a picture

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        del width, height
        return self.size

    def tokens(self, width: int, height: int) -> list[int]:
        del width, height
        return [self.token] * self.features


def nearest_shape(
    shapes: Iterable[tuple[int, int]], width: int, height: int, tile: int
) -> tuple[int, int]:
    """Return the grid (columns, rows) whose aspect ratio is nearest to that of a picture.

    Among equally near ones a larger grid wins if the picture fills half of it; `tile` is the
    number of pixels of a tile.
    """
    best, nearest = (1, 1), math.inf
    for columns, rows in sorted(shapes, key=math.prod):
        off = abs(width / height - columns / rows)
        is_filled = width * height > 0.5 * tile * columns * rows
        if off < nearest or (off == nearest and is_filled):
            best, nearest = (columns, rows), off
    return best


def sound_form_of(form: MediaForm | None) -> SoundForm | None:
    """Return the sound format of a media format; None without sounds."""
    if isinstance(form, PictureForm):
        return form.sound
    return form if isinstance(form, SoundForm) else None
