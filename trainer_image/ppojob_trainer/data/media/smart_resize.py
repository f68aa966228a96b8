"""Resizing of pictures and video frames for models of Qwen and GLM. Loads no torch.

Sources: transformers 5, `smart_resize` of `models/qwen2_vl/image_processing_pil_qwen2_vl.py`,
`models/glm4v/image_processing_pil_glm4v.py` and `models/qwen3_vl/video_processing_qwen3_vl.py`; and
with a shortest side that of qwen-vl-utils 0.0.14, `vision_process.py`.
"""

import math


def smart_resize(
    width: int,
    height: int,
    unit: int,
    least: float,
    most: float,
    *,
    frames: int = 1,
    shortest: int = 0,
) -> tuple[int, int]:
    """Return width and height as multiples of a unit, within limits in pixels, about.

    Smaller pictures than `least` pixels are enlarged, larger ones than `most` reduced; `frames`
    share these pixels. Before that a side has at least `shortest` units.
    """
    down, across = (max(shortest, round(side / unit)) for side in (height, width))
    pixels = frames * down * across * unit**2
    if pixels > most:
        shrink = math.sqrt(frames * height * width / most)
        down, across = (max(1, math.floor(s / shrink / unit)) for s in (height, width))
    elif pixels < least:
        grow = math.sqrt(least / (frames * height * width))
        down, across = (math.ceil(side * grow / unit) for side in (height, width))
    return across * unit, down * unit


def no_shorter(width: int, height: int, unit: int) -> tuple[int, int]:
    """Enlarge width and height, in proportion, so that no side is shorter than a unit."""
    if min(height, width) >= unit:
        return width, height
    grow = max(unit / height, unit / width)
    return int(width * grow), int(height * grow)
