"""Graceful stop: SIGTERM asks a job to end after the current step.

A process needs seconds until its handler is installed; an earlier SIGTERM would kill it (or, as PID
1 of a container, be dropped). So processes are started with SIGTERM blocked: the mask survives fork
and exec, and the kernel keeps the signal pending.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

END_OF_ROLE: Final = signal.SIGUSR2
"""Ends a role's pod under `ppojob run`. A service manager sends SIGTERM to all processes of a job
at once, but roles must live until the step is in a checkpoint."""

_STOP = frozenset({signal.SIGTERM})


def block_sigterm() -> None:
    """Block SIGTERM in this process until a `StopRequest` is created."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)


@contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Block SIGTERM for the processes started in the block; each must create a `StopRequest`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopRequest:
    """Records that a stop was requested, including pending signals; create it in the main thread.

    With another signal `number`, SIGTERM stays blocked.
    """

    def __init__(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._is_set = False
        signal.signal(number, self._set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

    def __call__(self) -> bool:
        """Whether a stop was requested."""
        return self._is_set

    def _set(self, *_: object) -> None:
        self._is_set = True
