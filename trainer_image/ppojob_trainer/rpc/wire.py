"""Wire format: a header frame and a body frame, both msgpack with a schema."""

import itertools
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

CHUNK_BYTES: Final = 64 << 20
"""Chunk size, far below each method's limit, since one entry may be larger than a chunk."""


class RequestId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Deterministic id of a piece of work, so that retries are recognised."""

    attempt: int  # attempt of the called role; 0 if the method accepts any
    step: int  # step of the loop, from 1; 0 before the first step
    stage: str  # such as `update` or `validation/generate`
    index: int = 0  # mini-batch or chunk within the stage
    rewinds: int = 0  # number of rewinds; a repeated step is new work


class RequestHeader(msgspec.Struct, frozen=True, array_like=True):
    """Header of a request."""

    call: int  # number of the call on this connection, repeated in the answer
    method: str
    caller_attempt: int  # attempt of the calling controller, for fencing
    request_id: RequestId | None = None  # id of work; None for queries


class ErrorKind(StrEnum):
    """Class of an error answer.

    `CHANGED`: the request id is known with another request, for instance because a reward function
    returned other scores; the step must be repeated. `ABORTED`: the caller aborted the work.
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
    ABORTED = "aborted"


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
Item = TypeVar("Item", bound=msgspec.Struct)


def encode(value: msgspec.Struct) -> bytes:
    """Encode a header or a body as msgpack."""
    return _ENCODER.encode(value)


def chunks(sizes: Sequence[int], chunk_bytes: int = CHUNK_BYTES) -> list[tuple[int, int]]:
    """Split entries of these sizes into ranges `[first, last)` of at most `chunk_bytes`.

    A larger entry gets its own range; an empty list has no range.
    """
    edges = [0]
    filled = 0
    for position, size in enumerate(sizes):
        if filled and filled + size > chunk_bytes:
            edges.append(position)
            filled = 0
        filled += size
    return list(itertools.pairwise([*edges, len(sizes)])) if sizes else []


def portions(items: Sequence[list[Item]], chunk_bytes: int) -> list[list[list[Item]]]:
    """Split the items of each rank into requests of at most `chunk_bytes`.

    Returns (rounds, ranks) items of each request, empty for a rank without further ones.
    """
    cuts = [chunks([len(encode(item)) for item in own], chunk_bytes) for own in items]
    return [
        [own[slice(*cut[n])] if n < len(cut) else [] for own, cut in zip(items, cuts, strict=True)]
        for n in range(max(map(len, cuts)))
    ]
