"""Named tensors from one member of a link to others, one bucket after the other.

Only the sender knows what it sends (merged adapters, a model cut over ranks), so each bucket has a
header before it. At either end a bucket or two are in memory, or one tensor if that is larger.
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
    """A tensor of a bucket; its bytes lie behind those of the entries before it."""

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
    """Send tensors, from any device, to some members, who call `receive_tensors`.

    All of `tensors` are drawn, also when the link is lost on the way or nobody receives: to draw
    one may take all ranks of a role.

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
    """Receive what a member sends by `send_tensors`, in host memory, in its order.

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
            # A tensor begins where the one before ends, which may be no place for its type.
            yield entry.name, part.clone().view(entry.type).view(entry.shape)


def _buckets(
    tensors: Iterable[tuple[str, Tensor]], bucket_bytes: int
) -> Iterator[list[tuple[str, Tensor]]]:
    """Runs of tensors of about so many bytes, and an empty one: there are no more."""
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
