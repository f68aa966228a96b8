"""Servers and callers over a real socket, with real keys, in one process; and roles of them.

Fixtures: a folder of tests that wants them names them in its conftest.py.
"""

import ipaddress
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.rpc.client import Caller, Peer
from ppojob_trainer.rpc.identity import Agreement
from ppojob_trainer.rpc.keys import KeyRing, read_key_ring, write_key_folders
from ppojob_trainer.rpc.messages.pods import PodStatus
from ppojob_trainer.rpc.methods import STATUS
from ppojob_trainer.rpc.server import Route, RpcServer

ROLES = ("controller", "actorRollout", "reference", "reward", "tools", "retriever")
_ports = itertools.count(20_000)


def _own_host() -> str:
    """A loopback address that no other process of the tests takes."""
    return str(ipaddress.IPv4Address("127.64.0.0") + os.getpid() % (1 << 22))


@pytest.fixture
def rings(tmp_path: Path) -> dict[str, KeyRing]:
    write_key_folders(tmp_path / "keys", ROLES)
    return {role: read_key_ring(tmp_path / "keys" / role, role) for role in ROLES}


@pytest.fixture
def serve(rings: dict[str, KeyRing]) -> Iterator[Callable[..., Peer]]:
    """Starts servers whose work runs on a thread of their own."""
    servers: list[tuple[RpcServer, threading.Thread]] = []

    def start(routes: list[Route], role: str = "actorRollout", attempt: int | None = 1) -> Peer:
        host, port = _own_host(), next(_ports)
        server = RpcServer(host, port, rings[role], routes, attempt)
        server.start()
        worker = threading.Thread(target=server.work, daemon=True)
        worker.start()
        servers.append((server, worker))
        return Peer(f"{role} rank 0", host, port, role)

    yield start
    for server, worker in servers:
        server.close()
        worker.join(timeout=60)
        assert not worker.is_alive()


@pytest.fixture
def free_peer() -> Peer:
    return Peer("nobody", _own_host(), next(_ports), "actorRollout")


@pytest.fixture
def caller_of(rings: dict[str, KeyRing]) -> Iterator[Callable[..., Caller]]:
    """Makes callers with the key of a role."""
    callers: list[Caller] = []

    def make(role: str = "controller", *, attempt: int = 1, ring: KeyRing | None = None) -> Caller:
        caller = Caller(ring or rings[role], attempt=attempt, default_deadline_seconds=3.0)
        callers.append(caller)
        return caller

    yield make
    for caller in callers:
        caller.close()


@pytest.fixture
def role_of(serve: Callable[..., Peer]) -> Callable[..., RoleGroup]:
    """A role of ranks with these routes, whose supervisor finds that all is well."""

    def make(role: str, *ranks: list[Route], attempt: int = 1) -> RoleGroup:
        peers = tuple(serve(routes, role, attempt) for routes in ranks)
        ready = PodStatus(role, 0, attempt, "ready")
        supervisor = serve([Route(STATUS, lambda _: ready)], role, None)
        has_state = role == "actorRollout"
        return RoleGroup(role, (supervisor,), peers, has_state, False, attempt, has_state)

    return make


@pytest.fixture
def roles_of(caller_of: Callable[..., Caller]) -> Callable[..., Roles]:
    """Roles as a controller of an attempt sees them."""

    def make(*groups: RoleGroup, attempt: int = 1, rewinds: int = 0) -> Roles:
        caller = caller_of(attempt=attempt)
        caller.default_deadline_seconds = 60.0
        agreement = Agreement("c", "r")
        return Roles(caller, groups, 60.0, lambda: False, agreement, rewinds)

    return make
