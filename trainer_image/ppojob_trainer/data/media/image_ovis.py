"""Image format of Ovis2. Loads no torch.

Sources: transformers 5, `get_min_tile_covering_grid` of
`models/ovis2/image_processing_pil_ovis2.py`, and `replace_image_token` of
`models/ovis2/processing_ovis2.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import Final, Self

from ppojob_trainer.data.media.image_files import NEWER, added_tokens, read_json
from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.image_settings import OvisSettings

_MARK: Final = "<image>"
_AROUND: Final = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
_COVERED: Final = 0.9
"""Share of an image's area that a grid should show in full resolution."""


@dataclass(frozen=True, slots=True)
class OvisImages(ImageForm):
    """Image format of Ovis2: the whole image in one tile, then tiles.

    The tower has features for the tokens between tiles too, so all tokens of an image are such.
    """

    around: tuple[int, ...]  # the tokens of `_AROUND`
    shown: str  # text of `token`, which replaces that of a template
    side: int  # pixels of a side of a tile
    features: int  # tokens of a tile
    most: int  # tiles at most; 1: the whole image only

    @classmethod
    def read(cls, kind: str, settings: OvisSettings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are incomplete or inconsistent."""
        added, token = added_tokens(folder), settings.image_token_id
        texts = {id_: text for text, id_ in added.items()}
        around = tuple(added[one] for one in _AROUND if one in added)
        if token not in texts or around != settings.visual_indicator_token_ids:
            return None
        size, side = settings.processor_size, settings.tower_image_size
        patches, rest = divmod(side // settings.tower_patch_size, settings.tower_hidden_stride)
        features = read_json(folder / NEWER).get("image_seq_length", 256)
        if size is None or (size.height, size.width) != (side, side) or rest:
            return None
        if features != patches**2:
            return None
        most = settings.processor_max_patches if settings.processor_crop_to_patches else 1
        return cls(token, kind, around, texts[token], side, features, most)

    def rewritten(self, text: str) -> str:
        """See `MediaForm`: a template writes a text that is not the token of features."""
        return text.replace(_MARK, self.shown)

    def feature_places(self, token: int, tokens: Sequence[int]) -> list[int]:
        del token
        return list(range(len(tokens)))

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """See `ImageForm`: of all tiles."""
        columns, rows = _covering_grid(width, height, self.side, self.most)
        return columns * self.side, rows * self.side

    def tokens(self, width: int, height: int) -> list[int]:
        columns, rows = width // self.side, height // self.side
        begin, behind_whole, column_end, row_end, end = self.around
        tile = [self.token] * self.features
        found = [begin, *tile, behind_whole]
        for number in range(columns * rows if columns * rows > 1 else 0):
            if number:
                found.append(column_end if number % columns else row_end)
            found += tile
        return [*found, end]


@lru_cache(maxsize=1024)
def _covering_grid(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Return columns and rows of the smallest grid that covers most of an image, or the best."""
    sides = range(1, most + 1)
    grids = sorted((one for one in product(sides, sides) if one[0] * one[1] <= most), key=_tiles)
    covered = {grid: _covered(width, height, grid, side) for grid in grids}
    enough = [grid for grid in grids if covered[grid] > _COVERED]
    if enough:
        return min(enough, key=lambda grid: (_tiles(grid), -covered[grid]))
    return min(grids, key=lambda grid: (-covered[grid], _tiles(grid)))


def _tiles(grid: tuple[int, int]) -> int:
    return grid[0] * grid[1]


def _covered(width: int, height: int, grid: tuple[int, int], side: int) -> float:
    """Return the share of an image that fits into the tiles of a grid.

    transformers cuts rows by its first number here, and columns where it uses the grid.
    """
    down, across = (
        [*(number * (length // count) for number in range(count)), length]
        for length, count in ((height, grid[0]), (width, grid[1]))
    )
    area = 0.0
    for (upper, lower), (left, right) in product(pairwise(down), pairwise(across)):
        shorter, longer = sorted((float(right - left), float(lower - upper)))
        if longer > side:
            longer, shorter = float(side), shorter / longer * side
        area += longer * shorter
    return area / (width * height)
