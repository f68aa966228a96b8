"""An API server of a few answers over real HTTP, and a kubeconfig that leads to it."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

TOKEN = "let-me-in"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """A JSON value, a body as it is, or parts of it in turn; status 0 cuts, and -1 is silent."""

    status: int = 200
    value: Any = None
    parts: Iterator[str] | None = None
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


Route = Answer | Callable[[Request], Answer]


def refusal(status: int, message: str) -> Answer:
    return Answer(status, {"kind": "Status", "code": status, "message": message})


def listed(*items: Any) -> Answer:
    return Answer(value={"metadata": {}, "items": list(items)})


def kubeconfig(
    server: str, user: dict[str, str], authority: Path | None = None, **context: str
) -> str:
    """What leads to a server; `authority` is the certificate of who signed for it."""
    trust = {} if authority is None else {"certificate-authority": str(authority)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **trust}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "me", **context}}],
        "current-context": "here",
    }
    return json.dumps(config)


@dataclass
class FakeApiServer:
    """Answers by method and path; anything else is not found. Keeps all that was asked."""

    routes: dict[str, Route] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        route = self.routes.get(f"{request.method} {request.path}")
        if route is None:
            return refusal(404, f"{request.path} not found")
        return route if isinstance(route, Answer) else route(request)

    def kubeconfig(self, path: Path, *, namespace: str = "lab") -> Path:
        """Write a kubeconfig that leads here."""
        server = f"http://127.0.0.1:{self.port}"
        path.write_text(kubeconfig(server, {"token": TOKEN}, namespace=namespace))
        return path


def _handler(fake: FakeApiServer, is_over: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.handle_one()

        def do_PATCH(self) -> None:
            self.handle_one()

        def handle_one(self) -> None:
            split = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            query = dict(parse_qsl(split.query))
            asked = Request(self.command, split.path, query, dict(self.headers), body)
            answer = fake.answer(asked)
            if answer.status <= 0:
                self.close_connection = answer.status == 0 or is_over.wait()
                return
            self.send_response(answer.status)
            if answer.parts is not None:
                self.send_parts(answer.parts)
                return
            whole = json.dumps(answer.value).encode() if answer.body is None else answer.body
            for name, value in (*answer.headers, ("Content-Length", str(len(whole)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(whole)

        def send_parts(self, parts: Iterator[str]) -> None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in parts:
                data = part.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *arguments: object) -> None:
            """Nobody reads it."""

    return Handler


Fake = TypeVar("Fake", bound=FakeApiServer)


@contextmanager
def serving(
    make: Callable[[], Fake] = FakeApiServer, context: ssl.SSLContext | None = None
) -> Iterator[Fake]:
    """A server on a free port; with a context, over TLS."""
    fake, is_over = make(), threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake, is_over))
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()
