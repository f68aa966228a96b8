"""Pixels of pictures that LFM2-VL cuts into tiles.

transformers has this image processor for torchvision only, which is not installed. These are its
numbers to the bit where the CPU has AVX2: there torchvision resizes bytes by PyTorch's
`interpolate`, too.

Source: transformers 5, `models/lfm2_vl/image_processing_lfm2_vl.py`.
"""

from typing import Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from ppojob_trainer.data.media.picture_squares import Splits

_FILTERS: Final = {2: "bilinear", 3: "bicubic"}
"""By Pillow's numbers."""


def tower_inputs(image: Image.Image, form: Splits) -> dict[str, Tensor]:
    """Return the inputs of the tower for a picture.

    Returns:
        `pixel_values`, (n, y x 3) float32 patches of the tiles, row by row, then of the whole
        picture, and `spatial_shapes`, (tiles, 2) int64 rows and columns of the patches of each.
    """
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    columns, rows = form.grid(*image.size)
    across, down = form.whole(*image.size)
    parts: list[Tensor] = []
    if rows:
        large = _resized(pixels, (rows * form.tile, columns * form.tile), form)
        lines = torch.split(large, form.tile, dim=2)
        parts += [tile for line in lines for tile in torch.split(line, form.tile, dim=3)]
    if form.has_whole(rows):
        parts.append(_resized(pixels, (down * form.unit, across * form.unit), form))
    shapes = [[side // form.patch for side in one.shape[2:]] for one in parts]
    patches = torch.cat([_patches(one, form) for one in parts])
    return {"pixel_values": patches, "spatial_shapes": torch.tensor(shapes)}


def _resized(pixels: Tensor, size: tuple[int, int], form: Splits) -> Tensor:
    """Resize (1, 3, y, x) bytes."""
    if pixels.shape[2:] == size:
        return pixels
    mode = _FILTERS[form.resample]
    return functional.interpolate(pixels, size, mode=mode, align_corners=False, antialias=True)


def _patches(pixels: Tensor, form: Splits) -> Tensor:
    """Normalize (1, 3, y, x) bytes, and cut them into patches (n, y x 3)."""
    # In the order of transformers' products.
    mean, std = (
        (torch.tensor(one) * (1.0 / form.scale)).view(3, 1, 1) for one in (form.mean, form.std)
    )
    values, side = (pixels.float() - mean) / std, form.patch
    down, across = (length // side for length in values.shape[2:])
    cut = values.reshape(3, down, side, across, side)
    return cut.permute(1, 3, 2, 4, 0).reshape(-1, side * side * 3)
