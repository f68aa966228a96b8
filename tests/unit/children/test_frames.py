import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.children import frames


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=20))
def test_a_frame_survives_being_cut_anywhere(body: bytes, cuts: list[int]) -> None:
    wire = frames.pack_frame(body)
    buffer = frames.FrameBuffer()
    for cut in cuts:
        if len(wire) <= cut:
            break
        assert buffer.feed(wire[:cut]) is None
        wire = wire[cut:]
    assert buffer.feed(wire) == body


def test_large_frames_cross_a_pipe() -> None:
    read, write = os.pipe()
    body = os.urandom(3_000_000)
    writer = threading.Thread(target=lambda: (frames.write_frame(write, body), os.close(write)))
    writer.start()
    assert frames.read_frame(read) == body
    assert frames.read_frame(read) is None
    writer.join()
    os.close(read)


@pytest.mark.parametrize("sent", [b"\0", frames.HEADER.pack(5), frames.HEADER.pack(5) + b"1234"])
def test_a_stream_that_ends_within_a_frame(sent: bytes) -> None:
    read, write = os.pipe()
    os.write(write, sent)
    os.close(write)
    with pytest.raises(frames.FrameError, match="ends within a frame"):
        frames.read_frame(read)
    os.close(read)


def test_announced_lengths_are_checked_before_anything_is_allocated() -> None:
    header = frames.HEADER.pack(2**60)
    with pytest.raises(frames.FrameError, match=f"at most {frames.MAX_FRAME_BYTES}"):
        frames.FrameBuffer().feed(header)
    read, write = os.pipe()
    os.write(write, header)
    with pytest.raises(frames.FrameError, match=f"at most {frames.MAX_FRAME_BYTES}"):
        frames.read_frame(read)
    os.close(read)
    os.close(write)
    with pytest.raises(frames.FrameError, match="at most"):
        frames.pack_frame(bytes(frames.MAX_FRAME_BYTES + 1))


def test_bytes_after_a_frame_break_the_protocol() -> None:
    with pytest.raises(frames.FrameError, match="after the end"):
        frames.FrameBuffer().feed(frames.pack_frame(b"one") + b"junk")
