"""HTTP server of a pod for public read-only pages; slow clients cannot block it."""

import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_LOOK_SECONDS = 3600.0
"""Poll interval of a server's thread; `close` wakes it by itself."""


class PageHandler(BaseHTTPRequestHandler):
    """Answers a request by one body."""

    def answer(self, body: bytes, kind: str, status: int = HTTPStatus.OK) -> None:
        """Send a body of a kind, such as `application/json`."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log no requests: there are thousands, and probes are no news."""


class PageServer(ThreadingHTTPServer):
    """Answers each connection on a thread of its own; listens from the time it is made.

    Port 0 takes a free one; an OSError says that address and port cannot be bound.
    """

    idle_seconds = 10.0
    """A connection that sends or takes nothing for this long is closed."""

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((address, port), handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_LOOK_SECONDS,), name="pages", daemon=True
        )

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self.socket.getsockname()[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which would look up too late
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
