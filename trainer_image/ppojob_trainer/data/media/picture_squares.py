"""Picture formats of fixed-size square tiles, one or several per picture. Loads no torch.

Sources: transformers 5, `get_optimal_tiled_canvas` of
`models/got_ocr2/image_processing_pil_got_ocr2.py`; `resize`, `resize_for_vision_encoder` and
`split_images` of `models/idefics3/image_processing_pil_idefics3.py`, and `replace_image_token` of
`models/idefics3/processing_idefics3.py`.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from ppojob_trainer.data.media.media_form import Settings
from ppojob_trainer.data.media.picture_files import NEWER, added_tokens, read_json, tokens_between
from ppojob_trainer.data.media.picture_form import OwnSizes, PictureForm, Wanted
from ppojob_trainer.data.media.pictures import opened
from ppojob_trainer.errors import ConfigError

_PATCH: Final = 14
_TILE, _RATIO, _MOST_TILES = 384, 0.5, 12
_SQUARE, _SQUARE_PATCH, _SQUARE_TOKENS = 224, 16, 256
_CROP, _CROPS, _CROP_SCALE, _CROP_TOKENS = 364, 4, 2, 169
_TEXT: Final = "text_config"
_AROUND_CROPS: Final = "<fake_token_around_image>"
_AROUND: Final = ("boi", 255_999), ("image", 262_144), ("eoi", 256_000)


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
