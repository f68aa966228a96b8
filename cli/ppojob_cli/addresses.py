"""Addresses for pods on one machine: each its own in 127.0.1.0/24, so that ports are the same.

An address is taken by a lock on a small file, which the kernel drops when the runner ends.
"""

import fcntl
import os
import tempfile
from pathlib import Path

from ppojob_trainer.errors import ConfigError

_FIRST, _LAST = 1, 254


class Addresses:
    """Takes loopback addresses that no other runner of this machine has."""

    def __init__(self) -> None:
        self._locks: list[int] = []
        self._next = _FIRST
        self._folder = Path(tempfile.gettempdir()) / f"ppojob-addresses-{os.getuid()}"
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def take(self) -> str:
        """One more address.

        Raises:
            ConfigError: all are taken.
        """
        while self._next <= _LAST:
            address = f"127.0.1.{self._next}"
            self._next += 1
            lock = os.open(self._folder / address, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._locks.append(lock)
            return address
        raise ConfigError(
            f"roles: all {_LAST} addresses for pods on this machine are taken; "
            "fewer replicas, or wait for another run to end"
        )

    def close(self) -> None:
        """Give all back."""
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()
