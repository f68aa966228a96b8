"""HTTP server of a pod for public read-only pages."""

import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_POLL_SECONDS = 3600.0  # `close` wakes the thread


class PageHandler(BaseHTTPRequestHandler):
    """Base class of request handlers."""

    def answer(self, body: bytes, content_type: str, status: int = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log no requests."""


class PageServer(ThreadingHTTPServer):
    """Server with a thread per connection; listens from construction, port 0 selects a free port.

    OSError if the address cannot be bound.
    """

    idle_seconds = 10.0  # timeout of a connection

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((address, port), handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="pages", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: object) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Bind without the DNS lookup of the parent class."""
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accept a connection and set its timeout."""
        connection, peer = super().get_request()
        connection.settimeout(self.idle_seconds)
        return connection, peer
