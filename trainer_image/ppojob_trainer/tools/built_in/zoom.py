"""Zooms in on the first image of a row, as verl's `image_zoom_in_tool` does.

Source: verl until May 2026, `verl/tools/image_zoom_in_tool.py`.
"""

from math import ceil, floor
from types import SimpleNamespace
from typing import Final

from ppojob_trainer.data.media.images import opened
from ppojob_trainer.tools.built_in.tool import BuiltIn, Call

_LEAST: Final = 28
_LONGEST_SIDES: Final = 100
_PENALTY: Final = -0.05
_MISSING: Final = "Error: bbox_2d parameter is missing or not a list of 4 numbers."
_DOES: Final = (
    "Zoom in on a specific region of an image by cropping it based on a bounding box (bbox) and an "
    "optional object label."
)
_BOX: Final = (
    "The bounding box of the region to zoom in, as [x1, y1, x2, y2], where (x1, y1) is the "
    "top-left corner and (x2, y2) is the bottom-right corner."
)
_LABEL: Final = "The name or label of the object in the specified bounding box (optional)."
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def image_zoom_in_tool(call: Call) -> object:
    """Return the part of the image in a box, or an error text and a penalty.

    Boxes are in pixels of the model's input. The original image is cropped, which may be larger;
    verl crops the model's input.
    """
    if not call.images:
        raise ValueError("the row has no image")
    seen, given = call.images[0], call.arguments["bbox_2d"]
    if not isinstance(given, list) or len(given) != 4:
        return _MISSING, _PENALTY
    left, top, right, bottom = (float(str(one)) for one in given)
    box = within((left, top, right, bottom), seen.width, seen.height)
    if box is None:
        wrong = "is invalid or results in a crop smaller than the minimum size of"
        return f"Error: The specified bounding box {given} {wrong} {_LEAST}x{_LEAST}.", _PENALTY
    image = opened(seen.file)
    begin, end = (
        (round(x * image.width / seen.width), round(y * image.height / seen.height))
        for x, y in (box[:2], box[2:])
    )
    cut = image.crop((*begin, max(begin[0] + 1, end[0]), max(begin[1] + 1, end[1])))
    label = call.arguments.get("label")
    named = f" with label {label}" if label else ""
    text = f"Zoomed in on the image to the region {given}{named}."
    return SimpleNamespace(text=text, image=[cut], video=None)


def within(box: Box, width: int, height: int) -> Box | None:
    """Clip a box to an image, with sides of at least 28 pixels; None if that is impossible.

    A box that is too small grows around its centre, within the image.
    """
    left, top, right, bottom = box
    left, top, right, bottom = max(0.0, left), max(0.0, top), min(width, right), min(height, bottom)
    if not _is_box(left, top, right, bottom):
        return None
    across, down = right - left, bottom - top
    if min(across, down) < _LEAST:
        middle = (left + right) / 2, (top + bottom) / 2
        grows = _LEAST / min(across, down)
        grows *= min(1.0, width / (across * grows))
        grows *= min(1.0, height / (down * grows))
        across, down = across * grows, down * grows
        left = min(max(0.0, middle[0] - across / 2), width - across)
        top = min(max(0.0, middle[1] - down / 2), height - down)
        left, right, top, bottom = floor(left), ceil(left + across), floor(top), ceil(top + down)
    is_large = min(floor(right) - floor(left), floor(bottom) - floor(top)) >= _LEAST
    return (left, top, right, bottom) if is_large and _is_box(left, top, right, bottom) else None


def _is_box(left: float, top: float, right: float, bottom: float) -> bool:
    across, down = right - left, bottom - top
    return across > 0 and down > 0 and max(across, down) <= _LONGEST_SIDES * min(across, down)


TOOL: Final = BuiltIn(
    image_zoom_in_tool,
    _DOES,
    {
        "type": "object",
        "properties": {
            "bbox_2d": {"type": "array", "items": {"type": "number"}, "description": _BOX},
            "label": {"type": "string", "description": _LABEL},
        },
        "required": ["bbox_2d"],
    },
    shows=True,
)
