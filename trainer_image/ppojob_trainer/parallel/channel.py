"""Channels: process groups between the ranks of two roles, outside the world of either.

Members are the ranks of the first role, then those of the second. A channel belongs to one attempt
of each; when either ends it is closed, and the next attempts open the next channel. For lost peers
see docs/adr/0001-worlds-channels-and-attempts.md: a killed one is noticed at once, a stopped one
only by the supervisors, so another thread cuts the channel of the waiting thread.

Gloo does not expose its sockets, so they are found by address. Descriptors are not stored: gloo may
close one, and its number be reused a moment later.
"""

import datetime
import json
import os
import socket
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from ppojob_trainer.errors import ChannelLost
from ppojob_trainer.parallel.link import Link
from ppojob_trainer.parallel.world import gloo_options

Endpoint = tuple[str, int]
"""IP address and port."""


class Channel(Link):
    """A process group with another role, from `open_channel`; `key` is its name in the store."""

    def __init__(
        self,
        key: str,
        group: dist.ProcessGroup,
        device: torch.device,
        listeners: frozenset[Endpoint],
    ) -> None:
        super().__init__(group, device)
        self.key = key
        self._listeners = listeners
        self._is_cut = False

    def exchange(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int]
    ) -> dict[int, Tensor]:
        """See `Link`. Call it when the peers are ready: the time limit includes waiting for them.

        Raises ChannelLost if a peer is gone or too slow, or the channel was cut; it is closed then.
        """
        reason = "it is closed"
        if self._group is not None:
            try:
                received = super().exchange(outgoing, incoming)
                # nccl's abort ends a wait without an error; what was received must not be used.
                if not self._is_cut:
                    return received
            except RuntimeError as error:
                reason = _first_line(error)
        self.close()
        raise ChannelLost(self.key, "it was cut" if self._is_cut else reason)

    def cut(self) -> None:
        """End a waiting exchange from another thread; the channel is unusable afterwards."""
        self._is_cut = True
        group = self._group
        if group is None:
            return
        if self._device.type == "cuda":
            group._get_backend(self._device).abort()
        else:
            shut_down_connections(self._listeners)

    def close(self) -> None:
        """Close the channel's sockets; may be called twice."""
        self._group = None


def open_channel(
    store: Store,
    key: str,
    member: int,
    size: int,
    address: str,
    device: torch.device,
    timeout_seconds: float,
) -> Channel:
    """Open a channel with the other members of a key, who must open it within the time limit.

    The key names both attempts and the opening, and is never reused, since the store, of the first
    role's world, keeps the addresses of a failed attempt. The limit holds for each operation too,
    for a node that fails silently: nccl's watchdog then ends the process, unless the channel was
    cut before. Raises ChannelLost if not all members opened it in time.
    """
    under_key = PrefixStore(key, store)
    try:
        if device.type == "cuda":
            return _open_nccl(under_key, key, member, size, device, timeout_seconds)
        return _open_gloo(under_key, key, member, size, address, timeout_seconds)
    except RuntimeError as error:
        reason = _first_line(error)
    raise ChannelLost(key, f"not opened: {reason}")


def _open_gloo(
    store: Store, key: str, member: int, size: int, address: str, timeout_seconds: float
) -> Channel:
    before = listening()
    options = gloo_options(address, timeout_seconds)
    listeners = sorted(listening() - before)
    assert listeners, "gloo listens as soon as it has its options; without that nothing can be cut"
    store.set(f"listeners/{member}", json.dumps(listeners))
    backend = dist.ProcessGroupGloo(store, member, size, options)
    # All are connected now, so all have published their listening addresses.
    all_listeners = frozenset(
        (host, port) for m in range(size) for host, port in json.loads(store.get(f"listeners/{m}"))
    )
    device = torch.device("cpu")
    group = _group_of(backend, dist.ProcessGroup.BackendType.GLOO, store, device)
    return Channel(key, group, device, all_listeners)


def _open_nccl(
    store: Store, key: str, member: int, size: int, device: torch.device, timeout_seconds: float
) -> Channel:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = datetime.timedelta(seconds=timeout_seconds)
    backend = dist.ProcessGroupNCCL(store, member, size, options)
    backend.eager_connect_single_device(device)
    group = _group_of(backend, dist.ProcessGroup.BackendType.NCCL, store, device)
    return Channel(key, group, device, frozenset())


def _group_of(backend: Any, kind: Any, store: Store, device: torch.device) -> dist.ProcessGroup:
    """Wrap the backend as a process group, like the world of a role."""
    group = dist.ProcessGroup(store, backend.rank(), backend.size())
    group._register_backend(device, kind, backend)
    return group


def _first_line(error: RuntimeError) -> str:
    """The first line of the message, without the place in the library's source."""
    return str(error).split("] ", 1)[-1].split(". This", 1)[0].partition("\n")[0]


def shut_down_connections(listeners: Collection[Endpoint]) -> None:
    """Shut down every connection of this process with one of these listeners at either end.

    A thread that waits on such a connection gets an error at once. The listening sockets are left
    alone: gloo ends the process when its own is shut down.
    """
    for connection in _sockets():
        with connection, suppress(OSError):  # not connected, or closed since it was found
            remote = connection.getpeername()
            ends = (connection.getsockname()[:2], remote[:2])
            if any(end in listeners for end in ends):
                connection.shutdown(socket.SHUT_RDWR)


def listening() -> set[Endpoint]:
    """Return the addresses on which this process listens."""
    endpoints = set()
    for found in _sockets():
        with found, suppress(OSError):
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                endpoints.add(found.getsockname()[:2])
    return endpoints


def _sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each TCP socket of this process; the caller closes it."""
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptor = os.dup(int(name))
        except OSError:
            continue  # closed since it was listed
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            continue
        found = socket.socket(fileno=descriptor)
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            yield found
        else:
            found.close()
