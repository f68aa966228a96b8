"""What a pod says of itself over HTTP: for probes, and for whoever must know how it ended.

Read-only and without secrets: process ids and states, no prompt, no reward.
"""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from ppojob_trainer.rpc.messages import PodStatus


class HealthServer:
    """Serves `/healthz` (the supervisor lives) and `/status` (a `PodStatus` as JSON).

    Args:
        address: IP address to bind.
        port: port to bind.
        status: gives the pod's state.
    """

    def __init__(self, address: str, port: int, status: Callable[[], PodStatus]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/healthz":
                    self._answer(b"ok\n", "text/plain")
                elif self.path == "/status":
                    self._answer(msgspec.json.encode(status()), "application/json")
                else:
                    self.send_error(HTTPStatus.NOT_FOUND)

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Probes come every few seconds and are no news."""

        self._server = ThreadingHTTPServer((address, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
