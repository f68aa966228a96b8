"""Settings of vision models and their image processors, as typed structs. Loads no torch.

Fields are named as in config.json; those of a section of it, or of a processor's file, have a
prefix: `tower_` for vision_config, `text_` for text_config, `processor_` and `video_`. Defaults are
those of transformers 5. transformers reads no folder with values of other types, so a model with
such a folder gets no images.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

_Count = Annotated[int, Meta(ge=1)]
_Colours = tuple[float, float, float]
_Sides = Annotated[list[_Count], Meta(min_length=2, max_length=2)]


class PixelLimits(Struct):
    """Limits of a resized image or video, in pixels; their defaults depend on the processor."""

    shortest_edge: _Count | UnsetType = UNSET
    longest_edge: _Count | UnsetType = UNSET


class TileSize(Struct):
    """Height and width of a tile in pixels."""

    height: _Count = 384
    width: _Count = 384


class SquareSize(Struct):
    """Height and width of an image in pixels."""

    height: _Count
    width: _Count


class LongestEdge(Struct):
    """Pixels of the longer side of an image."""

    longest_edge: _Count


class ImageSides(Struct):
    """Pixels of the shorter side of an image, or of both sides."""

    shortest_edge: _Count | None = None
    height: _Count | None = None
    width: _Count | None = None


class _CutEdge(Struct):
    longest_edge: Annotated[int, Meta(ge=1, le=4096)]  # transformers goes no further


class _VideoLimits(Struct):
    shortest_edge: _Count | None = None
    longest_edge: _Count | None = None


class QwenSettings(Struct):
    """Settings of Qwen or GLM."""

    model_type: str = ""
    image_token_id: int | None = None
    image_token_index: int | None = None
    video_token_id: int | None = None
    video_token_index: int | None = None
    position_id_per_seconds: int | float = 25
    tower_tokens_per_second: int | float = 4.0
    processor_size: PixelLimits | None = None
    processor_min_pixels: _Count | None = None
    processor_max_pixels: _Count | None = None
    processor_patch_size: _Count = 14
    processor_merge_size: _Count = 2
    processor_temporal_patch_size: _Count = 2
    video_size: _VideoLimits | None = None
    video_min_pixels: _Count | None = None
    video_max_pixels: _Count | None = None
    video_temporal_patch_size: _Count = 2
    video_cap_pixels_per_frame: bool = False
    video_max_video_tokens: _Count | None = None


class MistralSettings(Struct):
    """Settings of Mistral, Pixtral or LightOnOCR."""

    model_type: str = ""
    vision_feature_layer: int | list[int] = -2
    vision_feature_select_strategy: str = "default"
    image_token_index: int | None = None
    image_token_id: int | None = 151_655
    spatial_merge_size: _Count = 2
    tower_patch_size: _Count = 16
    processor_size: LongestEdge | None = None
    processor_patch_size: _Count | SquareSize | None = 16


class Gemma4Settings(Struct):
    """Settings of Gemma 4."""

    boi_token_id: _Count = 255_999
    image_token_id: _Count = 258_880
    eoi_token_id: _Count = 258_882
    tower_patch_size: _Count = 16
    tower_pooling_kernel_size: _Count = 3
    tower_position_embedding_size: _Count = 10_240
    tower_mm_posemb_size: _Count = 1_120
    text_sliding_window: _Count = 512
    text_use_bidirectional_attention: str | bool | None = None
    processor_patch_size: _Count = 16
    processor_pooling_kernel_size: _Count = 3
    processor_max_soft_tokens: Literal[70, 140, 280, 560, 1120] = 280
    processor_do_resize: Literal[True] = True


class InternVlSettings(Struct):
    """Settings of InternVL or Aya Vision."""

    model_type: str = ""
    image_token_id: int | None = None
    image_token_index: int | None = None
    downsample_ratio: float = 0.5
    downsample_factor: _Count = 2
    tower_patch_size: _Count | _Sides = 14
    processor_size: TileSize | None = None
    processor_min_patches: _Count | None = None
    processor_max_patches: _Count | None = None


class LlavaSettings(Struct):
    """Settings of LLaVA 1.5, LLaVA-NeXT or LLaVA-OneVision."""

    model_type: Literal["llava", "llava_next", "llava_onevision"]
    tower_model_type: Literal["clip_vision_model", "siglip_vision_model"]
    tower_image_size: _Count
    tower_patch_size: _Count
    image_token_index: int | None = None
    image_token_id: int | None = None
    vision_feature_select_strategy: Literal["default", "full"] | None = None
    vision_aspect_ratio: Annotated[str, Meta(pattern=r"^anyres_max_[1-9]\d?$")] = "anyres_max_9"
    image_grid_pinpoints: list[_Sides] | None = None
    processor_image_grid_pinpoints: list[_Sides] | None = None
    processor_size: ImageSides | None = None
    processor_crop_size: ImageSides | None = None
    processor_do_resize: Literal[True] = True
    processor_do_center_crop: bool | None = None


class Gemma3Settings(Struct):
    """Settings of Gemma 3."""

    mm_tokens_per_image: _Count = 256
    boi_token_index: _Count = 255_999
    image_token_index: _Count = 262_144
    eoi_token_index: _Count = 256_000
    tower_image_size: _Count = 224
    tower_patch_size: _Count = 16
    text_sliding_window: _Count | None = None
    processor_size: SquareSize | None = None
    processor_do_resize: Literal[True] = True
    processor_do_pan_and_scan: Literal[False] | None = None


class Idefics3Settings(Struct):
    """Settings of SmolVLM or Idefics3."""

    image_token_id: int
    tower_image_size: _Count
    tower_patch_size: _Count
    scale_factor: _Count = 2
    processor_size: _CutEdge | None = None
    processor_max_image_size: LongestEdge | None = None
    processor_do_resize: Literal[True] = True
    processor_do_image_splitting: bool = True


class OvisSettings(Struct):
    """Settings of Ovis2."""

    image_token_id: int = 151_665
    visual_indicator_token_ids: tuple[int, ...] = tuple(range(151_666, 151_671))
    tower_image_size: _Count = 224
    tower_patch_size: _Count = 14
    tower_hidden_stride: _Count = 1
    tower_tokenize_function: Literal["softmax", "st_argmax"] = "softmax"  # not a random one
    processor_size: ImageSides | None = None
    processor_crop_to_patches: bool = False
    processor_max_patches: Annotated[int, Meta(ge=1, le=64)] = 12
    processor_use_covering_area_grid: Literal[True] = True
    processor_do_resize: Literal[True] = True


class Lfm2VlSettings(Struct):
    """Settings of LFM2-VL."""

    image_token_id: int = 396
    downsample_factor: _Count = 2
    tower_patch_size: _Count = 16
    processor_downsample_factor: _Count = 2
    processor_do_image_splitting: bool = True
    processor_min_tiles: _Count = 2
    processor_max_tiles: Annotated[int, Meta(ge=1, le=64)] = 10
    processor_use_thumbnail: bool = True
    processor_min_image_tokens: _Count = 64
    processor_max_image_tokens: _Count = 256
    processor_encoder_patch_size: _Count = 16
    processor_tile_size: _Count = 512
    processor_max_pixels_tolerance: int | float = 2.0
    processor_resample: Literal[2, 3] = 2
    processor_do_rescale: Literal[True] = True
    processor_rescale_factor: float = 1 / 255
    processor_do_normalize: Literal[True] = True
    processor_image_mean: _Colours = (0.5, 0.5, 0.5)
    processor_image_std: _Colours = (0.5, 0.5, 0.5)
