"""What a pod says of itself over HTTP: for probes, and for whoever must know how it ended.

Read-only and without secrets: process ids, states and sizes, no prompt, no reward.
"""

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

import msgspec

from ppojob_trainer.metrics.page_server import PageServer
from ppojob_trainer.rpc.messages.pods import PodStatus
from ppojob_trainer.supervisor.pod_metrics import CONTENT_TYPE, PodMetrics


def health_server(
    address: str, port: int, status: Callable[[], PodStatus], metrics: PodMetrics
) -> PageServer:
    """A server of `/healthz` (the supervisor lives), `/status` (a `PodStatus` as JSON), `/metrics`.

    Args:
        address: IP address to bind.
        port: port to bind; 0 takes a free one.
        status: gives the pod's state.
        metrics: gives its series.
    """

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

    return PageServer(address, port, Handler)
