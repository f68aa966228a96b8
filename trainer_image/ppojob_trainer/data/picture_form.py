"""How a model takes pictures: how large it sees one, and which tokens stand for it. Loads no torch.

transformers' own classes say it too, but load torch, and the controller must not.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from PIL import Image

from ppojob_trainer.data.pictures import encoded, opened, unpacked
from ppojob_trainer.data.video_forms import VideoForm
from ppojob_trainer.data.videos import clip_of

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How large a picture is wanted, beside what the model's processor makes of it.

    Attributes:
        least: pixels to which a smaller one is enlarged; None for the processor's.
        most: those that a larger one is reduced to; None for the processor's.
        sides: width and height in place of its own; None for these.
    """

    least: int | None = None
    most: int | None = None
    sides: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PictureForm(ABC):
    """How a model takes pictures.

    Attributes:
        token: what stands for a picture in text, and then as often as the tower gives features.
        processor: what the name of transformers' class for it begins with.
    """

    token: int
    processor: str

    @property
    def told(self) -> Settings:
        """What the model's processor tells that class beside its file."""
        return {}

    @property
    def sees_ahead(self) -> bool:
        """Whether tokens of a picture attend to those behind them in it."""
        return False

    @property
    def ahead_in_windows(self) -> bool:
        """Whether they do in layers that see a window, and in no other."""
        return False

    def rewritten(self, text: str) -> str:
        """The text of a conversation with pictures, as a template writes it, for the tokenizer."""
        return text

    @property
    def video(self) -> VideoForm | None:
        """How the model takes videos; None where it sees none."""
        return None

    @abstractmethod
    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """Width and height in pixels of what the model sees of a picture of these sides."""

    @abstractmethod
    def limited(self, wanted: Wanted) -> Self:
        """The form of pictures of other numbers of pixels, as far as they are wanted."""

    @abstractmethod
    def written(self, width: int, height: int) -> list[int]:
        """The tokens of a picture of which the model sees so many pixels."""

    def positions(
        self, ids: Sequence[int], pictures: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Rows of positions of the tokens of a text: one, or time, height and width.

        Pictures are those of `places`.
        """
        del pictures, later
        return [list(range(len(ids)))]

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

    def marks(self, pictures: bytes) -> list[tuple[int, list[int]]]:
        """Of each token that a template writes for what is seen: it, and all in its place."""
        found: list[tuple[int, list[int]]] = []
        for file in unpacked(pictures):
            clip = clip_of(file)
            token, written = self._written(file)
            if clip is None or clip.begins:
                found.append((token, written))
            else:
                found[-1][1].extend(written)
        return found

    def expanded(self, ids: Sequence[int], pictures: bytes) -> list[int]:
        """A prompt with all tokens of each picture in place of the one that stands for it."""
        if not pictures:
            return list(ids)
        marks = self.marks(pictures)
        tokens, written = {token for token, _ in marks}, iter(marks)
        return [one for id_ in ids for one in (next(written)[1] if id_ in tokens else [id_])]

    def _written(self, file: bytes) -> tuple[int, list[int]]:
        """The token of which there are features of a picture or a clip, and its tokens."""
        if clip_of(file) is None:
            return self.token, self.written(*self.sides(file))
        assert self.video is not None, "a clip for a model that sees no videos"
        return self.video.token, [self.video.token] * len(self.written(*self.sides(file)))

    def places(
        self, ids: Sequence[int], pictures: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Of each picture of a text the places of its tokens for which there are features.

        Those of a prompt are found by its tokens. `later` are the first such places of those behind
        it, the last of the pictures: there the policy may draw such a token itself, which is text.
        """
        files = unpacked(pictures)
        starts: list[int | None] = [*[None] * (len(files) - len(later)), *later]
        found: list[list[int]] = []
        end = 0
        for file, start in zip(files, starts, strict=True):
            token, written = self._written(file)
            seen = [place for place, one in enumerate(written) if one == token]
            begin = (ids.index(token, end) if start is None else start) - seen[0]
            found.append([begin + place for place in seen])
            end = begin + len(written)
        return found


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
