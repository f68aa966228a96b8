"""Reads the images of a cell, resized as the job or the row requests. Loads no torch.

Readers raise `BadImage` for what cannot be read.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from PIL import Image, UnidentifiedImageError

from ppojob_api.problem import shown
from ppojob_trainer.data.media.image_form import ImageForm, RequestedSize
from ppojob_trainer.data.media.images import opened
from ppojob_trainer.errors import BadInput

UNCHANGED: Final = RequestedSize()
_SOURCES: Final = ("bytes", "image", "image_url", "path")
"""Names of the image in a struct: those of `datasets` and of qwen-vl-utils."""
_LONGEST_SIDES: Final = 200
_MOST_PIXELS: Final = Image.MAX_IMAGE_PIXELS or 2**26


class BadImage(BadInput):
    """A cell holds an image, video or audio that cannot be read."""


def read_images(
    cell: object, form: ImageForm | None = None, requested: RequestedSize = UNCHANGED
) -> list[bytes]:
    """Read the encoded images of a cell: one, or a list; each is bytes, a path, or a struct.

    With a format they are resized as requested. The struct of an image overrides the request, by
    qwen-vl-utils' names: `min_pixels` and `max_pixels`, or `resized_height` and `resized_width`.
    """
    found = [(read_file(one), requested_size(one, requested)) for one in items_of(cell)]
    if form is None:
        return [file for file, _ in found]
    return [file if own == UNCHANGED else form.resized(file, own) for file, own in found]


def items_of(cell: object) -> list[object]:
    """Return the items of a cell that holds a list, one item, or nothing."""
    return cell if isinstance(cell, list) else [] if cell is None else [cell]


def requested_size(cell: object, default: RequestedSize) -> RequestedSize:
    """Return the size that an image's struct requests, or else the default."""
    if not isinstance(cell, Mapping):
        return default
    keys = ("min_pixels", "max_pixels", "resized_width", "resized_height")
    for key in keys:
        pixels = cell.get(key)
        if pixels is not None and not (type(pixels) is int and 0 < pixels <= _MOST_PIXELS):
            why = f"{key} sets the size of the image"
            raise BadImage(shown(pixels), why, f"an integer from 1 to {_MOST_PIXELS}, or null")
    least, most, width, height = (cell.get(key) for key in keys)
    if least is not None and most is not None and least > most:
        why = f"it is more than max_pixels {most}"
        raise BadImage(f"min_pixels {least}", why, "at most max_pixels")
    if not width or not height:
        # A limit of the image itself wins over a default that contradicts it.
        least, most = least or default.min_pixels, most or default.max_pixels
        if least and most and least > most:
            least, most = (least, None) if cell.get("min_pixels") else (None, most)
        return RequestedSize(least, most)
    if max(width, height) > _LONGEST_SIDES * min(width, height):
        raise _too_long(width, height)
    return RequestedSize(default.min_pixels, default.max_pixels, (width, height))


def read_file(cell: object) -> bytes:
    """Read one encoded image: bytes, a path, or a struct with one of these."""
    content: object = cell
    if isinstance(cell, Mapping):
        content = next((cell[key] for key in _SOURCES if cell.get(key)), None)
    named = shown(content) if isinstance(content, str) else "bytes that are not an image"
    if isinstance(content, str):
        content = bytes_at(content, "image")
    if not isinstance(content, bytes):
        allowed = "a list of structs with bytes or a path"
        raise BadImage(type(content).__name__, "it is not an image", allowed)
    try:
        sides = opened(content).size
    except Exception as error:  # each of Pillow's formats raises errors of its own
        why = " ".join(str(error).split())
        if isinstance(error, UnidentifiedImageError):  # its text has a memory address
            why = "unknown image format"
        raise BadImage(named, why, "a complete PNG, JPEG or similar file") from None
    if max(sides) > _LONGEST_SIDES * min(sides):
        raise _too_long(*sides)
    return content


def bytes_at(path: str, noun: str) -> bytes:
    """Read a file, or the content of a data: URL; `noun` is for messages."""
    head, is_base64, text = path.partition(";base64,")
    try:
        if is_base64 and head.startswith("data:"):
            return base64.b64decode("".join(text.split()), validate=True)
        return Path(path.removeprefix("file://")).read_bytes()
    except (OSError, ValueError) as error:  # a path with a null character is no OSError
        why = getattr(error, "strerror", None) or "it cannot be read"
        raise BadImage(
            shown(path), why, f"the path of a {noun}, its bytes, or data:...;base64,..."
        ) from None


def _too_long(width: int, height: int) -> BadImage:
    allowed = f"an aspect ratio of at most {_LONGEST_SIDES}"
    return BadImage(f"{width} by {height} pixels", "no model takes such a shape", allowed)
