"""A service over HTTP that answers what a test says."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TRICKLES = "never silent for long, and never done"
STALLS = "so far, and no further"
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""Status, body and headers; status 0 never answers. What is no text or bytes is sent as JSON."""
Answers = Answer | Callable[[Any], Answer]
"""One of these, or what makes it of the body that was sent."""


class Service(ThreadingHTTPServer):
    """Answers in turn, the last for ever; keeps path, body and authorization of each request."""

    daemon_threads = True

    def __init__(self, path: str, answers: tuple[Answers, ...], port: int = 0) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any, str | None]] = []
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}{path}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers["Authorization"]))
        number = min(len(self.server.asked), len(self.server.answers)) - 1
        told = self.server.answers[number]
        status, said, *more = told(body) if callable(told) else told
        if status == 0:
            while not self.server.is_over.wait(0.2 if said == TRICKLES else 60):
                self.wfile.write(b" ")
            return
        text = said if isinstance(said, str | bytes) else json.dumps(said)
        payload = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        for name, value in more[0].items() if more else ():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(payload) + (said == STALLS)))
        self.end_headers()
        self.wfile.write(payload)
        if said == STALLS:
            self.wfile.flush()
            self.server.is_over.wait(60)

    def log_message(self, *_: object) -> None:
        return None


@contextmanager
def services(path: str) -> Iterator[Callable[..., Service]]:
    """Starts services that answer what it is given, and ends them."""
    started: list[Service] = []

    def start(*answers: Answers, port: int = 0) -> Service:
        started.append(Service(path, answers, port))
        return started[-1]

    yield start
    for service in started:
        service.is_over.set()
        service.shutdown()
        service.server_close()
