"""Image formats of LLaVA: a square, or the squares of a grid. Loads no torch.

Sources: transformers 5, `select_best_resolution` of `image_processing_utils.py`, and
`_get_number_of_features` of `models/llava_onevision/processing_llava_onevision.py`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from msgspec.structs import astuple

from ppojob_trainer.data.media.image_files import added_tokens
from ppojob_trainer.data.media.image_form import EqualImageForm, UnchangedImageForm
from ppojob_trainer.data.media.image_settings import LlavaSettings

_ONEVISION: Final = "llava_onevision"
_CROPPING: Final = ("CLIPImage", "LlavaImage", "LlavaNextImage")
"""Processors that cut a square from the middle of an image, unless told otherwise."""
_GRIDS: Final = {
    "llava_next": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    _ONEVISION: [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)],
}


def _token_of(settings: LlavaSettings, folder: Path) -> int | None:
    """Return the token of an image; None if the tokenizer does not add it."""
    token = settings.image_token_index
    token = settings.image_token_id if token is None else token
    if token is None:
        token = 151_646 if settings.model_type == _ONEVISION else 32_000
    return token if token in added_tokens(folder).values() else None


def _sides_of(kind: str, settings: LlavaSettings) -> tuple[int, int]:
    """Return pixels and tokens of a side of a square; (0, 0) if settings are inconsistent."""
    sizes = [settings.processor_size]
    if kind in _CROPPING and settings.processor_do_center_crop is not False:
        sizes.append(settings.processor_crop_size)
    elif settings.processor_size and settings.processor_size.shortest_edge:
        return 0, 0  # an image would keep its aspect ratio
    pixels = [side for one in sizes if one for side in astuple(one) if side is not None]
    strategy = settings.vision_feature_select_strategy
    strategy = strategy or ("full" if settings.model_type == _ONEVISION else "default")
    # CLIP has a token of the whole image, which "default" drops.
    is_dropped = (strategy == "default") == (settings.tower_model_type == "clip_vision_model")
    own = settings.tower_image_size
    if None in sizes or {*pixels} != {own} or not is_dropped:
        return 0, 0
    return own, own // settings.tower_patch_size


@dataclass(frozen=True, slots=True)
class LlavaImages(EqualImageForm):
    """Image format of LLaVA 1.5: every image is one square."""

    @classmethod
    def read(cls, kind: str, settings: LlavaSettings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are inconsistent."""
        token, (pixels, side) = _token_of(settings, folder), _sides_of(kind, settings)
        if token is None or not side or settings.model_type in _GRIDS:
            return None
        return cls(token, kind, (pixels, pixels), side**2)


@dataclass(frozen=True, slots=True)
class LlavaNextImages(UnchangedImageForm):
    """Image format of LLaVA-NeXT and LLaVA-OneVision.

    The whole image in one square, then in the squares of a grid, without what is padding. Each
    line of the grid ends with a token of its own.
    """

    grids: tuple[tuple[int, int], ...]  # height and width in pixels of each grid
    tile: int  # pixels of a side of a square
    side: int  # tokens of a side of a square
    most_tiles: float  # squares to whose tokens those of a grid are reduced, about

    @classmethod
    def read(cls, kind: str, settings: LlavaSettings, folder: Path) -> Self | None:
        """Read the format from a model's settings; None if they are inconsistent."""
        token, (tile, side) = _token_of(settings, folder), _sides_of(kind, settings)
        if token is None or not side or settings.model_type not in _GRIDS:
            return None
        default = _GRIDS[settings.model_type]
        grids = settings.image_grid_pinpoints or default
        is_whole = not any(length % tile for grid in grids for length in grid)
        if not is_whole or grids != (settings.processor_image_grid_pinpoints or default):
            return None
        is_reduced = settings.model_type == _ONEVISION
        most = int(settings.vision_aspect_ratio.rpartition("_")[2]) if is_reduced else math.inf
        pairs = tuple((down, across) for down, across in grids)
        return cls(token, kind, 0, math.inf, pairs, tile, side, most)

    def tokens(self, width: int, height: int) -> list[int]:
        down, across = (length // self.tile * self.side for length in self._grid(width, height))
        if width / height > across / down:
            rows = int(round(height * (across / width), 7))
            down -= (down - rows) // 2 * 2
        else:
            columns = int(round(width * (down / height), 7))
            across -= (across - columns) // 2 * 2
        ratio = math.sqrt(down * across / (self.most_tiles * self.side**2))
        if ratio > 1.1:
            down, across = int(down // ratio), int(across // ratio)
        return [self.token] * (self.side**2 + down * (across + 1))

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the grid in which most of an image's pixels are seen, and least is padding."""

        def seen(grid: tuple[int, int]) -> tuple[int, int]:
            scale = min(grid[1] / width, grid[0] / height)
            pixels = min(int(width * scale) * int(height * scale), width * height)
            return pixels, -math.prod(grid)

        return max(self.grids, key=seen)
