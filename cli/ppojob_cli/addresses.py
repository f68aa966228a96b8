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
    """Takes loopback addresses that no other runner of this machine has.

    Args:
        ranks_per_pod: the most that a pod has; each listens on a port of its own.
    """

    def __init__(self, ranks_per_pod: int = 1) -> None:
        self._ports: tuple[int, ...] = (
            contract.PORT_SUPERVISOR,
            contract.PORT_STORE,
            contract.PORT_HEALTH,
            contract.PORT_METRICS,
            *range(contract.PORT_FIRST_RANK, contract.PORT_FIRST_RANK + ranks_per_pod),
        )
        self._taken: list[socket.socket] = []
        self._next = _FIRST

    def take(self) -> str:
        """One more address.

        Raises:
            ConfigError: all are taken.
        """
        busy_port = None
        while self._next <= _LAST:
            address = f"127.0.1.{self._next}"
            self._next += 1
            name = socket.socket(socket.AF_UNIX)
            try:
                name.bind(f"\0ppojob/{address}")
            except OSError:
                name.close()
                continue
            # No runner has it, yet some other program may listen there.
            busy_port = self._busy_port(address)
            if busy_port is None:
                self._taken.append(name)
                return address
            name.close()
        if busy_port is not None:
            raise ConfigError(
                f"roles: got port {busy_port} taken at the addresses for pods on this machine, up "
                f"to 127.0.1.{_LAST}: a program listens there; end it, see ss -ltnp"
            )
        raise ConfigError(
            f"roles: all {_LAST} addresses for pods on this machine are taken; "
            "fewer replicas, or wait for another run to end"
        )

    def close(self) -> None:
        """Give all back."""
        for name in self._taken:
            name.close()
        self._taken.clear()

    def _busy_port(self, address: str) -> int | None:
        """A port on which a pod could not listen."""
        for port in self._ports:
            try:
                socket.create_server((address, port)).close()
            except OSError:
                return port
        return None
