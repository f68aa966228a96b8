"""Settings of vision models and their image processors, as typed structs. Loads no torch.

Fields are named as in the files; defaults are those of transformers 5. transformers reads no folder
with values of other types, so a model with such a folder gets no pictures.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

_Count = Annotated[int, Meta(ge=1)]
_Colours = tuple[float, float, float]
_Sides = Annotated[list[_Count], Meta(min_length=2, max_length=2)]


class PixelLimits(Struct):
    """Limits of a resized picture or video, in pixels; their defaults depend on the processor."""

    shortest_edge: _Count | UnsetType = UNSET
    longest_edge: _Count | UnsetType = UNSET


class TileSize(Struct):
    """Height and width of a tile in pixels."""

    height: _Count = 384
    width: _Count = 384


class SquareSize(Struct):
    """Height and width of a picture in pixels."""

    height: _Count
    width: _Count


class LongestEdge(Struct):
    """Pixels of the longer side of a picture."""

    longest_edge: _Count


class _CutEdge(Struct):
    longest_edge: Annotated[int, Meta(ge=1, le=4096)]  # transformers goes no further


class _GridProcessor(Struct):
    size: PixelLimits | None = None
    min_pixels: _Count | None = None
    max_pixels: _Count | None = None
    patch_size: _Count = 14
    merge_size: _Count = 2
    temporal_patch_size: _Count = 2


class _VideoLimits(Struct):
    shortest_edge: _Count | None = None
    longest_edge: _Count | None = None


class _VideoProcessor(Struct):
    size: _VideoLimits | None = None
    min_pixels: _Count | None = None
    max_pixels: _Count | None = None
    temporal_patch_size: _Count = 2
    cap_pixels_per_frame: bool = False
    max_video_tokens: _Count | None = None


class _GridTower(Struct):
    tokens_per_second: int | float = 4.0


class GridSettings(Struct):
    """A config.json of Qwen or GLM, with its image and video processors."""

    vision_config: _GridTower
    processor: _GridProcessor
    video_processor: _VideoProcessor
    model_type: str = ""
    image_token_id: int | None = None
    image_token_index: int | None = None
    video_token_id: int | None = None
    video_token_index: int | None = None
    position_id_per_seconds: int | float = 25


class _LinesProcessor(Struct):
    size: LongestEdge | None = None
    patch_size: _Count | SquareSize | None = 16


class _LinesTower(Struct):
    patch_size: _Count = 16


class LinesSettings(Struct):
    """A config.json of Mistral or LightOnOCR, with its image processor."""

    vision_config: _LinesTower
    processor: _LinesProcessor
    model_type: str = ""
    image_token_index: int | None = None
    image_token_id: int | None = 151_655
    spatial_merge_size: _Count = 2


class _Pooling(Struct):
    patch_size: _Count = 16
    pooling_kernel_size: _Count = 3


class _PooledProcessor(_Pooling):
    max_soft_tokens: Literal[70, 140, 280, 560, 1120] = 280
    do_resize: Literal[True] = True


class _PooledTower(_Pooling):
    position_embedding_size: _Count = 10_240
    mm_posemb_size: _Count = 1_120


class _PooledText(Struct):
    sliding_window: _Count = 512
    use_bidirectional_attention: str | bool | None = None


class PooledSettings(Struct):
    """A config.json of Gemma 4, with its image processor."""

    vision_config: _PooledTower
    text_config: _PooledText
    processor: _PooledProcessor
    boi_token_id: _Count = 255_999
    image_token_id: _Count = 258_880
    eoi_token_id: _Count = 258_882


class _TilesProcessor(Struct):
    size: TileSize | None = None
    min_patches: _Count | None = None
    max_patches: _Count | None = None


class _TilesTower(Struct):
    patch_size: _Count | _Sides = 14


class TilesSettings(Struct):
    """A config.json of InternVL, with its image processor."""

    vision_config: _TilesTower
    processor: _TilesProcessor
    image_token_id: int | None = None
    downsample_ratio: float = 0.5


class _SquaresProcessor(Struct):
    size: SquareSize | None = None
    do_resize: Literal[True] = True
    do_pan_and_scan: Literal[False] | None = None


class _SquaresTower(Struct):
    image_size: _Count = 224
    patch_size: _Count = 16


class _SquaresText(Struct):
    sliding_window: _Count | None = None


class SquaresSettings(Struct):
    """A config.json of Gemma 3, with its image processor."""

    vision_config: _SquaresTower
    processor: _SquaresProcessor
    text_config: _SquaresText | None = None
    mm_tokens_per_image: _Count = 256
    boi_token_index: _Count = 255_999
    image_token_index: _Count = 262_144
    eoi_token_index: _Count = 256_000


class _CropsProcessor(Struct):
    size: _CutEdge | None = None
    max_image_size: LongestEdge | None = None
    do_resize: Literal[True] = True
    do_image_splitting: bool = True


class _CropsTower(Struct):
    image_size: _Count
    patch_size: _Count


class CropsSettings(Struct):
    """A config.json of SmolVLM or Idefics3, with its image processor."""

    vision_config: _CropsTower
    processor: _CropsProcessor
    image_token_id: int
    scale_factor: _Count = 2


class _SplitsProcessor(Struct):
    downsample_factor: _Count = 2
    do_image_splitting: bool = True
    min_tiles: _Count = 2
    max_tiles: Annotated[int, Meta(ge=1, le=64)] = 10
    use_thumbnail: bool = True
    min_image_tokens: _Count = 64
    max_image_tokens: _Count = 256
    encoder_patch_size: _Count = 16
    tile_size: _Count = 512
    max_pixels_tolerance: int | float = 2.0
    resample: Literal[2, 3] = 2
    do_rescale: Literal[True] = True
    rescale_factor: float = 1 / 255
    do_normalize: Literal[True] = True
    image_mean: _Colours = (0.5, 0.5, 0.5)
    image_std: _Colours = (0.5, 0.5, 0.5)


class _SplitsTower(Struct):
    patch_size: _Count = 16


class SplitsSettings(Struct):
    """A config.json of LFM2-VL, with its image processor."""

    vision_config: _SplitsTower
    processor: _SplitsProcessor
    image_token_id: int = 396
    downsample_factor: _Count = 2
