"""How large models of Qwen and GLM see pictures and frames of videos. Loads no torch.

Sources: transformers 5, `smart_resize` of `models/qwen2_vl/image_processing_pil_qwen2_vl.py`,
`models/glm4v/image_processing_pil_glm4v.py` and `models/qwen3_vl/video_processing_qwen3_vl.py`.
"""

import math


def smart_resize(
    width: int,
    height: int,
    unit: int,
    least: float,
    most: float,
    *,
    frames: tuple[int, int] = (1, 1),
) -> tuple[int, int]:
    """Sides as multiples of a unit, for so many pixels about as are allowed.

    Frames are those that share the pixels: as there are, and as the model counts them.
    """
    there, counted = frames
    down, across = (round(side / unit) for side in (height, width))
    pixels = counted * down * across * unit**2
    if pixels > most:
        shrink = math.sqrt(there * height * width / most)
        down, across = (max(1, math.floor(s / shrink / unit)) for s in (height, width))
    elif pixels < least:
        grow = math.sqrt(least / (there * height * width))
        down, across = (math.ceil(side * grow / unit) for side in (height, width))
    return across * unit, down * unit


def no_shorter(width: int, height: int, unit: int) -> tuple[int, int]:
    """Sides of which none is shorter than a unit, of the same shape."""
    if min(height, width) >= unit:
        return width, height
    grow = max(unit / height, unit / width)
    return int(width * grow), int(height * grow)
