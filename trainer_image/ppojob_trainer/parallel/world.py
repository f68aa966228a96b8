"""The world of a role: the process groups of ranks 0..N-1 of one attempt.

It must exist before the rollout engine is made: vLLM takes the default group as its own world, so
no other role may be in it. Its store is served by rank 0 and ends with the attempt. Groups of some
of its ranks, if the layout has any, are opened with it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from ppojob_trainer.errors import WorldNotOpen
from ppojob_trainer.parallel.dims import HOLDERS, WITHIN, Dimension, ParallelDims

_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_BACKLOG = 1024
OpenGroup = Callable[[tuple[int, ...]], dist.ProcessGroup]
"""Function that opens a group; all ranks call it for all groups in one order, as torch requires."""

_DIVISIONS: tuple[tuple[Dimension, ...], ...] = (
    HOLDERS,
    ("replicate",),
    ("pipeline",),
    ("sequence",),
    ("tensor",),
    WITHIN,
)
"""Dimensions with groups of their own, unless they are all ranks."""

POD_GLOO = "pod_gloo"
"""A backend of gloo groups that listen on a given address.

Torch's own takes no options from Python, and listens on the address of the host name.
"""


def gloo_options(address: str, timeout_seconds: float) -> Any:
    """Return options of a gloo group; each call opens a listening socket that lives as long.

    Bound to the pod's own address: `GLOO_SOCKET_IFNAME=lo` would put all pods of a laptop on
    127.0.0.1. The timeout is that of opening the group and of each of its operations.
    """
    gloo: Any = dist.ProcessGroupGloo  # its stubs lack `_Options`
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    options._devices = [gloo.create_device(hostname=address, lazy_init=False)]
    return options


def _open_gloo(place: Any, options: Any) -> dist.ProcessGroupGloo:
    """Open a gloo group with these options; without (by other code) with torch's own."""
    of_group = (place.store, place.group_rank, place.group_size)
    if options is None:
        return dist.ProcessGroupGloo(*of_group, timeout=place.timeout)
    return dist.ProcessGroupGloo(*of_group, options)


dist.Backend.register_backend(POD_GLOO, _open_gloo, extended_api=True, devices=["cpu"])


@dataclass(frozen=True, slots=True)
class World:
    """A rank's place among the ranks of its role, with its process groups."""

    rank: int  # 0 to size - 1
    size: int  # ranks of the role
    device: torch.device  # where its tensors are
    # of all ranks; None only for a single rank without a process group
    group: dist.ProcessGroup | None
    store: Store  # key-value store of the ranks, prefixed by the attempt
    dims: ParallelDims = field(default_factory=ParallelDims)  # the layout of the role
    # the ranks along `pipeline` again, for backward transfers; None for one stage
    back: dist.ProcessGroup | None = None
    _groups: Mapping[tuple[Dimension, ...], dist.ProcessGroup] = field(default_factory=dict)
    # of the ranks that share the experts of a layer, and of those with shards of the same ones;
    # None without expert parallelism
    experts: dist.ProcessGroup | None = None
    expert_shards: dist.ProcessGroup | None = None
    # of the ranks that share this one's rollout engine; None if it has its own
    engine: dist.ProcessGroup | None = None

    @property
    def leads_engine(self) -> bool:
        """Whether it is the first of the ranks that share its engine."""
        return self.engine is None or self.engine.rank() == 0

    @classmethod
    def alone(cls, device: torch.device | str = "cpu") -> World:
        """Return the world of a single rank, without a process group."""
        return cls(0, 1, torch.device(device), None, HashStore())

    def along(self, *names: Dimension) -> dist.ProcessGroup | None:
        """Return the group of the ranks that differ from this one only in these dimensions.

        They are all of `HOLDERS`, `replicate`, `pipeline`, `sequence`, `tensor` or all of `WITHIN`.
        None for a single rank; for `HOLDERS` there is a group even then, for a mesh.
        """
        return self._groups.get(names)


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Address and key of an attempt's store, served by rank 0.

    The key, `<job uid>/<role>/<attempt>`, is the prefix of all keys there.
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
    engine_ranks: int = 1,
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
        dims: the layout of the role; None: FSDP over all ranks.
        engine_ranks: number of neighbours that share a rollout engine.
        address: of this pod; gloo and the store bind only to it, since pods on one machine
            share the ports.
        meeting: the store; None for one rank whose store nobody else needs.
        open_seconds: how long to wait for rank 0.
        operation_seconds: limit of one collective.

    Raises:
        WorldNotOpen: rank 0 did not come, or its port is taken.
    """
    assert size == 1 or meeting is not None, "several ranks have to meet"
    dims = dims or ParallelDims(shard=size)
    assert dims.size == size, "a layout has a place for each rank"
    store: Store = HashStore()
    if meeting is not None and rank == 0:
        store = PrefixStore(meeting.key, _host_store(meeting, address, open_seconds))
    elif meeting is not None:
        store = find_store(meeting, open_seconds)
    limit = timedelta(seconds=operation_seconds)
    backend = POD_GLOO
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"

    def options() -> Any:
        return gloo_options(address, operation_seconds) if backend == POD_GLOO else None

    def open_group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
        own = options() if rank in ranks else None
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=limit, pg_options=own)
        return group

    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=limit, pg_options=options()
    )
    try:
        yield _world_of(rank, size, device, store, dims, engine_ranks, open_group)
    finally:
        dist.destroy_process_group()


def _world_of(
    rank: int,
    size: int,
    device: torch.device,
    store: Store,
    dims: ParallelDims,
    engine_ranks: int,
    open_group: OpenGroup,
) -> World:
    """Return the place of a rank in the open world, with all of its groups."""
    groups, back = _open_groups(dims, rank, open_group)
    experts = expert_shards = None
    if dims.expert > 1:
        experts = _open_division(dims.of_experts.groups("sequence"), rank, open_group)
        expert_shards = _open_division(dims.of_experts.groups("shard"), rank, open_group)
    engine = None
    if engine_ranks > 1:
        engines = ParallelDims(replicate=size // engine_ranks, tensor=engine_ranks)
        engine = _open_division(engines.groups("tensor"), rank, open_group)
    shared = {"experts": experts, "expert_shards": expert_shards, "engine": engine}
    return World(rank, size, device, dist.group.WORLD, store, dims, back, groups, **shared)


def _open_groups(
    dims: ParallelDims, rank: int, open_group: OpenGroup
) -> tuple[dict[tuple[Dimension, ...], dist.ProcessGroup], dist.ProcessGroup | None]:
    """Open the groups of this rank, and the one for backward transfers along a pipeline.

    All ranks open all of them in one order, as torch requires.
    """
    found: dict[tuple[Dimension, ...], dist.ProcessGroup] = {}
    everybody = dist.group.WORLD
    assert everybody is not None, "the world comes before its parts"
    for names in _DIVISIONS:
        division = dims.groups(*names)
        if len(division) == 1:
            found[names] = everybody
        elif len(division[0]) > 1 or names == HOLDERS:
            found[names] = _open_division(division, rank, open_group)
    back = None
    if dims.pipeline > 1:
        back = _open_division(dims.groups("pipeline"), rank, open_group)
    return found, back


def _open_division(
    division: Sequence[tuple[int, ...]], rank: int, open_group: OpenGroup
) -> dist.ProcessGroup:
    """Open all groups of a division of the ranks; return this rank's."""
    groups = {ranks: open_group(ranks) for ranks in division}
    return next(group for ranks, group in groups.items() if rank in ranks)


def _host_store(meeting: MeetingPoint, address: str, open_seconds: float) -> TCPStore:
    """Serve the store on this pod's own address: by default torch binds to all."""
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


def find_store(meeting: MeetingPoint, open_seconds: float = 10.0) -> Store:
    """Connect to the store of an attempt's rank 0; rank 0 may start much later.

    The store of an attempt that is ending may answer, so the attempt's own key is checked.

    Raises:
        WorldNotOpen: rank 0 does not answer within the time.
    """
    end, attempt = time.monotonic() + open_seconds, timedelta(seconds=_ATTEMPT_SECONDS)
    host, port = meeting.host, meeting.port
    while True:
        try:
            # Torch logs a page for every refusal, so connect only once somebody listens.
            socket.create_connection((host, port), _ATTEMPT_SECONDS).close()
            store = TCPStore(host, port, is_master=False, timeout=attempt, wait_for_workers=False)
            store.wait([_open_key(meeting)], attempt)
        except (OSError, dist.DistError) as error:
            if time.monotonic() < end:
                time.sleep(_PAUSE_SECONDS)
                continue
            raise WorldNotOpen(
                f"{meeting.key}: rank 0 did not open its store at {host}:{port} within "
                f"{open_seconds:g} s"
            ) from error
        store.set_timeout(timedelta(seconds=open_seconds))
        return PrefixStore(meeting.key, store)


def _open_key(meeting: MeetingPoint) -> str:
    return f"{meeting.key}/open"
