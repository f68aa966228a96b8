"""Image format of a model: sizes and tokens of an image. Loads no torch.

transformers' own classes define it too, but load torch, which the controller must not.
"""

import io
import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from PIL import Image

from ppojob_trainer.data.media.audio_form import AudioForm
from ppojob_trainer.data.media.images import audio_of, clip_of, encoded, opened
from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.video_forms import VideoForm


@dataclass(frozen=True, slots=True)
class RequestedSize:
    """The size to which a row or the job resizes an image, before the model's processor does."""

    # Smaller images are enlarged to it; None for the processor's limit.
    min_pixels: int | None = None
    # Larger images are reduced to it; None for the processor's limit.
    max_pixels: int | None = None
    # Width and height instead of the image's own; None for its own.
    size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ImageForm(MediaForm):
    """Image format of a model."""

    @property
    def video(self) -> VideoForm | None:
        """Return the model's video format; None if it takes no videos."""
        return None

    @property
    def audio(self) -> AudioForm | None:
        """Return the model's audio format; None if it takes no audios."""
        return None

    @abstractmethod
    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height to which the model's processor resizes an image, in pixels."""

    @abstractmethod
    def tokens(self, width: int, height: int) -> list[int]:
        """Return the tokens of an image of a target size."""

    def size_of(self, file: bytes) -> tuple[int, int]:
        """Return width and height of the model's input for an image or a clip, in pixels."""
        clip = clip_of(file)
        with Image.open(io.BytesIO(clip.frames[0] if clip else file)) as image:
            return image.size if clip else self.target_size(*image.size)

    def resized(self, file: bytes, requested: RequestedSize) -> bytes:
        """Return an image in the requested size; here unchanged, as the processor sets it."""
        del requested
        return file

    def tokens_of(self, file: bytes) -> tuple[int, list[int]]:
        if self.audio is not None and audio_of(file) is not None:
            return self.audio.tokens_of(file)
        if clip_of(file) is None:
            return self.token, self.tokens(*self.size_of(file))
        assert self.video is not None, "a clip for a model without video input"
        return self.video.token, [self.video.token] * len(self.tokens(*self.size_of(file)))


@dataclass(frozen=True, slots=True)
class ResizableImageForm(ImageForm):
    """Image format of a model whose images may have any size within limits."""

    least: float  # pixels (or tiles) to which a smaller image is enlarged, about
    most: float  # pixels (or tiles) to which a larger one is reduced

    def with_limits(self, requested: RequestedSize) -> Self:
        """Return the format with the requested limits, where there are some."""
        least, most = requested.min_pixels or self.least, requested.max_pixels or self.most
        return replace(self, least=least, most=max(least, most))

    def resized(self, file: bytes, requested: RequestedSize) -> bytes:
        """Return an image in the requested size, or the same file if it has that size.

        Source: qwen-vl-utils, `vision_process.py`, `fetch_image`, by which verl resizes images
        before the model's processor does.
        """
        image = opened(file)
        size = self.with_limits(requested).target_size(*(requested.size or image.size))
        return file if size == image.size else encoded(image.resize(size))


@dataclass(frozen=True, slots=True)
class UnchangedImageForm(ResizableImageForm):
    """Image format whose tokens depend on an image's own size, within limits of a row."""

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """See `ImageForm`: the image's own within limits; the processor makes several of it."""
        pixels = width * height
        scale = math.sqrt(min(max(pixels, self.least), self.most) / pixels)
        if scale == 1:
            return width, height
        rounded = math.floor if scale < 1 else math.ceil
        return max(1, rounded(width * scale)), max(1, rounded(height * scale))


@dataclass(frozen=True, slots=True)
class EqualImageForm(ImageForm):
    """Image format of a model whose images all have one size."""

    size: tuple[int, int]  # width and height in pixels of every image
    features: int  # tokens of an image

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        del width, height
        return self.size

    def tokens(self, width: int, height: int) -> list[int]:
        del width, height
        return [self.token] * self.features


def nearest_shape(
    shapes: Iterable[tuple[int, int]], width: int, height: int, tile: int
) -> tuple[int, int]:
    """Return the grid (columns, rows) whose aspect ratio is nearest to that of an image.

    Among equally near ones a larger grid wins if the image fills half of it; `tile` is the
    number of pixels of a tile.
    """
    best, nearest = (1, 1), math.inf
    for columns, rows in sorted(shapes, key=math.prod):
        off = abs(width / height - columns / rows)
        is_filled = width * height > 0.5 * tile * columns * rows
        if off < nearest or (off == nearest and is_filled):
            best, nearest = (columns, rows), off
    return best


def audio_form_of(form: MediaForm | None) -> AudioForm | None:
    """Return the audio format of a media format; None without audios."""
    if isinstance(form, ImageForm):
        return form.audio
    return form if isinstance(form, AudioForm) else None
