"""Addresses for pods on one machine: each its own in 127.0.1.0/24, so that ports are the same.

An address is taken by a name in the kernel's list of sockets. That list belongs to the network, as
the addresses do: it is the same for all users of the machine, and another one in a container. The
kernel drops the name when the runner ends.
"""

import socket

from ppojob_api import contract
from ppojob_trainer.errors import ConfigError

_FIRST, _LAST = 1, 254


class Addresses:
    """Takes loopback addresses that no other runner of this machine has."""

    def __init__(self) -> None:
        self._taken: list[socket.socket] = []
        self._next = _FIRST

    def take(self) -> str:
        """One more address.

        Raises:
            ConfigError: all are taken.
        """
        while self._next <= _LAST:
            address = f"127.0.1.{self._next}"
            self._next += 1
            name = socket.socket(socket.AF_UNIX)
            try:
                name.bind(f"\0ppojob/{address}")
                # No runner has it, yet some other program may listen there.
                socket.create_server((address, contract.PORT_SUPERVISOR)).close()
            except OSError:
                name.close()
                continue
            self._taken.append(name)
            return address
        raise ConfigError(
            f"roles: all {_LAST} addresses for pods on this machine are taken; "
            "fewer replicas, or wait for another run to end"
        )

    def close(self) -> None:
        """Give all back."""
        for name in self._taken:
            name.close()
        self._taken.clear()
