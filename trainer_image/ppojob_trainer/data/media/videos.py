"""Video clips as files among the pictures of a row, and their placeholders. Loads no torch.

A clip is the frames that a tower reads at once, two in Qwen's models. No tower attends from one
clip to another, so clips are stored, sent and encoded like pictures.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from ppojob_trainer.json_value import Json

COLUMN: Final = "videos"
MARK: Final = "<video>"
_BEGIN: Final = b"\0clip"
"""Prefix of a clip; no picture file begins with it."""


class Clip(msgspec.Struct, frozen=True, array_like=True):
    """Frames of a video that a tower reads at once.

    Attributes:
        frames: encoded pictures in the model's size.
        number: index of the clip in its video.
        ahead: time position relative to the first clip of its video.
        text: text before the clip; empty if it directly follows the clip before it.
    """

    frames: list[bytes]
    number: int
    ahead: int = 0
    text: str = ""

    @property
    def has_placeholder(self) -> bool:
        """Whether a template writes a token for it: per video, or per clip if they have texts."""
        return self.number == 0 or bool(self.text)


def packed_clip(clip: Clip) -> bytes:
    """Encode a clip as a file."""
    return _BEGIN + msgspec.msgpack.encode(clip)


def clip_of(file: bytes) -> Clip | None:
    """Decode the clip in a file; None for another file."""
    if not file.startswith(_BEGIN):
        return None
    return msgspec.msgpack.decode(memoryview(file)[len(_BEGIN) :], type=Clip)


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
