"""Frames on the wire: a small header and a body, both msgpack by schema.

A message is two ZeroMQ frames, `[header, body]`. Nothing is pickled. A frame that does not match
its schema, or is larger than the method allows, is answered with a `bad_request` and goes nowhere.
"""

import itertools
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

CHUNK_BYTES: Final = 64 << 20
"""Far below what a method reads at most, so that an entry may be several times as large."""


class RequestId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which piece of work a call asks for; never random, so a repeated call is recognised.

    Attributes:
        attempt: attempt of the role that is asked; a role that lost a rank gets the next one. 0
            where the method takes a request of any.
        step: step of the loop, from 1; 0 for what happens before the first step.
        stage: name of the stage, such as `update` or `validation/generate`.
        index: mini-batch or chunk within the stage.
        rewinds: how often the job went back to a checkpoint; a step that is run again is new work.
    """

    attempt: int
    step: int
    stage: str
    index: int = 0
    rewinds: int = 0


class RequestHeader(msgspec.Struct, frozen=True, array_like=True):
    """What stands before the body of a request.

    Attributes:
        call: number of the call on this connection; the answer carries it back.
        caller_attempt: attempt of the controller that calls; a lower one than seen is fenced off.
        request_id: present for work that must be done once, absent for questions.
    """

    call: int
    method: str
    caller_attempt: int
    request_id: RequestId | None = None


class ErrorKind(StrEnum):
    """Why a call was not answered.

    `CHANGED`: the id is known with another content, since its source (a reward function) did not
    say the same again; so the step cannot be ended as it was begun.
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


class AnswerHeader(msgspec.Struct, frozen=True, array_like=True):
    """What stands before the body of an answer; `error` tells that the body is a `Failure`."""

    call: int
    error: bool = False


class Failure(msgspec.Struct, frozen=True):
    """Body of an answer that is an error."""

    kind: ErrorKind
    message: str
    detail: str = ""


class Nothing(msgspec.Struct, frozen=True):
    """The body of a request or an answer that says nothing more."""


_ENCODER = msgspec.msgpack.Encoder()


def encode(value: msgspec.Struct) -> bytes:
    """The msgpack bytes of a header or a body."""
    return _ENCODER.encode(value)


def chunks(sizes: Sequence[int], chunk_bytes: int = CHUNK_BYTES) -> list[tuple[int, int]]:
    """Cut a list that may be too large for one request into runs `[first, last)` of entries.

    Args:
        sizes: bytes of each entry as it is encoded.
        chunk_bytes: of a run; an entry that is larger by itself is a run of its own.

    Returns:
        The runs; none for an empty list.
    """
    edges = [0]
    filled = 0
    for position, size in enumerate(sizes):
        if filled and filled + size > chunk_bytes:
            edges.append(position)
            filled = 0
        filled += size
    return list(itertools.pairwise([*edges, len(sizes)])) if sizes else []
