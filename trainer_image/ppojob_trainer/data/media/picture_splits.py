"""Picture format of LFM2-VL: tiles of a large picture, and the whole picture. Loads no torch.

Source: transformers 5, `resize_and_split` of `models/lfm2_vl/image_processing_lfm2_vl.py`, and
`_build_image_tokens` of `models/lfm2_vl/processing_lfm2_vl.py`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from ppojob_trainer.data.media.picture_files import added_tokens, tokens_between
from ppojob_trainer.data.media.picture_form import ResizablePictureForm, nearest_shape
from ppojob_trainer.data.media.picture_settings import SplitsSettings
from ppojob_trainer.errors import ConfigError

_BEGIN: Final = "<|image_start|>"
_END: Final = "<|image_end|>"
_WHOLE: Final = "<|img_thumbnail|>"

_Colours = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Splits(ResizablePictureForm):
    """Picture format of LFM2-VL.

    A picture of up to `most_tokens`, times a tolerance, keeps its aspect ratio about. A larger one
    is resized to a grid of tiles. Before each tile is its name, with its row and column. The whole
    picture follows in the size that it would have without tiles.

    Attributes:
        begin: the token before those of a picture; `end` is that after them.
        names: tokens of the names of tiles, by row and column; empty if pictures are not cut.
        before_whole: tokens between the tiles and the whole picture; empty if it does not follow.
        patch: pixels of a side of a patch of the tower.
        merge: patches of a side that become one token.
        tile: pixels of a side of a tile.
        tiles: the least and the largest number of tiles.
        least_tokens: of a whole picture; `most_tokens` is their upper limit.
        tolerance: a picture of more than `most_tokens` times this is cut.
        resample: Pillow's number of the filter that resizes: 2 is bilinear, 3 is bicubic.
        mean: mean of each colour, of 0 to 1, that is subtracted; `std` is the divisor.
        scale: factor from bytes to 0 to 1.
    """

    begin: int
    end: int
    names: tuple[tuple[tuple[int, ...], ...], ...]
    before_whole: tuple[int, ...]
    patch: int
    merge: int
    tile: int
    tiles: tuple[int, int]
    least_tokens: int
    most_tokens: int
    tolerance: float
    resample: int
    mean: _Colours
    std: _Colours
    scale: float

    @classmethod
    def read(cls, kind: str, settings: SplitsSettings, folder: Path) -> Self | None:
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

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """See `PictureForm`: the picture's own within limits; the processor makes several of it."""
        pixels = width * height
        scale = math.sqrt(min(max(pixels, self.least), self.most) / pixels)
        if scale == 1:
            return width, height
        rounded = math.floor if scale < 1 else math.ceil
        return max(1, rounded(width * scale)), max(1, rounded(height * scale))

    def tokens(self, width: int, height: int) -> list[int]:
        """See `PictureForm`."""
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
        """Whether the whole picture is shown, with so many rows of tiles."""
        return not rows or bool(self.before_whole)

    def whole(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows of the tokens of the whole picture."""
        unit = self.unit
        across, down = (max(1, round(side / unit)) for side in (width, height))
        if across * down > self.most_tokens:
            shrink = math.sqrt((height * width) / (self.most_tokens * unit**2))
            across, down = (max(1, math.floor(side / shrink / unit)) for side in (width, height))
        elif across * down < self.least_tokens:
            enlarge = math.sqrt(self.least_tokens * unit**2 / (height * width))
            across, down = (math.ceil(side * enlarge / unit) for side in (width, height))
        return across, down

    @property
    def _cut_above(self) -> float:
        """Pixels above which a picture is cut."""
        return self.most_tokens * self.unit**2 * self.tolerance

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows of the tiles of a picture; none if it is not cut."""
        unit = self.unit
        across, down = (max(self.patch, round(side / unit) * unit) for side in (width, height))
        if not self.names or across * down <= self._cut_above:
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
