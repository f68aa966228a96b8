"""The world of a role: the process groups of ranks 0..N-1 of one attempt.

It is opened before the rollout engine is created: vLLM takes the default group as its own world, so
no other role may be in it. Rank 0 serves its store, which ends with the attempt. Groups of some of
its ranks, if the layout has any, are opened with it.
"""

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
"""Function that opens a group; all ranks call it for all groups in the same order."""

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
    """Open a gloo group with these options; None, from code outside of this module: torch's."""
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
    group: dist.ProcessGroup | None  # of all ranks; None for a single rank without one
    store: Store  # key-value store of the ranks, prefixed by the attempt
    dims: ParallelDims = field(default_factory=ParallelDims)  # the layout of the role
    # Of the ranks along `pipeline` again, for backward transfers; None for one stage.
    back: dist.ProcessGroup | None = None
    _groups: Mapping[tuple[Dimension, ...], dist.ProcessGroup] = field(default_factory=dict)
    # Of the ranks with different experts of a layer, and of those with shards of the same ones;
    # None without expert parallelism.
    experts: dist.ProcessGroup | None = None
    expert_shards: dist.ProcessGroup | None = None
    engine: dist.ProcessGroup | None = None  # of a rollout engine's ranks; None for one rank

    @property
    def leads_engine(self) -> bool:
        """Whether it is the first of the ranks that share its engine."""
        return self.engine is None or self.engine.rank() == 0

    @classmethod
    def alone(cls, device: torch.device | str = "cpu") -> "World":
        """Return the world of a single rank, without a process group."""
        return cls(0, 1, torch.device(device), None, HashStore())

    def along(self, *names: Dimension) -> dist.ProcessGroup | None:
        """Return the group of the ranks that differ from this one only in these dimensions.

        They are all of `HOLDERS`, `replicate`, `pipeline`, `sequence`, `tensor` or all of `WITHIN`.
        None for a single rank; for `HOLDERS` there is a group even then, for a mesh.
        """
        return self._groups.get(names)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Address of an attempt's store, served by rank 0, and the prefix of its keys."""

    host: str
    port: int
    key: str  # <job uid>/<role>/<attempt>


@contextmanager
def open_world(
    rank: int,
    size: int,
    device: torch.device,
    *,
    dims: ParallelDims | None = None,
    engine_ranks: int = 1,
    address: str = "127.0.0.1",
    rendezvous: Rendezvous | None = None,
    open_seconds: float = 300.0,
    operation_seconds: float = 600.0,
) -> Iterator[World]:
    """Join the world of a role, over gloo or nccl; it ends with the block.

    Without `dims` all ranks share a model by FSDP. `engine_ranks` neighbours share a rollout
    engine. Gloo and the store bind only to the address of the pod, since pods on one machine share
    the ports. One rank needs no rendezvous, unless other roles connect to it. `open_seconds` is how
    long to wait for rank 0, `operation_seconds` the limit of one collective.

    Raises:
        WorldNotOpen: rank 0 did not open the store in time, or its port is taken.
    """
    assert size == 1 or rendezvous is not None, "several ranks need a store"
    dims = dims or ParallelDims(shard=size)
    assert dims.size == size, "the layout is one of all ranks"
    store: Store = HashStore()
    if rendezvous is not None and rank == 0:
        store = PrefixStore(rendezvous.key, _host_store(rendezvous, address, open_seconds))
    elif rendezvous is not None:
        store = find_store(rendezvous, open_seconds)
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
        yield _open_groups(rank, size, device, store, dims, engine_ranks, open_group)
    finally:
        dist.destroy_process_group()


def _open_groups(
    rank: int,
    size: int,
    device: torch.device,
    store: Store,
    dims: ParallelDims,
    engine_ranks: int,
    open_group: OpenGroup,
) -> World:
    """Open the groups of all ranks, in the same order on each, as torch requires."""
    whole_group = dist.group.WORLD
    assert whole_group is not None, "the world is initialized"

    def open_all(division: Sequence[tuple[int, ...]]) -> dist.ProcessGroup:
        groups = {ranks: open_group(ranks) for ranks in division}
        return next(group for ranks, group in groups.items() if rank in ranks)

    groups: dict[tuple[Dimension, ...], dist.ProcessGroup] = {}
    for names in _DIVISIONS:
        division = dims.groups(*names)
        if len(division) == 1:
            groups[names] = whole_group
        elif len(division[0]) > 1 or names == HOLDERS:
            groups[names] = open_all(division)
    back = open_all(dims.groups("pipeline")) if dims.pipeline > 1 else None
    experts = expert_shards = engine = None
    if dims.expert > 1:
        experts = open_all(dims.of_experts.groups("sequence"))
        expert_shards = open_all(dims.of_experts.groups("shard"))
    if engine_ranks > 1:
        engines = ParallelDims(replicate=size // engine_ranks, tensor=engine_ranks)
        engine = open_all(engines.groups("tensor"))
    more = {"experts": experts, "expert_shards": expert_shards, "engine": engine}
    return World(rank, size, device, whole_group, store, dims, back, groups, **more)


def _host_store(rendezvous: Rendezvous, address: str, open_seconds: float) -> TCPStore:
    """Serve the store on this pod's own address: by default torch binds to all."""
    try:
        listener = socket.create_server((address, rendezvous.port), backlog=_BACKLOG)
    except OSError as error:
        raise WorldNotOpen(
            f"{rendezvous.key}: got {address}:{rendezvous.port} for its store: {error}; a free port"
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
    store.set(f"{rendezvous.key}/open", "")
    return store


def find_store(rendezvous: Rendezvous, open_seconds: float = 10.0) -> Store:
    """Connect to the store of an attempt's rank 0; rank 0 may start much later.

    The store of an attempt that is ending may answer, so the attempt's own key is checked.

    Raises:
        WorldNotOpen: rank 0 does not answer within the time.
    """
    end, attempt = time.monotonic() + open_seconds, timedelta(seconds=_ATTEMPT_SECONDS)
    host, port = rendezvous.host, rendezvous.port
    while True:
        try:
            # Torch logs a page for every refused connection, so try a plain one first.
            socket.create_connection((host, port), _ATTEMPT_SECONDS).close()
            store = TCPStore(host, port, is_master=False, timeout=attempt, wait_for_workers=False)
            store.wait([f"{rendezvous.key}/open"], attempt)
        except (OSError, dist.DistError) as error:
            if time.monotonic() < end:
                time.sleep(_PAUSE_SECONDS)
                continue
            raise WorldNotOpen(
                f"{rendezvous.key}: rank 0 did not open its store at {host}:{port} within "
                f"{open_seconds:g} s"
            ) from error
        store.set_timeout(timedelta(seconds=open_seconds))
        return PrefixStore(rendezvous.key, store)
