"""The TCP sockets of this process: which of them listen, and how a connection is cut.

Gloo names none of its sockets, so they are told by their addresses. Descriptors are never kept: a
number that gloo has closed may be somebody else's a moment later.
"""

import os
import socket
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TypeVar

Endpoint = tuple[str, int]
"""IP address and port."""

_Made = TypeVar("_Made")


def listeners_of(make: Callable[[], _Made]) -> tuple[_Made, list[Endpoint]]:
    """Call `make`; also say where it has begun to listen."""
    before = set(_listening())
    made = make()
    return made, sorted(set(_listening()) - before)


def shut_down_connections(listeners: Collection[Endpoint]) -> None:
    """End every connection of this process that has one of these listeners at either end.

    Who waits on such a connection in another thread gets an error at once. The listeners are left
    alone: gloo ends the process when its own is shut down.
    """
    for connection in _sockets():
        with connection, suppress(OSError):  # not connected, or closed since it was found
            remote = connection.getpeername()
            ends = (connection.getsockname()[:2], remote[:2])
            if any(end in listeners for end in ends):
                connection.shutdown(socket.SHUT_RDWR)


def _listening() -> Iterator[Endpoint]:
    for found in _sockets():
        with found, suppress(OSError):
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield found.getsockname()[:2]


def _sockets() -> Iterator[socket.socket]:
    """A handle of its own on each TCP socket of this process; whoever takes it closes it."""
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
