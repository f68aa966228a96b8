"""Reads the pictures of rows from cells, resized as the job or the row asks. Loads no torch."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from PIL import Image, UnidentifiedImageError

from ppojob_api.problem import shown
from ppojob_trainer.data.media.picture_form import PictureForm, Wanted
from ppojob_trainer.data.media.pictures import opened
from ppojob_trainer.errors import Wrong

AS_IT_IS: Final = Wanted()
_LONGEST_SIDES: Final = 200
_MOST_PIXELS: Final = Image.MAX_IMAGE_PIXELS or 2**26


class BadPicture(Wrong):
    """A cell holds no pictures that can be read."""


def read_pictures(
    cell: object, form: PictureForm | None = None, wanted: Wanted = AS_IT_IS
) -> list[bytes]:
    """The encoded pictures of a cell: a list of structs with bytes or a path, or of one of these.

    For a model with a form they are as large as is wanted, and as their structs say, by
    qwen-vl-utils' names: `min_pixels` and `max_pixels`, or `resized_height` and `resized_width`.

    Raises:
        BadPicture: something is none, or cannot be read.
    """
    cells = cell if isinstance(cell, list) else [] if cell is None else [cell]
    found = [(read_file(one), wanted_of(one, wanted)) for one in cells]
    if form is None:
        return [file for file, _ in found]
    return [file if own == AS_IT_IS else form.fitted(file, own) for file, own in found]


def wanted_of(cell: object, all_want: Wanted) -> Wanted:
    """Return the size that a picture's struct asks for, or else the default for all."""
    if not isinstance(cell, Mapping):
        return all_want
    keys = ("min_pixels", "max_pixels", "resized_width", "resized_height")
    for key in keys:
        pixels = cell.get(key)
        if pixels is not None and not (type(pixels) is int and 0 < pixels <= _MOST_PIXELS):
            why = f"{key} says how large the picture is to be"
            raise BadPicture(shown(pixels), why, f"an integer from 1 to {_MOST_PIXELS}, or none")
    least, most, width, height = (cell.get(key) for key in keys)
    if least is not None and most is not None and least > most:
        why = f"it is more than max_pixels {most}"
        raise BadPicture(f"min_pixels {least}", why, "as many or fewer")
    if not width or not height:
        # What a picture says of itself counts before what is said of all.
        least, most = least or all_want.least, most or all_want.most
        if least and most and least > most:
            least, most = (least, None) if cell.get("min_pixels") else (None, most)
        return Wanted(least, most)
    if max(width, height) > _LONGEST_SIDES * min(width, height):
        raise _too_long(width, height)
    return Wanted(all_want.least, all_want.most, (width, height))


def read_file(cell: object) -> bytes:
    """The encoded picture of a cell.

    Raises:
        BadPicture: it is none, or cannot be read.
    """
    content: object = cell
    if isinstance(cell, Mapping):
        content = cell.get("bytes") or cell.get("path")
    named = shown(content) if isinstance(content, str) else "bytes that are no picture"
    if isinstance(content, str):
        content = bytes_at(content, "picture")
    if not isinstance(content, bytes):
        allowed = "a list of structs with bytes or a path"
        raise BadPicture(type(content).__name__, "it is no picture", allowed)
    try:
        sides = opened(content).size
    except Exception as error:  # each format of Pillow's raises its own
        why = " ".join(str(error).split())
        if isinstance(error, UnidentifiedImageError):  # it tells an address in memory
            why = "no picture of a known format"
        raise BadPicture(named, why, "a whole PNG, JPEG or the like") from None
    if max(sides) > _LONGEST_SIDES * min(sides):
        raise _too_long(*sides)
    return content


def bytes_at(path: str, noun: str) -> bytes:
    """The file of a picture, or of what else `noun` says, or what a data: URL holds.

    Raises:
        BadPicture: it cannot be read.
    """
    head, is_base64, text = path.partition(";base64,")
    try:
        if is_base64 and head.startswith("data:"):
            return base64.b64decode("".join(text.split()), validate=True)
        return Path(path.removeprefix("file://")).read_bytes()
    except (OSError, ValueError) as error:  # a path with a null character is no OSError
        why = getattr(error, "strerror", None) or "it cannot be read"
        raise BadPicture(
            shown(path), why, f"the path of a {noun}, its bytes, or data:...;base64,..."
        ) from None


def _too_long(width: int, height: int) -> BadPicture:
    allowed = f"sides of which one is at most {_LONGEST_SIDES} times the other"
    return BadPicture(f"{width} by {height} pixels", "no model takes it", allowed)
