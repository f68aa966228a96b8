"""The HTTP server of a pod: pages that anybody may read, and nobody can hold on to."""

import socket
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class PageServer(ThreadingHTTPServer):
    """Answers each connection on a thread of its own; listens from the time it is made.

    Port 0 takes a free one; an OSError says that address and port cannot be bound.
    """

    idle_seconds = 10.0
    """A connection that sends or takes nothing for this long is closed."""

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((address, port), handler)
        self._thread = threading.Thread(target=self.serve_forever, name="pages", daemon=True)

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self.socket.getsockname()[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: object) -> None:
        """Say nothing of a peer that has gone before it was answered."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Bind, without asking a name server as the parent class does: one may be down."""
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Take a connection."""
        connection, peer = super().get_request()
        connection.settimeout(self.idle_seconds)
        return connection, peer
