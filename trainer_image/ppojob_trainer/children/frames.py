"""Length-prefixed frames over a pair of pipes: the only communication of parent and child."""

import os
import struct

import msgspec

MAX_FRAME_BYTES = 64 * 1024 * 1024
HEADER = struct.Struct(">Q")


class Numbered(msgspec.Struct, frozen=True):
    """A call, or the answer to one, which repeats the number of the call."""

    number: int


class Loaded(msgspec.Struct, frozen=True):
    """Answer to a request to import users' files."""

    problems: list[str]  # one line each, for the user; empty for success


class FrameError(Exception):
    """A frame is too long, is followed by bytes, or ends with the stream."""


def pack_frame(body: bytes) -> bytes:
    """Prepend the length to a body."""
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes; at most {MAX_FRAME_BYTES}")
    return HEADER.pack(len(body)) + body


def write_frame(fd: int, body: bytes) -> None:
    """Write one frame to a blocking descriptor."""
    view = memoryview(pack_frame(body))
    while view:
        view = view[os.write(fd, view) :]


class FrameBuffer:
    """Assembles frames from the chunks of a non-blocking descriptor."""

    def __init__(self) -> None:
        self._pieces = bytearray()

    def feed(self, piece: bytes) -> bytes | None:
        """Add a piece; return the body once the frame is complete, and nothing follows it."""
        self._pieces += piece
        if len(self._pieces) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._pieces)
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES}")
        end = HEADER.size + length
        if len(self._pieces) > end:
            raise FrameError("bytes after the end of a frame")
        return bytes(self._pieces[HEADER.size :]) if len(self._pieces) == end else None


def read_frame(fd: int) -> bytes | None:
    """Read one frame; None at the end of the stream. Nothing may follow before the answer."""
    buffer, has_begun = FrameBuffer(), False
    while piece := os.read(fd, 1 << 20):
        has_begun = True
        if (body := buffer.feed(piece)) is not None:
            return body
    if has_begun:
        raise FrameError("the stream ends within a frame")
    return None
