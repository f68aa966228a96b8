"""What a pod says of itself over HTTP: for probes, and for whoever must know how it ended.

Read-only and without secrets: process ids, states and sizes, no prompt, no reward.
"""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from ppojob_trainer.rpc.messages import PodStatus
from ppojob_trainer.supervisor.pod_metrics import CONTENT_TYPE, PodMetrics


class HealthServer:
    """Serves `/healthz` (the supervisor lives), `/status` (a `PodStatus` as JSON), `/metrics`.

    Args:
        address: IP address to bind.
        port: port to bind; 0 takes a free one.
        status: gives the pod's state.
        metrics: gives its series.
    """

    def __init__(
        self, address: str, port: int, status: Callable[[], PodStatus], metrics: PodMetrics
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/healthz":
                    self._answer(b"ok\n", "text/plain")
                elif self.path == "/status":
                    self._answer(msgspec.json.encode(status()), "application/json")
                elif self.path == "/metrics":
                    self._answer(metrics.page(), CONTENT_TYPE)
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

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self._server.server_port

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
