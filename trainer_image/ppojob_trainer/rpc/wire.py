"""Wire format: two frames, a small header and a body, both msgpack by schema."""

import itertools
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

CHUNK_BYTES: Final = 64 << 20
"""Chunk size: far below each method's limit, so that an entry may be several times as large."""


class RequestId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Identifies a piece of work; never random, so a retry is recognised.

    Attributes:
        attempt: attempt of the called role; a role that lost a rank gets the next one. 0 if the
            method accepts requests of any attempt.
        step: step of the loop, from 1; 0 for what happens before the first step.
        stage: name of the stage, such as `update` or `validation/generate`.
        index: mini-batch or chunk within the stage.
        rewinds: number of rewinds to a checkpoint; a repeated step is new work.
    """

    attempt: int
    step: int
    stage: str
    index: int = 0
    rewinds: int = 0


class RequestHeader(msgspec.Struct, frozen=True, array_like=True):
    """Header of a request.

    Attributes:
        call: number of the call on this connection, repeated in the answer.
        caller_attempt: attempt of the calling controller; a lower one than seen is fenced off.
        request_id: present for work that must be done once, absent for questions.
    """

    call: int
    method: str
    caller_attempt: int
    request_id: RequestId | None = None


class ErrorKind(StrEnum):
    """Why a call was not answered.

    `CHANGED`: the id is known with another content, since its source (a reward function) did not
    say the same again; so the step cannot be ended as it was begun. `LEFT`: the caller gave the
    work up.
    """

    BAD_REQUEST = "bad_request"
    FORBIDDEN = "forbidden"
    FENCED = "fenced"
    STALE_ATTEMPT = "stale_attempt"
    FAILED = "failed"
    CHANGED = "changed"
    CHANNEL_LOST = "channel_lost"
    STORAGE = "storage"
    CUSTOM_CODE = "custom_code"
    LEFT = "left"


class AnswerHeader(msgspec.Struct, frozen=True, array_like=True):
    """Header of an answer; with `error` the body is a `Failure`."""

    call: int
    error: bool = False


class Failure(msgspec.Struct, frozen=True):
    """Body of an error answer."""

    kind: ErrorKind
    message: str
    detail: str = ""


class Nothing(msgspec.Struct, frozen=True):
    """An empty body."""


_ENCODER = msgspec.msgpack.Encoder()


def encode(value: msgspec.Struct) -> bytes:
    """Encode a header or a body as msgpack."""
    return _ENCODER.encode(value)


def chunks(sizes: Sequence[int], chunk_bytes: int = CHUNK_BYTES) -> list[tuple[int, int]]:
    """Split a list that may be too large for one request into ranges `[first, last)` of entries.

    Args:
        sizes: bytes of each encoded entry.
        chunk_bytes: limit of a range; a larger entry is a range of its own.

    Returns:
        The ranges; none for an empty list.
    """
    edges = [0]
    filled = 0
    for position, size in enumerate(sizes):
        if filled and filled + size > chunk_bytes:
            edges.append(position)
            filled = 0
        filled += size
    return list(itertools.pairwise([*edges, len(sizes)])) if sizes else []
