"""Media files of rows (images, clips of videos, audios), and their marks in messages.

Loads no torch. The files of a prompt are one value (`packed`), in the order of the text. Files
after the prompt, from tools or later messages, are stored with their positions (`LaterImage`). A
clip is the frames that a tower reads at once, two in Qwen's models; no tower attends from one clip
to another, so clips are stored, sent and encoded like images. An audio is one channel of float32
at the sampling rate of the model. Source of the form of messages: verl 0.8,
`utils/dataset/rl_dataset.py`, `_build_messages`.
"""

import base64
import hashlib
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from PIL import Image

from ppojob_trainer.json_value import Json

if TYPE_CHECKING:  # tool processes import this module, and numpy would slow their start
    import numpy as np
    from numpy.typing import NDArray

COLUMN: Final = "images"
MARK: Final = "<image>"
VIDEO_COLUMN: Final = "videos"
VIDEO_MARK: Final = "<video>"
AUDIO_MARK: Final = "<audio>"
HASH: Final = "sha256"
_CLIP: Final = b"\0clip"
_AUDIO: Final = b"\0audio"
"""Prefixes of clips and audios; no image file begins with them."""
MOST_BYTES: Final = 32 * 1024 * 1024
"""Limit of all images of a row, for tools."""
_MARKS: Final = re.compile(f"{MARK}|{VIDEO_MARK}|{AUDIO_MARK}")
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")
"""Supported formats; for some others Pillow would start a program."""
_KEPT: Final = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
"""Modes that PNG stores without conversion."""

Messages = Sequence[Mapping[str, Json]]
Samples: TypeAlias = "NDArray[np.float32]"


class LaterImage(msgspec.Struct, frozen=True, array_like=True):
    """An image after the prompt of a row."""

    start: int  # index of its first feature token in the response
    file: bytes


def packed(images: Sequence[bytes]) -> bytes:
    """Encode the files of a prompt as one value; empty for none."""
    return msgspec.msgpack.encode(images) if images else b""


def unpacked(images: bytes) -> list[bytes]:
    """Decode the files of `packed`."""
    return msgspec.msgpack.decode(images, type=list[bytes]) if images else []


def packed_later(images: Sequence[LaterImage]) -> bytes:
    """Encode the images after a prompt as one value; empty for none."""
    return msgspec.msgpack.encode(images) if images else b""


def unpacked_later(images: bytes) -> list[LaterImage]:
    """Decode the images of `packed_later`."""
    return msgspec.msgpack.decode(images, type=list[LaterImage]) if images else []


class Clip(msgspec.Struct, frozen=True, array_like=True):
    """Frames of a video that a tower reads at once."""

    frames: list[bytes]  # encoded images in the model's size
    number: int  # index of the clip in its video
    ahead: int = 0  # time position relative to the first clip of its video
    text: str = ""  # text before the clip; empty if it directly follows the clip before it

    @property
    def has_placeholder(self) -> bool:
        """Whether a template writes a token for it: per video, or per clip if they have texts."""
        return self.number == 0 or bool(self.text)


def packed_clip(clip: Clip) -> bytes:
    """Encode a clip as a file."""
    return _CLIP + msgspec.msgpack.encode(clip)


def clip_of(file: bytes) -> Clip | None:
    """Decode the clip in a file; None for another file."""
    if not file.startswith(_CLIP):
        return None
    return msgspec.msgpack.decode(memoryview(file)[len(_CLIP) :], type=Clip)


def parts_of(clips: Iterable[Clip]) -> list[list[Json]]:
    """Return the message parts of each video, for a chat template."""
    videos: list[list[Json]] = []
    for clip in clips:
        if clip.number == 0:
            videos.append([])
        if clip.text:
            videos[-1].append({"type": "text", "text": clip.text})
        if clip.has_placeholder:
            videos[-1].append({"type": "video"})
    return videos


def packed_audio(samples: Samples) -> bytes:
    """Encode (samples,) an audio as a file."""
    return _AUDIO + samples.astype("<f4").tobytes()


def audio_of(file: bytes) -> "Samples | None":
    """Decode (samples,) float32 from the audio in a file; None for another file."""
    if not file.startswith(_AUDIO):
        return None
    import numpy as np

    return np.frombuffer(file, "<f4", offset=len(_AUDIO)).astype(np.float32)


def opened(file: bytes) -> Image.Image:
    """Decode an image to RGB, the input of models; RGBA is put on a white background.

    Pillow refuses an image by its size before decoding it, which could exhaust the memory.
    Source: qwen-vl-utils, `vision_process.py`, `to_rgb`, by which verl opens images. Raises
    ValueError, or the error of the format.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(file), formats=_FORMATS)
    with image:
        if image.mode != "RGBA":
            return _in_colour(image)
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white


def is_image(file: bytes) -> bool:
    """Whether a file is an image, rather than a clip or an audio."""
    return clip_of(file) is None and audio_of(file) is None


def encoded(image: Image.Image) -> bytes:
    """Encode an image as PNG, without loss; raises ValueError for grey levels of 32 bits."""
    file = io.BytesIO()
    image = image if image.mode in _KEPT else _in_colour(image)
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _in_colour(image: Image.Image) -> Image.Image:
    """Convert to RGB; grey levels of 16 bits are scaled first, where Pillow would clip them."""
    is_wide = image.mode == "I" and image.format == "PPM"  # Pillow's mode for 16 bits
    if image.mode in {"I", "F"} and not is_wide:
        raise ValueError("the white of 32-bit grey levels is not defined")
    if is_wide or image.mode.startswith("I;16"):
        image = image.convert("I").point(lambda grey: grey / 256).convert("L")
    return image.convert("RGB")


def behind_images(text: str, count: int) -> Json:
    """Build the content of a message: `count` images, then a text."""
    if not count:
        return text
    parts: list[Json] = [{"type": "image"} for _ in range(count)]
    return parts + ([{"type": "text", "text": text}] if text else [])


def with_parts(messages: Messages, files: Sequence[bytes]) -> list[dict[str, Json]]:
    """Replace the marks in messages by parts, as chat templates take them.

    A mark of a medium (image, video, audio) that is not among the files is text.
    """
    clips = [clip for clip in map(clip_of, files) if clip is not None]
    audios = sum(audio_of(file) is not None for file in files)
    parts: dict[str, Iterator[list[Json]]] = {}
    if audios:
        parts[AUDIO_MARK] = iter([[{"type": "audio"}]] * audios)
    if images := len(files) - len(clips) - audios:
        parts[MARK] = iter([[{"type": "image"}]] * images)
    if clips:
        parts[VIDEO_MARK] = iter(parts_of(clips))
    return [{**message, "content": _parts(message["content"], parts)} for message in messages]


def data_url(file: bytes) -> str:
    """Return an image as a `data:` URL."""
    with Image.open(io.BytesIO(file), formats=_FORMATS) as image:
        kind = Image.MIME[str(image.format)]
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def hash_of(image: bytes) -> str:
    """Return the hash of a file, in hex."""
    return hashlib.sha256(image).hexdigest()


def hashed_part(name: str) -> Json:
    """Return the part of a message that stands for an image, whose file has this hash."""
    return {"type": "image", HASH: name}


def with_hashed_parts(messages: Messages, images: Sequence[bytes]) -> list[dict[str, Json]]:
    """Replace the marks of images in messages by `hashed_part`s; without images they stay."""
    parts = {MARK: iter([[hashed_part(hash_of(one))] for one in images])} if images else {}
    return [{**message, "content": _parts(message["content"], parts)} for message in messages]


def images_of(messages: Messages, files: Mapping[str, bytes]) -> list[bytes]:
    """Return the images of messages with `hashed_part`s in order, of files by their hashes."""
    contents = [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [files[str(part[HASH])] for part in parts if isinstance(part, dict) and HASH in part]


def images_in(messages: Messages) -> int:
    """Count the parts of messages that are images."""
    contents = [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(isinstance(part, dict) and part.get("type") == "image" for part in parts)


def marks(messages: Messages) -> list[str]:
    """Return the marks of images, videos and audios in messages, in order."""
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
