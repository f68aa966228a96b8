"""Video clips of rows, among their picture files, and placeholders. Loads no torch.

A clip is what a tower sees at once: a few frames, two of Qwen. No tower looks from one to the next,
so the clips of a video travel, are cut and are seen as pictures are.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from ppojob_trainer.json_value import Json

COLUMN: Final = "videos"
MARK: Final = "<video>"
_BEGIN: Final = b"\0clip"
"""No file of a picture begins so."""


class Clip(msgspec.Struct, frozen=True, array_like=True):
    """Frames of a video that a tower sees at once.

    Attributes:
        frames: encoded, as large as the model sees them.
        number: of the clips of its video that are before it.
        ahead: by how much the time of its positions is ahead of its video's first clip's.
        text: what the model reads before it; empty where it goes on from the clip before it.
    """

    frames: list[bytes]
    number: int
    ahead: int = 0
    text: str = ""

    @property
    def begins(self) -> bool:
        """Whether a template writes a token for it: for the video, or for each of its clips."""
        return self.number == 0 or bool(self.text)


def packed_clip(clip: Clip) -> bytes:
    """A clip as a file among those of pictures."""
    return _BEGIN + msgspec.msgpack.encode(clip)


def clip_of(file: bytes) -> Clip | None:
    """The clip that a file is; None of a picture's."""
    if not file.startswith(_BEGIN):
        return None
    return msgspec.msgpack.decode(memoryview(file)[len(_BEGIN) :], type=Clip)


def parts_of(clips: Iterable[Clip]) -> list[list[Json]]:
    """Of each video the parts of a message that stand for it: a template writes a token each."""
    videos: list[list[Json]] = []
    for clip in clips:
        if clip.number == 0:
            videos.append([])
        if clip.text:
            videos[-1].append({"type": "text", "text": clip.text})
        if clip.begins:
            videos[-1].append({"type": "video"})
    return videos
