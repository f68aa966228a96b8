"""The world of a role: ranks 0..N-1 of one epoch, and nobody else.

It must exist before the rollout engine is made: vLLM takes the default group as its own world, so
no other role may ever be in it. Its store lives in rank 0 and dies with the epoch. Groups of some
of its ranks are opened with it, where the layout has any.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from ppojob_trainer.errors import WorldNotOpen
from ppojob_trainer.parallel.dims import WITHIN, Dimension, ParallelDims
from ppojob_trainer.parallel.gloo import POD_GLOO, gloo_options

_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_BACKLOG = 1024
_DIVISIONS: tuple[tuple[Dimension, ...], ...] = (("shard",), ("replicate",), WITHIN)
"""Dimensions whose ranks have groups of their own, where they are not all ranks."""


@dataclass(frozen=True, slots=True)
class World:
    """A rank's place among the ranks of its role.

    Attributes:
        rank: 0 to size - 1.
        size: ranks of the role.
        device: where its tensors are.
        group: of all ranks; None only where there is one and no process group was opened.
        store: keys and values that the ranks share, prefixed by the epoch.
        dims: the layout of the role.
    """

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None
    store: Store
    dims: ParallelDims = field(default_factory=ParallelDims)
    _groups: Mapping[tuple[Dimension, ...], dist.ProcessGroup] = field(default_factory=dict)

    @classmethod
    def alone(cls, device: torch.device | str = "cpu") -> World:
        """The world of a rank that has nobody to meet and opens no process group."""
        return cls(0, 1, torch.device(device), None, HashStore())

    def along(self, *names: Dimension) -> dist.ProcessGroup | None:
        """The group of the ranks that differ from this one in nothing but some dimensions.

        Args:
            names: `shard`, `replicate` or all of `WITHIN`.

        Returns:
            None where this rank is the only one; of shards a group then too, for a mesh.
        """
        return self._groups.get(names)


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where the ranks of an epoch find each other.

    Attributes:
        host: address or name of rank 0's pod.
        port: of the store there.
        key: `<job uid>/<role>/<epoch>`, the prefix of all keys.
    """

    host: str
    port: int
    key: str


@contextmanager
def open_world(
    rank: int,
    size: int,
    device: torch.device,
    *,
    dims: ParallelDims | None = None,
    address: str = "127.0.0.1",
    meeting: MeetingPoint | None = None,
    open_seconds: float = 300.0,
    operation_seconds: float = 600.0,
) -> Iterator[World]:
    """Join the world of a role; it ends with the block.

    Args:
        rank: of this process.
        size: ranks of the role.
        device: `cpu` (gloo) or `cuda:<index>` (nccl).
        dims: the layout of the role; None where each rank holds a shard of one model.
        address: of this pod; gloo and the store bind it and nothing else, since pods on one machine
            share the ports.
        meeting: where the ranks meet; None where there is one rank and nobody else needs its store.
        open_seconds: how long to wait for rank 0.
        operation_seconds: limit of one collective.

    Raises:
        WorldNotOpen: rank 0 did not come, or its port is taken.
        ValueError: the layout has another number of places than there are ranks.
    """
    assert size == 1 or meeting is not None, "several ranks have to meet"
    dims = dims or ParallelDims(shard=size)
    dims.check_size(size)
    store: Store = HashStore()
    if meeting is not None:
        connect = _host_store if rank == 0 else _find_store
        store = PrefixStore(meeting.key, connect(meeting, address, open_seconds))
    limit = timedelta(seconds=operation_seconds)
    backend = POD_GLOO
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"

    def options() -> Any:
        return gloo_options(address, operation_seconds) if backend == POD_GLOO else None

    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=limit, pg_options=options()
    )
    try:
        groups = _open_groups(dims, rank, limit, options)
        yield World(rank, size, device, dist.group.WORLD, store, dims, groups)
    finally:
        dist.destroy_process_group()


def _open_groups(
    dims: ParallelDims, rank: int, limit: timedelta, options: Callable[[], Any]
) -> dict[tuple[Dimension, ...], dist.ProcessGroup]:
    """The groups that this rank is in; all ranks open all of them in one order, as torch wants."""
    found: dict[tuple[Dimension, ...], dist.ProcessGroup] = {}
    everybody = dist.group.WORLD
    assert everybody is not None, "the world comes before its parts"
    for names in _DIVISIONS:
        division = dims.groups(*names)
        if len(division) == 1:
            found[names] = everybody
            continue
        if len(division[0]) == 1 and names != ("shard",):
            continue
        for ranks in division:
            own = options() if rank in ranks else None
            group = dist.new_group(list(ranks), timeout=limit, pg_options=own)
            if rank in ranks:
                found[names] = group
    return found


def find_store(meeting: MeetingPoint, open_seconds: float = 10.0) -> Store:
    """The store of another role's epoch, with the keys of that epoch.

    Raises:
        WorldNotOpen: its rank 0 does not answer within the time.
    """
    return PrefixStore(meeting.key, _find_store(meeting, "", open_seconds))


def _connect_store(host: str, port: int, timeout_seconds: float) -> TCPStore:
    """Connect to a store that another process hosts.

    Raises:
        torch.distributed.DistError: nobody answers within the time.
    """
    limit = timedelta(seconds=timeout_seconds)
    return TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)


def _host_store(meeting: MeetingPoint, address: str, open_seconds: float) -> TCPStore:
    """The store, served at this pod's own address: by itself torch would take all of them."""
    try:
        listener = socket.create_server((address, meeting.port), backlog=_BACKLOG)
    except OSError as error:
        raise WorldNotOpen(
            f"{meeting.key}: got {address}:{meeting.port} for its store: {error}; a free port"
        ) from error
    port = listener.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        timeout=timedelta(seconds=open_seconds),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    store.set(_open_key(meeting), "")
    return store


def _find_store(meeting: MeetingPoint, _address: str, open_seconds: float) -> TCPStore:
    """Connect to rank 0's store of this epoch, however much later than this rank it starts.

    What answers may be the store of an epoch that is ending, so the epoch's own key is asked for.
    """
    end = time.monotonic() + open_seconds
    while True:
        try:
            # Torch logs a page for every refusal, so it is asked only once somebody listens.
            socket.create_connection((meeting.host, meeting.port), _ATTEMPT_SECONDS).close()
            store = _connect_store(meeting.host, meeting.port, _ATTEMPT_SECONDS)
            store.wait([_open_key(meeting)], timedelta(seconds=_ATTEMPT_SECONDS))
        except (OSError, dist.DistError) as error:
            if time.monotonic() < end:
                time.sleep(_PAUSE_SECONDS)
                continue
            raise WorldNotOpen(
                f"{meeting.key}: rank 0 did not open its store at {meeting.host}:{meeting.port} "
                f"within {open_seconds:g} s"
            ) from error
        store.set_timeout(timedelta(seconds=open_seconds))
        return store


def _open_key(meeting: MeetingPoint) -> str:
    return f"{meeting.key}/open"
