"""Links: byte exchange between the processes of a group.

A link has numbered members. In an exchange every member passes what it sends and how many bytes it
expects. Streams of named tensors, whose sizes only the sender has, begin with a header of them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.errors import ChannelLost

BUCKET_BYTES = 64 * 2**20
"""Most bytes of one operation, so that its time limit does not depend on the payload."""


class Link:
    """A link over a process group, gloo for `cpu`, nccl for `cuda`; None has this member alone."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        device: torch.device,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.member, self.size = (0, 1) if group is None else (group.rank(), group.size())
        self._group = group
        self._device = device
        self._bucket_bytes = bucket_bytes

    def exchange(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int]
    ) -> dict[int, Tensor]:
        """Send and receive; every member calls this, even with nothing to move.

        Bucket `i` of every pair is sent in round `i`. Within a round all receives and sends are
        posted before any is waited for, so no order of members can deadlock.

        Outgoing and returned are (bytes,) uint8 in host memory by member, never this one;
        `incoming` says how many bytes each sends. Raises RuntimeError after the time limit.
        """
        received = {m: torch.empty(size, dtype=torch.uint8) for m, size in incoming.items()}
        payloads = [*outgoing.values(), *received.values()]
        for first in range(0, max((p.numel() for p in payloads), default=0), self._bucket_bytes):
            bucket = slice(first, first + self._bucket_bytes)
            self._move(
                {m: payload[bucket] for m, payload in outgoing.items() if first < len(payload)},
                {m: payload[bucket] for m, payload in received.items() if first < len(payload)},
            )
        return received

    def _move(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        assert self._group is not None, "a single member exchanges no bytes"
        if self._device.type == "cpu":
            for work in _post(self._group, outgoing, incoming):
                work.wait()
            return
        # nccl needs both directions in one launch: a send alone would wait for its receiver while
        # that waits for a send of its own.
        sent = {m: part.to(self._device) for m, part in outgoing.items()}
        arrived = {m: torch.empty_like(part, device=self._device) for m, part in incoming.items()}
        self._group._start_coalescing(self._device)
        _post(self._group, sent, arrived)
        self._group._end_coalescing(self._device).wait()
        for m, part in incoming.items():
            part.copy_(arrived[m])


def _post(
    group: dist.ProcessGroup, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]
) -> list[dist.Work]:
    receives = [group.recv([part], m, 0) for m, part in incoming.items()]
    return receives + [group.send([part], m, 0) for m, part in outgoing.items()]


def exchange_messages(
    link: Link, outgoing: Mapping[int, bytes], senders: Collection[int]
) -> dict[int, bytes]:
    """Send and receive messages of at least a byte: sizes first, in eight bytes each.

    Every member that sends or receives calls this. Returns the message of each sender.
    """

    def as_tensor(content: bytes) -> Tensor:
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)

    sizes = {m: as_tensor(len(message).to_bytes(8)) for m, message in outgoing.items()}
    incoming = link.exchange(sizes, dict.fromkeys(senders, 8))
    expected = {m: int.from_bytes(size.numpy().tobytes()) for m, size in incoming.items()}
    received = link.exchange({m: as_tensor(own) for m, own in outgoing.items()}, expected)
    return {m: message.numpy().tobytes() for m, message in received.items()}


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a bucket; its bytes follow those of the entries before it."""

    name: str
    dtype: str
    shape: list[int]
    size_bytes: int


def send_tensors(
    link: Link,
    receivers: Collection[int],
    tensors: Iterable[tuple[str, Tensor]],
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Send named tensors, from any device, to members that call `receive_tensors`.

    They are sent in buckets; either end holds one or two of them, or a single larger tensor.
    `tensors` is iterated to its end, even if the link is lost or there are no receivers: an element
    may be a collective of all ranks of a role.

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
    """Yield the tensors of a member's `send_tensors`, in host memory; raises ChannelLost."""
    decoder = msgspec.msgpack.Decoder(list[_Entry])
    while entries := decoder.decode(exchange_messages(link, {}, [sender])[sender]):
        size = sum(entry.size_bytes for entry in entries)
        flat = link.exchange({}, {sender: size})[sender]
        start = 0
        for entry in entries:
            part = flat[start : start + entry.size_bytes]
            start += entry.size_bytes
            # A tensor starts where the one before ends, which may not be aligned for its dtype.
            yield entry.name, part.clone().view(getattr(torch, entry.dtype)).view(entry.shape)


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
        _Entry(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.nbytes)
        for name, tensor in bucket
    ]
    header = msgspec.msgpack.encode(entries)
    exchange_messages(link, dict.fromkeys(receivers, header), ())
    flat = [tensor.detach().cpu().contiguous().view(-1) for _, tensor in bucket]
    if flat:
        parts = torch.cat([tensor.view(torch.uint8) for tensor in flat])
        link.exchange(dict.fromkeys(receivers, parts), {})
