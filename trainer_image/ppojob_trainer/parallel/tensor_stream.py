"""Streams of named tensors from one member of a link to others, bucket by bucket.

Only the sender knows what comes (merged adapters, a sharded model), so each bucket has a header.
Either end holds a bucket or two in memory, or one tensor if that is larger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import prod

import msgspec
import torch
from torch import Tensor

from ppojob_trainer.errors import ChannelLost
from ppojob_trainer.parallel.link import BUCKET_BYTES, Link, exchange_messages


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a bucket; its bytes follow those of the entries before it."""

    name: str
    dtype: str
    shape: list[int]

    @property
    def type(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.type.itemsize


def send_tensors(
    link: Link,
    receivers: Collection[int],
    tensors: Iterable[tuple[str, Tensor]],
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Send tensors, from any device, to members that call `receive_tensors`.

    `tensors` is iterated to its end, even if the link is lost or nobody receives: an element may be
    a collective of all ranks of a role.

    Raises:
        ChannelLost: a receiver is gone.
    """
    lost: ChannelLost | None = None
    for bucket in _buckets(tensors, bucket_bytes):
        if receivers and lost is None:
            try:
                _send(link, receivers, bucket)
            except ChannelLost as loss:
                lost = loss
    if lost is not None:
        raise lost


def receive_tensors(link: Link, sender: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a member's `send_tensors`, in host memory, in its order.

    Raises:
        ChannelLost: it is gone.
    """
    decoder = msgspec.msgpack.Decoder(list[_Entry])
    while entries := decoder.decode(exchange_messages(link, {}, [sender])[sender]):
        size = sum(entry.size_bytes for entry in entries)
        flat = link.exchange({}, {sender: size})[sender]
        start = 0
        for entry in entries:
            part = flat[start : start + entry.size_bytes]
            start += entry.size_bytes
            # A tensor starts where the one before ends, which may not be aligned for its dtype.
            yield entry.name, part.clone().view(entry.type).view(entry.shape)


def _buckets(
    tensors: Iterable[tuple[str, Tensor]], bucket_bytes: int
) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield runs of tensors of about this many bytes, and an empty one as the end."""
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in tensors:
        if bucket and size + tensor.nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket
    yield []


def _send(link: Link, receivers: Collection[int], bucket: list[tuple[str, Tensor]]) -> None:
    entries = [
        _Entry(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in bucket
    ]
    header = msgspec.msgpack.encode(entries)
    exchange_messages(link, dict.fromkeys(receivers, header), ())
    flat = [tensor.detach().cpu().contiguous().view(-1) for _, tensor in bucket]
    if flat:
        parts = torch.cat([tensor.view(torch.uint8) for tensor in flat])
        link.exchange(dict.fromkeys(receivers, parts), {})
