"""How models take pictures: how large they see one, and which tokens stand for it. Loads no torch.

transformers' own classes say it too, but load torch, and the controller must not.
Sources: transformers 5, `get_optimal_tiled_canvas` of
`models/got_ocr2/image_processing_pil_got_ocr2.py`; `get_resize_output_image_size` of
`models/pixtral/image_processing_pil_pixtral.py`; `resize`, `resize_for_vision_encoder` and
`split_images` of `models/idefics3/image_processing_pil_idefics3.py`, and `replace_image_token` of
`models/idefics3/processing_idefics3.py`.
"""

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from PIL import Image

from ppojob_api.problem import printable
from ppojob_trainer.data.picture_files import (
    NEWER,
    OF_VIDEOS,
    PROCESSOR,
    added_tokens,
    read_json,
    tokens_between,
)
from ppojob_trainer.data.picture_settings import (
    CropsSettings,
    GridSettings,
    LinesSettings,
    SquaresSettings,
    TilesSettings,
)
from ppojob_trainer.data.pictures import encoded, opened, unpacked
from ppojob_trainer.data.smart_resize import no_shorter, smart_resize
from ppojob_trainer.data.video_forms import VideoForm
from ppojob_trainer.data.videos import clip_of
from ppojob_trainer.errors import ConfigError

_QWEN: Final = "Qwen2"
_LIMITS: Final = {
    _QWEN: (56 * 56, 28 * 28 * 1280),
    "Glm4v": (112 * 112, 28 * 28 * 15000),
    "Glm46V": (112 * 112, 28 * 28 * 15000),
}
_PATCH, _MERGE, _FRAMES = 14, 2, 2
_TILE, _RATIO, _MOST_TILES = 384, 0.5, 12
_PIXTRAL_PATCH, _LONGEST = 16, 1024
_SQUARE, _SQUARE_PATCH, _SQUARE_TOKENS = 224, 16, 256
_CROP, _CROPS, _CROP_SCALE, _CROP_TOKENS = 364, 4, 2, 169
_TEXT: Final = "text_config"
_AROUND_CROPS: Final = "<fake_token_around_image>"
_AROUND: Final = ("boi", 255_999), ("image", 262_144), ("eoi", 256_000)

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

    @staticmethod
    def read(folder: Path) -> "PictureForm | None":
        """The form of a model in Hugging Face form; None where it sees none."""
        config = read_json(folder / "config.json")
        processor, _, known = _processor_of(folder)
        if known is None or config.get("vision_feature_layer", -1) != -1:
            return None
        of, settings = _KINDS[known]
        try:
            msgspec.convert({**config, "processor": processor}, settings)
        except msgspec.ValidationError:
            return None
        return of(known, config, processor, folder)

    @property
    def told(self) -> Settings:
        """What the model's processor tells that class beside its file."""
        return {}

    @property
    def sees_ahead(self) -> bool:
        """Whether tokens of a picture attend to those behind them in it."""
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
class Grid(PictureForm):
    """Of Qwen and GLM: a picture is whole, in rows and columns of tokens, which positions tell.

    Attributes:
        patch: pixels of a side of what the tower sees at once.
        merge: such patches of a side of what becomes one token.
        least: pixels to which a smaller picture is enlarged, about.
        most: those that a larger one is reduced to.
        of_videos: how the model takes videos; None where it sees none.
    """

    patch: int
    merge: int
    least: float
    most: float
    of_videos: VideoForm | None = None

    @classmethod
    def of(cls, known: str, config: Settings, processor: Settings, folder: Path) -> Self | None:
        """Out of the files of a folder; None where they lack something."""
        token = config.get("image_token_id")
        if not isinstance(token, int):
            return None
        size = processor.get("size") or {}
        least, most = (
            size.get(edge, limit)
            for edge, limit in zip(("shortest_edge", "longest_edge"), _LIMITS[known], strict=True)
        )
        if known == _QWEN:
            least = processor.get("min_pixels") or least
            most = processor.get("max_pixels") or most
        else:  # which counts pixels of a picture that is as many frames of a video
            frames = processor.get("temporal_patch_size", _FRAMES)
            least, most = least / frames, most / frames
        sides = processor.get("patch_size", _PATCH), processor.get("merge_size", _MERGE)
        # In transformers' order.
        videos = read_json(folder / NEWER).get("video_processor") or read_json(folder / OF_VIDEOS)
        form = VideoForm.of(config, videos or processor, math.prod(sides))
        return cls(token, known, *sides, least, most, form)

    @property
    def video(self) -> VideoForm | None:
        """See `PictureForm`."""
        return self.of_videos

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`."""
        unit = self.patch * self.merge
        sides = width, height
        if self.processor != _QWEN:
            sides = no_shorter(*sides, unit)
        return smart_resize(*sides, unit, self.least, self.most)

    def limited(self, wanted: Wanted) -> Self:
        """See `PictureForm`."""
        least, most = wanted.least or self.least, wanted.most or self.most
        return replace(self, least=least, most=max(least, most))

    def written(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
        unit = self.patch * self.merge
        return [self.token] * (width // unit * (height // unit))

    def positions(
        self, ids: Sequence[int], pictures: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Time, height and width of each token of a text, which go on from the highest one.

        Of text all three count on; a picture has one time, and its rows and columns, and so has
        each clip of a video, whose rows and columns are the same.
        """
        found: list[tuple[int, int, int]] = []
        unit = self.patch * self.merge
        begin = after = 0
        places = self.places(ids, pictures, later)
        for (start, *_), file in zip(places, unpacked(pictures), strict=True):
            clip = clip_of(file)
            across, down = (side // unit for side in self.sides(file))
            if clip is None or clip.begins:
                text = range(after, after + start - len(found))
                found += [(n,) * 3 for n in text]
                begin = text.stop
            time = begin + (clip.ahead if clip else 0)
            found += [(time, begin + y, begin + x) for y in range(down) for x in range(across)]
            after = max(begin + max(down, across), time + 1)
        found += [(n,) * 3 for n in range(after, after + len(ids) - len(found))]
        return [list(row) for row in zip(*found, strict=True)]


@dataclass(frozen=True, slots=True)
class Tiles(PictureForm):
    """Of InternVL: a picture is cut into equal tiles, behind which it is seen whole and small.

    Attributes:
        begin: the token in front of those of a picture.
        end: the token behind them.
        tile: width and height in pixels of a tile.
        features: tokens of a tile.
        least: tiles of a picture at least.
        most: tiles at most, without the small one.
    """

    begin: int
    end: int
    tile: tuple[int, int]
    features: int
    least: int
    most: int

    @classmethod
    def of(cls, known: str, config: Settings, processor: Settings, folder: Path) -> Self | None:
        """Out of the files of a folder; None where they lack something."""
        token, marks = config.get("image_token_id"), added_tokens(folder)
        begin, end = marks.get("<img>"), marks.get("</img>")
        if not isinstance(token, int) or begin is None or end is None:
            return None
        size = processor.get("size") or {}
        tile = size.get("width", _TILE), size.get("height", _TILE)
        patch = config["vision_config"].get("patch_size", _PATCH)
        patches = patch if isinstance(patch, list) else [patch, patch]
        ratio = config.get("downsample_ratio", _RATIO)
        down, across = (s // p * ratio for s, p in zip(tile[::-1], patches, strict=True))
        if down != across or down < 1 or not down.is_integer():
            return None  # the tower joins features of a square
        limits = processor.get("min_patches") or 1, processor.get("max_patches") or _MOST_TILES
        return cls(token, known, begin, end, tile, int(down * across), *limits)

    @property
    def told(self) -> Settings:
        """See `PictureForm`."""
        return {"crop_to_patches": True}

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`: those of all tiles of the shape that is nearest to the picture's."""
        sides = range(1, self.most + 1)
        shapes = [(a, d) for a in sides for d in sides if self.least <= a * d <= self.most]
        best, nearest = (1, 1), math.inf
        for across, down in sorted(shapes, key=math.prod):
            off = abs(width / height - across / down)
            is_filled = width * height > 0.5 * math.prod(self.tile) * across * down
            if off < nearest or (off == nearest and is_filled):
                best, nearest = (across, down), off
        return best[0] * self.tile[0], best[1] * self.tile[1]

    def limited(self, wanted: Wanted) -> Self:
        """See `PictureForm`: to whole tiles."""
        pixels = math.prod(self.tile)
        most = min(self.most, max(1, wanted.most // pixels)) if wanted.most else self.most
        least = max(self.least, -(-wanted.least // pixels)) if wanted.least else self.least
        return replace(self, least=min(least, most), most=most)

    def fitted(self, picture: bytes, wanted: Wanted) -> bytes:
        """See `PictureForm`; a picture is left as it is where it has these tiles by itself."""
        sides = self.sides(picture)
        is_fit = not wanted.sides and self.limited(wanted).sides_of(*opened(picture).size) == sides
        return picture if is_fit else super(Tiles, self).fitted(picture, wanted)

    def written(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
        tiles = width * height // math.prod(self.tile)
        seen = self.features * (tiles if tiles == 1 else tiles + 1)
        return [self.begin, *[self.token] * seen, self.end]


@dataclass(frozen=True, slots=True)
class Lines(PictureForm):
    """Of Mistral: a picture is whole, in lines of tokens with one more behind each of them.

    Attributes:
        line_end: the token behind a line.
        end: that behind the last one.
        unit: pixels of a side of what becomes one token.
        longest: pixels of a side at most.
        least: pixels to which a smaller picture is enlarged, about.
        most: those that a larger one is reduced to.
    """

    line_end: int
    end: int
    unit: int
    longest: int
    least: float = 1
    most: float = math.inf

    @classmethod
    def of(cls, known: str, config: Settings, processor: Settings, folder: Path) -> Self | None:
        """Out of the files of a folder; None where they lack something."""
        token, marks = config.get("image_token_index"), added_tokens(folder)
        line_end, end = marks.get("[IMG_BREAK]"), marks.get("[IMG_END]")
        if not isinstance(token, int) or line_end is None or end is None:
            return None
        longest = (processor.get("size") or {}).get("longest_edge", _LONGEST)
        merge = config.get("spatial_merge_size", _MERGE)
        unit = config["vision_config"].get("patch_size", _PIXTRAL_PATCH) * merge
        return cls(token, known, line_end, end, unit, longest)

    @property
    def told(self) -> Settings:
        """See `PictureForm`."""
        return {"patch_size": self.unit}

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`."""
        pixels = width * height
        shrink = max(
            max(height, width) / self.longest,
            math.sqrt(pixels / self.most),
            min(1.0, math.sqrt(pixels / self.least)),
        )
        down, across = (
            max(1, -(-math.floor(side / shrink) // self.unit)) for side in (height, width)
        )
        return across * self.unit, down * self.unit

    def limited(self, wanted: Wanted) -> Self:
        """See `PictureForm`."""
        least, most = wanted.least or self.least, wanted.most or self.most
        return replace(self, least=least, most=max(least, most))

    def written(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
        line = [*[self.token] * (width // self.unit), self.line_end]
        return [*(line * (height // self.unit))[:-1], self.end]


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


@dataclass(frozen=True, slots=True)
class Squares(OwnSizes):
    """Of Gemma 3: a picture is made as large as all others, and seen by all of its tokens at once.

    Attributes:
        begin: text of the token that a template writes for a picture.
        shown: text that the model reads in its place, with `token` once.
        size: width and height in pixels of what is seen.
        features: tokens of a picture.
    """

    begin: str
    shown: str
    size: tuple[int, int]
    features: int

    @classmethod
    def of(cls, known: str, config: Settings, processor: Settings, folder: Path) -> Self | None:
        """Out of the files of a folder; None where they lack something."""
        texts = {id_: text for text, id_ in added_tokens(folder).items()}
        begin, token, end = (config.get(f"{name}_token_index", id_) for name, id_ in _AROUND)
        if not {begin, token, end} <= texts.keys():
            return None
        size = processor.get("size") or {}
        sides = size.get("width", _SQUARE), size.get("height", _SQUARE)
        features = config.get("mm_tokens_per_image", _SQUARE_TOKENS)
        tower = config["vision_config"]
        side, patch = tower.get("image_size", _SQUARE), tower.get("patch_size", _SQUARE_PATCH)
        told = read_json(folder / NEWER).get("image_seq_length", _SQUARE_TOKENS)
        pooled, rest = divmod(side // patch, math.isqrt(features))
        is_whole = math.isqrt(features) ** 2 == features == told and pooled and not rest
        window = (config.get(_TEXT) or {}).get("sliding_window") or features
        if sides != (side, side) or not is_whole or window < features:
            return None  # beyond a window transformers lets tokens see ahead, and vLLM does not
        shown = f"\n\n{texts[begin]}{texts[token]}{texts[end]}\n\n"
        return cls(token, known, texts[begin], shown, sides, features)

    @property
    def told(self) -> Settings:
        """See `PictureForm`."""
        return {"do_pan_and_scan": False}

    @property
    def sees_ahead(self) -> bool:
        """See `PictureForm`."""
        return True

    def rewritten(self, text: str) -> str:
        """See `PictureForm`: with blank lines, which may be one token with what is around them."""
        return text.replace(self.begin, self.shown)

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`."""
        del width, height
        return self.size

    def written(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
        del width, height
        return [self.token] * self.features


@dataclass(frozen=True, slots=True)
class Crops(OwnSizes):
    """Of SmolVLM and Idefics3: a picture is cut into squares, behind which it is seen small.

    Each square has a name in front of its tokens, which tells its row and column.

    Attributes:
        around: the token in front of each name, and behind the last square.
        names: tokens of the names of squares, by row and column.
        whole: those of the name of the small picture.
        line_end: tokens behind a row of squares.
        gap: those behind the last row.
        side: pixels of a side of a square.
        features: tokens of a square behind its name.
        longest: pixels of the longer side of a picture before it is cut; those of a square where
            it is not cut.
    """

    around: int
    names: tuple[tuple[tuple[int, ...], ...], ...]
    whole: tuple[int, ...]
    line_end: tuple[int, ...]
    gap: tuple[int, ...]
    side: int
    features: int
    longest: int

    @classmethod
    def of(cls, known: str, config: Settings, processor: Settings, folder: Path) -> Self | None:
        """Out of the files of a folder; None where they lack something."""
        token, marks = config["image_token_id"], added_tokens(folder)
        if _AROUND_CROPS not in marks or token not in marks.values():
            return None
        side = (processor.get("max_image_size") or {}).get("longest_edge", _CROP)
        longest = (processor.get("size") or {}).get("longest_edge", _CROPS * _CROP)
        tower, scale = config["vision_config"], config.get("scale_factor", _CROP_SCALE)
        features, rest = divmod(side // tower["patch_size"], scale)
        told = read_json(folder / NEWER).get("image_seq_len", _CROP_TOKENS)
        if side != tower["image_size"] or rest or features**2 != told or not features:
            return None
        longest = longest if processor.get("do_image_splitting", True) else side
        lines = range(1, -(-longest // side) + 1)
        texts = [f"<row_{row}_col_{column}>" for row in lines for column in lines]
        texts = ["<global-img>", "\n", "\n\n", *texts]
        try:
            whole, line_end, gap, *each = tokens_between(folder, _AROUND_CROPS, texts)
        except ConfigError:
            return None  # whoever reads the tokenizer tells of it
        around = marks[_AROUND_CROPS]
        names = tuple(tuple(each[n : n + len(lines)]) for n in range(0, len(each), len(lines)))
        return cls(token, known, around, names, whole, line_end, gap, side, told, longest)

    def sides_of(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`: those of all squares."""
        across, down = _as_long(width, height, self.longest)
        if width >= height:
            down = max(down + down % 2, 1)
        else:
            across = max(across + across % 2, 1)
        across, down = _as_long(across, down, self._whole(max(across, down)))
        return self._whole(across), self._whole(down)

    def written(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
        across, down = width // self.side, height // self.side
        seen = [self.token] * self.features
        small = [self.around, *self.whole, *seen, self.around]
        if across == down == 1:
            return small
        found: list[int] = []
        for row in range(down):
            for name in self.names[row][:across]:
                found += [self.around, *name, *seen]
            found += self.gap if row + 1 == down else self.line_end
        return found + small

    def _whole(self, pixels: int) -> int:
        """Pixels of whole squares, of so many at least."""
        return -(-pixels // self.side) * self.side


def _as_long(width: int, height: int, longest: int) -> tuple[int, int]:
    """Width and height of the same shape, with this longer side."""
    ratio = width / height
    return (longest, int(longest / ratio)) if width >= height else (int(longest * ratio), longest)


_Read = Callable[[str, Settings, Settings, Path], PictureForm | None]
_KINDS: Final[Mapping[str, tuple[_Read, type[msgspec.Struct]]]] = {
    **dict.fromkeys(_LIMITS, (Grid.of, GridSettings)),
    "GotOcr2": (Tiles.of, TilesSettings),
    "Pixtral": (Lines.of, LinesSettings),
    "Gemma3": (Squares.of, SquaresSettings),
    **dict.fromkeys(("Idefics3", "SmolVLM"), (Crops.of, CropsSettings)),
}
"""What the names of processors begin with that take pictures as is done here."""


def _processor_of(folder: Path) -> tuple[Any, str, str | None]:
    """What a folder says of its picture processor, its class, and which known one that is.

    Of a folder that says nothing the class is empty.
    """
    # In transformers' order.
    processor = read_json(folder / NEWER).get("image_processor") or read_json(folder / PROCESSOR)
    is_one = isinstance(processor, dict) and processor
    name = str(processor.get("image_processor_type", _QWEN)) if is_one else ""
    return processor, name, next((one for one in _KINDS if name.startswith(one)), None)


def why_shown_none(folder: Path) -> str:
    """Why the model of a folder, which has a vision tower, is shown no pictures; else empty."""
    _, name, known = _processor_of(folder)
    has_tower = name or "vision_config" in read_json(folder / "config.json")
    if not has_tower or PictureForm.read(folder) is not None:
        return ""
    if not name:
        return f"{folder} has neither a {NEWER} nor a {PROCESSOR} with a processor of pictures"
    if known is None:
        return (
            f"the processor of pictures of {folder} is a {printable(name)}, and those are known "
            f"whose names begin with {', '.join(_KINDS)}"
        )
    return (
        f"{folder} has a {printable(name)}, which is known, with settings, a vision_feature_layer "
        "or tokens around pictures that are not"
    )
