"""SIGTERM asks a job to end behind its step; it waits until whoever is asked listens.

A process takes seconds to get as far as its handler, and a SIGTERM before that kills it (or, sent
to PID 1 of a container, is dropped by the kernel). So whoever starts a process that listens does so
with the signal held back: the mask outlives fork and exec, and the kernel keeps the signal.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_STOP = frozenset({signal.SIGTERM})


def hold_back() -> None:
    """Let a SIGTERM to this process wait until a `StopRequest` listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)


@contextmanager
def held_back() -> Iterator[None]:
    """Start processes with SIGTERM held back, which each of them must listen for in the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopRequest:
    """Remembers a SIGTERM, also one that waited for this; made by the main thread."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)

    def __call__(self) -> bool:
        """Whether somebody asked this process to end."""
        return self._asked

    def _ask(self, *_: object) -> None:
        self._asked = True
