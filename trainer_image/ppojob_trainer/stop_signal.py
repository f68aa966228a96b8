"""SIGTERM asks a job to end after its step; it waits until the process that is asked listens.

A process takes seconds to get as far as its handler, and a SIGTERM before that kills it (or, sent
to PID 1 of a container, is dropped by the kernel). So a process that listens is started with
the signal held back: the mask outlives fork and exec, and the kernel keeps the signal.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

END_OF_ROLE: Final = signal.SIGUSR2
"""Ends a role's pod on one machine, where SIGTERM is not the runner's alone: a service manager
sends it to all processes of a job at once, and roles must live on until the step is in a
checkpoint."""

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
    """Remembers that it was asked, also while that waited for this; made by the main thread.

    Args:
        number: the signal that asks; where it is another, SIGTERM stays held back.
    """

    def __init__(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._asked = False
        signal.signal(number, self._ask)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

    def __call__(self) -> bool:
        """Whether somebody asked this process to end."""
        return self._asked

    def _ask(self, *_: object) -> None:
        self._asked = True
