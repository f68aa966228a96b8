"""Picture files of rows, and placeholders for them in messages. Loads no torch.

Among them are the clips of videos, in the order of what a text shows (`data.videos`), and for
models that hear there are sounds in their place (`data.sounds`). Encoded files are what travels:
those of a prompt as one value (`packed`), and with their places those that tools show a row behind
it (`LaterPicture`). Source of the form of messages: verl 0.8, `utils/dataset/rl_dataset.py`,
`_build_messages`.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from PIL import Image

from ppojob_trainer.data.media.sounds import MARK as SOUND
from ppojob_trainer.data.media.sounds import sound_of
from ppojob_trainer.data.media.videos import MARK as VIDEO
from ppojob_trainer.data.media.videos import clip_of, parts_of
from ppojob_trainer.json_value import Json

COLUMN: Final = "images"
MARK: Final = "<image>"
MOST_BYTES: Final = 32 * 1024 * 1024
"""Limit of all pictures of a row, for tools."""
_MARKS: Final = re.compile(f"{MARK}|{VIDEO}|{SOUND}")
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
"""Files that are opened: Pillow would start a program for some others."""
_KEPT: Final = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
"""Modes of pictures that PNG has, as models see them."""

Messages = Sequence[Mapping[str, Json]]


class LaterPicture(msgspec.Struct, frozen=True, array_like=True):
    """A picture after the prompt of a row.

    Attributes:
        start: its first token that stands for what is seen, as the response counts them.
        file: encoded.
    """

    start: int
    file: bytes


def packed(pictures: Sequence[bytes]) -> bytes:
    """The pictures of a prompt as one value; empty for none."""
    return msgspec.msgpack.encode(pictures) if pictures else b""


def unpacked(pictures: bytes) -> list[bytes]:
    """The pictures again."""
    return msgspec.msgpack.decode(pictures, type=list[bytes]) if pictures else []


def packed_later(pictures: Sequence[LaterPicture]) -> bytes:
    """The pictures of a row behind its prompt as one value; empty for none."""
    return msgspec.msgpack.encode(pictures) if pictures else b""


def unpacked_later(pictures: bytes) -> list[LaterPicture]:
    """The pictures again."""
    return msgspec.msgpack.decode(pictures, type=list[LaterPicture]) if pictures else []


def opened(picture: bytes) -> Image.Image:
    """A picture as models see it, in red, green and blue; RGBA on white where it is transparent.

    Pillow refuses a picture by its size before it decodes it: what asks for gigabytes ends a pod.
    Source: qwen-vl-utils, `vision_process.py`, `to_rgb`, which verl opens pictures by.

    Raises:
        ValueError: see `encoded`; or each format's own error, where it cannot be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(picture), formats=_FORMATS)
    with image:
        if image.mode != "RGBA":
            return _in_colour(image)
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white


def is_picture(file: bytes) -> bool:
    """Whether a file is that of a picture, and none of a clip or a sound."""
    return clip_of(file) is None and sound_of(file) is None


def encoded(image: Image.Image) -> bytes:
    """The file of a picture as models see it, of which not a pixel is lost.

    Raises:
        ValueError: its greys are numbers of which none is known to be white.
    """
    file = io.BytesIO()
    image = image if image.mode in _KEPT else _in_colour(image)
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _in_colour(image: Image.Image) -> Image.Image:
    """A picture in red, green and blue, of which Pillow alone makes most greys of 16 bits white."""
    is_wide = image.mode == "I" and image.format == "PPM"  # which Pillow reads as 16 bits
    if image.mode in {"I", "F"} and not is_wide:
        raise ValueError("greys of 32 bits do not say which of them is white")
    if is_wide or image.mode.startswith("I;16"):
        image = image.convert("I").point(lambda grey: grey / 256).convert("L")
    return image.convert("RGB")


def behind_pictures(text: str, count: int) -> Json:
    """The content of a message: so many pictures, and a text behind them."""
    if not count:
        return text
    parts: list[Json] = [{"type": "image"} for _ in range(count)]
    return parts + ([{"type": "text", "text": text}] if text else [])


def with_parts(messages: Messages, files: Sequence[bytes]) -> list[dict[str, Json]]:
    """Messages with parts for the files that they show, as templates take them.

    A mark of what is not among the files, of pictures, videos or sounds, is text.
    """
    clips = [clip for clip in map(clip_of, files) if clip is not None]
    sounds = sum(sound_of(file) is not None for file in files)
    parts: dict[str, Iterator[list[Json]]] = {}
    if sounds:
        parts[SOUND] = iter([[{"type": "audio"}]] * sounds)
    if pictures := len(files) - len(clips) - sounds:
        parts[MARK] = iter([[{"type": "image"}]] * pictures)
    if clips:
        parts[VIDEO] = iter(parts_of(clips))
    return [{**message, "content": _parts(message["content"], parts)} for message in messages]


def pictures_in(messages: Messages) -> int:
    """Count the parts of messages that are pictures."""
    contents = [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(isinstance(part, dict) and part.get("type") == "image" for part in parts)


def marks(messages: Messages) -> list[str]:
    """The marks of pictures, videos and sounds in messages, in their order."""
    return [mark for message in messages for mark in _MARKS.findall(str(message["content"]))]


def _parts(content: Json, parts: Mapping[str, Iterator[list[Json]]]) -> Json:
    if not isinstance(content, str) or not any(mark in content for mark in parts):
        return content
    found: list[Json] = []
    for text in re.split(f"({'|'.join(parts)})", content):
        if text in parts:
            found += next(parts[text])
        elif text:
            found.append({"type": "text", "text": text})
    return found
