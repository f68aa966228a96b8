"""Picture format of a model: sizes, and the tokens that stand for a picture. Loads no torch.

transformers' own classes define it too, but load torch, which the controller must not.
"""

import io
from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

from PIL import Image

from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.pictures import encoded, opened
from ppojob_trainer.data.media.sound_form import SoundForm
from ppojob_trainer.data.media.sounds import sound_of
from ppojob_trainer.data.media.video_forms import VideoForm
from ppojob_trainer.data.media.videos import clip_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested size of a picture, besides the resizing of the model's processor.

    Attributes:
        least: pixels to which a smaller one is enlarged; None for the processor's.
        most: those that a larger one is reduced to; None for the processor's.
        sides: width and height in place of its own; None for these.
    """

    least: int | None = None
    most: int | None = None
    sides: tuple[int, int] | None = None


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
    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height in pixels at which the model sees a picture of these sides."""

    @abstractmethod
    def limited(self, wanted: Wanted) -> Self:
        """The form of pictures of other numbers of pixels, as far as they are wanted."""

    @abstractmethod
    def written(self, width: int, height: int) -> list[int]:
        """Return the tokens of a picture of the seen size."""

    def sides(self, picture: bytes) -> tuple[int, int]:
        """Width and height in pixels of what the model sees of a picture, or of a clip's frames."""
        clip = clip_of(picture)
        with Image.open(io.BytesIO(clip.frames[0] if clip else picture)) as image:
            return image.size if clip else self.sides_of(*image.size)

    def fitted(self, picture: bytes, wanted: Wanted) -> bytes:
        """A picture as large as its row wants it; the same file where it is.

        Source: qwen-vl-utils, `vision_process.py`, `fetch_image`, by which verl makes pictures as
        large as rows say before the model's processor does.
        """
        image = opened(picture)
        size = self.limited(wanted).sides_of(*(wanted.sides or image.size))
        return picture if size == image.size else encoded(image.resize(size))

    def tokens_of(self, file: bytes) -> tuple[int, list[int]]:
        """See `MediaForm`."""
        if self.sound is not None and sound_of(file) is not None:
            return self.sound.tokens_of(file)
        if clip_of(file) is None:
            return self.token, self.written(*self.sides(file))
        assert self.video is not None, "a clip for a model that sees no videos"
        return self.video.token, [self.video.token] * len(self.written(*self.sides(file)))


@dataclass(frozen=True, slots=True)
class OwnSizes(PictureForm):
    """Of models whose processors say how large a picture is seen, however large it is."""

    def limited(self, wanted: Wanted) -> Self:
        """See `PictureForm`."""
        del wanted
        return self

    def fitted(self, picture: bytes, wanted: Wanted) -> bytes:
        """See `PictureForm`."""
        del wanted
        return picture


def sound_form_of(form: MediaForm | None) -> SoundForm | None:
    """Return the sound format of a media format; None without sounds."""
    if isinstance(form, PictureForm):
        return form.sound
    return form if isinstance(form, SoundForm) else None
