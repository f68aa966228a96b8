"""Image formats of square tiles, one or several per image. Loads no torch.

Sources: transformers 5, `get_optimal_tiled_canvas` of
`models/got_ocr2/image_processing_pil_got_ocr2.py`; `replace_image_token` of
`models/aya_vision/processing_aya_vision.py`; `resize`, `resize_for_vision_encoder` and
`split_images` of `models/idefics3/image_processing_pil_idefics3.py`, and `replace_image_token` of
`models/idefics3/processing_idefics3.py`; `resize_and_split` of
`models/lfm2_vl/image_processing_lfm2_vl.py`, and `_build_image_tokens` of
`models/lfm2_vl/processing_lfm2_vl.py`.
"""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Final, Self

from ppojob_trainer.data.media.image_files import NEWER, added_tokens, read_json, tokens_between
from ppojob_trainer.data.media.image_form import (
    EqualImageForm,
    ImageForm,
    RequestedSize,
    ResizableImageForm,
    UnchangedImageForm,
    nearest_shape,
)
from ppojob_trainer.data.media.image_settings import (
    Gemma3Settings,
    Idefics3Settings,
    InternVlSettings,
    Lfm2VlSettings,
    LongestEdge,
    SquareSize,
    TileSize,
)
from ppojob_trainer.data.media.images import opened
from ppojob_trainer.errors import ConfigError

_MOST_TILES: Final = 12
_AYA: Final = "aya_vision"
_AYA_MARK: Final = "<image>"
_AROUND_TILES: Final = "<img>", "</img>"
_AROUND_NAMED: Final = "<|START_OF_IMG|>", "<|END_OF_IMG|>"
_SQUARE: Final = SquareSize(224, 224)
_SQUARE_TOKENS: Final = 256
_CROP, _CROPPED = LongestEdge(364), LongestEdge(4 * 364)
_CROP_TOKENS: Final = 169
_AROUND_CROPS: Final = "<fake_token_around_image>"
_BEGIN: Final = "<|image_start|>"
_END: Final = "<|image_end|>"
_WHOLE: Final = "<|img_thumbnail|>"
_Colours = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class InternVlImages(ResizableImageForm):
    """Image format of InternVL: equal tiles, then the whole image in the size of a tile.

    `least` and `most` are numbers of tiles, without the last one.
    """

    least: int
    most: int
    begin: int  # the token before those of an image
    end: int  # the token after them
    tile: tuple[int, int]  # width and height in pixels of a tile
    features: int  # tokens of a tile
    processor_arguments: ClassVar = {"crop_to_patches": True}

    @classmethod
    def read(cls, kind: str, settings: InternVlSettings, folder: Path) -> "InternVlImages | None":
        """Read the format from a model's settings; None if they are incomplete or inconsistent."""
        token, ratio, around = settings.image_token_id, settings.downsample_ratio, _AROUND_TILES
        if is_named := settings.model_type == _AYA:
            token = settings.image_token_index if token is None else token
            ratio, around = 1 / settings.downsample_factor, _AROUND_NAMED
        added = added_tokens(folder)
        begin, end = (added.get(one) for one in around)
        if token is None or begin is None or end is None:
            return None
        patch, size = settings.tower_patch_size, settings.processor_size or TileSize()
        patches = patch if isinstance(patch, list) else [patch, patch]
        down, across = (
            side // own * ratio
            for side, own in zip((size.height, size.width), patches, strict=True)
        )
        if down != across or down < 1 or not down.is_integer():
            return None  # the tower joins features of a square
        most = settings.processor_max_patches or _MOST_TILES
        limits = settings.processor_min_patches or 1, most
        tile = size.width, size.height
        tiles = cls(token, kind, *limits, begin, end, tile, int(down * across))
        return tiles._named(folder) if is_named else tiles

    def _named(self, folder: Path) -> "AyaImages | None":
        """Return the format with names of tiles; None if the tokenizer lacks a token."""
        texts = {id_: text for text, id_ in added_tokens(folder).items()}
        names = ["TILE_GLOBAL", *(f"TILE_{number}" for number in range(1, self.most + 1))]
        try:
            whole, *each = tokens_between(folder, _AROUND_NAMED[0], names)
        except ConfigError:
            return None  # `ChatTokenizer` reports it
        if self.token not in texts:
            return None
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return AyaImages(**own, names=tuple(each), whole=whole, shown=texts[self.token])

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """See `ImageForm`: of all tiles, in the layout nearest to the image's aspect ratio."""
        sides = range(1, self.most + 1)
        shapes = [(a, d) for a in sides for d in sides if self.least <= a * d <= self.most]
        across, down = nearest_shape(shapes, width, height, math.prod(self.tile))
        return across * self.tile[0], down * self.tile[1]

    def with_limits(self, requested: RequestedSize) -> Self:
        """See `ResizableImageForm`: limits are rounded to whole tiles."""
        pixels = math.prod(self.tile)
        least, most = self.least, self.most
        if requested.max_pixels:
            most = min(most, max(1, requested.max_pixels // pixels))
        if requested.min_pixels:
            least = max(least, -(-requested.min_pixels // pixels))
        return replace(self, least=min(least, most), most=most)

    def resized(self, image: bytes, requested: RequestedSize) -> bytes:
        """See `ImageForm`; an image that has the requested tiles already is unchanged."""
        size = self.with_limits(requested).target_size(*opened(image).size)
        if not requested.size and size == self.size_of(image):
            return image
        return super(InternVlImages, self).resized(image, requested)

    def tokens(self, width: int, height: int) -> list[int]:
        tiles = width * height // math.prod(self.tile)
        seen = self.features * (tiles if tiles == 1 else tiles + 1)
        return [self.begin, *[self.token] * seen, self.end]


@dataclass(frozen=True, slots=True)
class AyaImages(InternVlImages):
    """Image format of Aya Vision: tiles as InternVL's, each after its name."""

    names: tuple[tuple[int, ...], ...]  # tokens of the names of tiles, in their order
    whole: tuple[int, ...]  # those of the name of the whole image
    shown: str  # text of `token`, which replaces that of a template

    def rewritten(self, text: str) -> str:
        """See `MediaForm`: a template writes a text that need not be a token."""
        return text.replace(_AYA_MARK, self.shown)

    def tokens(self, width: int, height: int) -> list[int]:
        tiles = width * height // math.prod(self.tile)
        names = self.names[:tiles] if tiles > 1 else ()
        seen = [self.token] * self.features
        named = [one for name in (*names, self.whole) for one in (*name, *seen)]
        return [self.begin, *named, self.end]


@dataclass(frozen=True, slots=True)
class Gemma3Images(EqualImageForm):
    """Image format of Gemma 3: one size, and bidirectional attention among an image's tokens."""

    begin: str  # text of the token that a template writes for an image
    shown: str  # text that replaces it, with `token` once
    processor_arguments: ClassVar = {"do_pan_and_scan": False}
    sees_ahead: ClassVar = True

    @classmethod
    def read(cls, kind: str, settings: Gemma3Settings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are incomplete or inconsistent."""
        texts = {id_: text for text, id_ in added_tokens(folder).items()}
        token = settings.image_token_index
        begin, end = settings.boi_token_index, settings.eoi_token_index
        if not {begin, token, end} <= texts.keys():
            return None
        size, side = settings.processor_size or _SQUARE, settings.tower_image_size
        features = settings.mm_tokens_per_image
        written = read_json(folder / NEWER).get("image_seq_length", _SQUARE_TOKENS)
        pooled, rest = divmod(side // settings.tower_patch_size, math.isqrt(features))
        is_whole = math.isqrt(features) ** 2 == features == written and pooled and not rest
        window = settings.text_sliding_window or features
        # Beyond a window attention is bidirectional in transformers, and causal in vLLM.
        if (size.width, size.height) != (side, side) or not is_whole or window < features:
            return None
        shown = f"\n\n{texts[begin]}{texts[token]}{texts[end]}\n\n"
        return cls(token, kind, (side, side), features, texts[begin], shown)

    def rewritten(self, text: str) -> str:
        """See `MediaForm`: adds blank lines, which may form one token with the text around them."""
        return text.replace(self.begin, self.shown)


@dataclass(frozen=True, slots=True)
class Idefics3Images(ImageForm):
    """Image format of SmolVLM and Idefics3: squares, then the whole image in one square.

    Before the tokens of a square is its name, with its row and column.
    """

    around: int  # the token before each name, and after the last square
    # Tokens of the names of squares, by row and column.
    names: tuple[tuple[tuple[int, ...], ...], ...]
    whole: tuple[int, ...]  # those of the name of the whole image
    line_end: tuple[int, ...]  # tokens after a row of squares
    gap: tuple[int, ...]  # tokens after the last row
    side: int  # pixels of a side of a square
    features: int  # tokens of a square after its name
    # Pixels of the longer side of an image before it is cut; those of a square if it is not cut.
    longest: int

    @classmethod
    def read(cls, kind: str, settings: Idefics3Settings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are incomplete or inconsistent."""
        token, added = settings.image_token_id, added_tokens(folder)
        if _AROUND_CROPS not in added or token not in added.values():
            return None
        side = (settings.processor_max_image_size or _CROP).longest_edge
        root, rest = divmod(side // settings.tower_patch_size, settings.scale_factor)
        features = read_json(folder / NEWER).get("image_seq_len", _CROP_TOKENS)
        if side != settings.tower_image_size or rest or root**2 != features or not root:
            return None
        longest = side
        if settings.processor_do_image_splitting:
            longest = (settings.processor_size or _CROPPED).longest_edge
        lines = range(1, -(-longest // side) + 1)
        texts = [f"<row_{row}_col_{column}>" for row in lines for column in lines]
        texts = ["<global-img>", "\n", "\n\n", *texts]
        try:
            whole, line_end, gap, *each = tokens_between(folder, _AROUND_CROPS, texts)
        except ConfigError:
            return None  # `ChatTokenizer` reports it
        around = added[_AROUND_CROPS]
        names = tuple(tuple(each[n : n + len(lines)]) for n in range(0, len(each), len(lines)))
        return cls(token, kind, around, names, whole, line_end, gap, side, features, longest)

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """See `ImageForm`: of all squares."""
        across, down = _as_long(width, height, self.longest)
        if width >= height:
            down = max(down + down % 2, 1)
        else:
            across = max(across + across % 2, 1)
        across, down = _as_long(across, down, self._whole(max(across, down)))
        return self._whole(across), self._whole(down)

    def tokens(self, width: int, height: int) -> list[int]:
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
        """Round pixels up to whole squares."""
        return -(-pixels // self.side) * self.side


def _as_long(width: int, height: int, longest: int) -> tuple[int, int]:
    """Scale width and height to this longer side."""
    ratio = width / height
    return (longest, int(longest / ratio)) if width >= height else (int(longest * ratio), longest)


@dataclass(frozen=True, slots=True)
class Lfm2VlImages(UnchangedImageForm):
    """Image format of LFM2-VL.

    An image of up to `most_tokens`, times a tolerance, keeps its aspect ratio about. A larger one
    is resized to a grid of tiles. Before each tile is its name, with its row and column. The whole
    image follows in the size that it would have without tiles.
    """

    begin: int  # the token before those of an image
    end: int  # the token after them
    # Tokens of the names of tiles, by row and column; empty if images are not cut.
    names: tuple[tuple[tuple[int, ...], ...], ...]
    # Tokens between the tiles and the whole image; empty if it does not follow.
    before_whole: tuple[int, ...]
    patch: int  # pixels of a side of a patch of the tower
    merge: int  # patches of a side that become one token
    tile: int  # pixels of a side of a tile
    tiles: tuple[int, int]  # the least and the largest number of tiles
    least_tokens: int  # of a whole image
    most_tokens: int  # of a whole image
    tolerance: float  # an image of more than `most_tokens` times this is cut
    resample: int  # Pillow's number of the filter that resizes: 2 is bilinear, 3 is bicubic
    mean: _Colours  # mean of each colour, of 0 to 1, that is subtracted
    std: _Colours  # the divisor after that
    scale: float  # factor from bytes to 0 to 1

    @classmethod
    def read(cls, kind: str, settings: Lfm2VlSettings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are incomplete or inconsistent."""
        token, added = settings.image_token_id, added_tokens(folder)
        patch, merge = settings.processor_encoder_patch_size, settings.processor_downsample_factor
        if (patch, merge) != (settings.tower_patch_size, settings.downsample_factor):
            return None
        fewest, most = settings.processor_min_tiles, settings.processor_max_tiles
        # With a grid of one tile transformers counts the tokens of another size.
        is_cut = settings.processor_do_image_splitting and (fewest, most) != (1, 1)
        tile = settings.processor_tile_size
        if is_cut and (not 2 <= fewest <= most or tile % (patch * merge)):
            return None
        if not {_BEGIN, _END, _WHOLE} <= added.keys() or token not in added.values():
            return None
        sides = range(1, most + 1) if is_cut else ()
        texts = [f"<|img_row_{row}_col_{column}|>" for row in sides for column in sides]
        try:
            whole, *each = tokens_between(folder, _BEGIN, [_WHOLE, *texts])
        except ConfigError:
            return None  # `ChatTokenizer` reports it
        return cls(
            token,
            kind,
            least=0,
            most=math.inf,
            begin=added[_BEGIN],
            end=added[_END],
            names=tuple(tuple(each[n : n + most]) for n in range(0, len(each), most)),
            before_whole=whole if settings.processor_use_thumbnail else (),
            patch=patch,
            merge=merge,
            tile=tile,
            tiles=(fewest, most),
            least_tokens=settings.processor_min_image_tokens,
            most_tokens=settings.processor_max_image_tokens,
            tolerance=settings.processor_max_pixels_tolerance,
            resample=settings.processor_resample,
            mean=settings.processor_image_mean,
            std=settings.processor_image_std,
            scale=settings.processor_rescale_factor,
        )

    @property
    def unit(self) -> int:
        """Pixels of a side of a token."""
        return self.patch * self.merge

    def tokens(self, width: int, height: int) -> list[int]:
        columns, rows = self.grid(width, height)
        across, down = self.whole(width, height)
        tile = [self.token] * (self.tile // self.unit) ** 2
        found = [self.begin]
        for row in self.names[:rows]:
            for name in row[:columns]:
                found += [*name, *tile]
        if rows:
            found += self.before_whole
        if self.has_whole(rows):
            found += [self.token] * (across * down)
        return [*found, self.end]

    def has_whole(self, rows: int) -> bool:
        """Whether the whole image is shown, with so many rows of tiles."""
        return not rows or bool(self.before_whole)

    def whole(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows of the tokens of the whole image."""
        unit = self.unit
        across, down = (max(1, round(side / unit)) for side in (width, height))
        if across * down > self.most_tokens:
            shrink = math.sqrt((height * width) / (self.most_tokens * unit**2))
            across, down = (max(1, math.floor(side / shrink / unit)) for side in (width, height))
        elif across * down < self.least_tokens:
            enlarge = math.sqrt(self.least_tokens * unit**2 / (height * width))
            across, down = (math.ceil(side * enlarge / unit) for side in (width, height))
        return across, down

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows of the tiles of an image; none if it is not cut."""
        unit = self.unit
        across, down = (max(self.patch, round(side / unit) * unit) for side in (width, height))
        if not self.names or across * down <= self.most_tokens * unit**2 * self.tolerance:
            return 0, 0
        fewest, most = self.tiles
        shapes = {
            (columns, rows)
            for tiles in range(fewest, most + 1)
            for columns in range(1, tiles + 1)
            for rows in range(1, tiles + 1)
            if fewest <= columns * rows <= most
        }
        # Of several grids with as many tiles transformers takes that which its set has last: this
        # set is built as its own is.
        return nearest_shape(shapes, width, height, self.tile**2)
