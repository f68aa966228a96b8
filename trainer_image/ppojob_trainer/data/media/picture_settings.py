"""Settings of picture processors, as in their files. Loads no torch.

transformers reads no folder with other types, so such a model sees no pictures.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

_Number = Annotated[int, Meta(ge=1)]
_Sides = Annotated[list[_Number], Meta(min_length=2, max_length=2)]
_May = _Number | UnsetType


class _Limits(Struct):
    shortest_edge: _May = UNSET
    longest_edge: _May = UNSET


class _TileSize(Struct):
    height: _May = UNSET
    width: _May = UNSET


class _SquareSize(Struct):
    height: _Number
    width: _Number


class _LongestEdge(Struct):
    longest_edge: _Number


class _CutEdge(Struct):
    longest_edge: Annotated[int, Meta(ge=1, le=4096)]  # transformers goes no further


class _GridProcessor(Struct):
    size: _Limits | None = None
    min_pixels: _Number | None = None
    max_pixels: _Number | None = None
    patch_size: _May = UNSET
    merge_size: _May = UNSET
    temporal_patch_size: _May = UNSET


class _TilesProcessor(Struct):
    size: _TileSize | None = None
    min_patches: _Number | None = None
    max_patches: _Number | None = None


class _LinesProcessor(Struct):
    size: _LongestEdge | None = None


class _SquaresProcessor(Struct):
    size: _SquareSize | None = None
    do_resize: Literal[True] | UnsetType = UNSET
    do_pan_and_scan: Literal[False] | None = None


class _CropsProcessor(Struct):
    size: _CutEdge | None = None
    max_image_size: _LongestEdge | None = None
    do_resize: Literal[True] | UnsetType = UNSET
    do_image_splitting: bool | UnsetType = UNSET


class _PooledProcessor(Struct):
    patch_size: _May = UNSET
    pooling_kernel_size: _May = UNSET
    max_soft_tokens: Literal[70, 140, 280, 560, 1120] | UnsetType = UNSET
    do_resize: Literal[True] | UnsetType = UNSET


class _TilesTower(Struct):
    patch_size: _Number | _Sides | UnsetType = UNSET


class _LinesTower(Struct):
    patch_size: _May = UNSET


class _SquaresTower(Struct):
    image_size: _May = UNSET
    patch_size: _May = UNSET


class _CropsTower(Struct):
    image_size: _Number
    patch_size: _Number


class _PooledTower(Struct):
    patch_size: _May = UNSET
    pooling_kernel_size: _May = UNSET
    position_embedding_size: _May = UNSET
    mm_posemb_size: _May = UNSET


class _SquaresText(Struct):
    sliding_window: _Number | None = None


class _PooledText(Struct):
    sliding_window: _May = UNSET


class GridSettings(Struct):
    """A config.json, with the settings of its processor."""

    vision_config: dict[str, Any]
    processor: _GridProcessor


class TilesSettings(Struct):
    """See `GridSettings`."""

    vision_config: _TilesTower
    processor: _TilesProcessor
    downsample_ratio: float | UnsetType = UNSET


class LinesSettings(Struct):
    """See `GridSettings`."""

    vision_config: _LinesTower
    processor: _LinesProcessor
    spatial_merge_size: _May = UNSET


class SquaresSettings(Struct):
    """See `GridSettings`."""

    vision_config: _SquaresTower
    processor: _SquaresProcessor
    text_config: _SquaresText | None = None
    mm_tokens_per_image: _May = UNSET
    boi_token_index: _May = UNSET
    image_token_index: _May = UNSET
    eoi_token_index: _May = UNSET


class CropsSettings(Struct):
    """See `GridSettings`."""

    vision_config: _CropsTower
    processor: _CropsProcessor
    image_token_id: int
    scale_factor: _May = UNSET


class PooledSettings(Struct):
    """See `GridSettings`."""

    vision_config: _PooledTower
    text_config: _PooledText
    processor: _PooledProcessor
    boi_token_id: _May = UNSET
    image_token_id: _May = UNSET
    eoi_token_id: _May = UNSET
