"""An API server over HTTPS that knows one PPOJob, and fails as it is told."""

import json
import ssl
import subprocess
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ppojob_trainer.pod_environment import ApiAccess


@dataclass(frozen=True)
class Fault:
    """How a request fails instead of being carried out.

    Attributes:
        status: of the answer; 0: the connection is cut; -1: nothing is ever said.
        message: of the answer.
        headers: of the answer.
        body: of the answer, where it is not to be a proper one.
    """

    status: int
    message: str = "why"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


@dataclass
class Write:
    """A `status.training` that was written, and the token of its writer."""

    training: dict[str, Any]
    token: str


@dataclass
class StatusServer:
    """The server; use as a context manager.

    Attributes:
        folder: for the certificate and the credentials.
        uid: of the job that is there; empty: of none.
        version: of the job; anybody may raise it.
        faults: one is taken by each request.
        writes: states, in their order.
        requests: queries of all requests, failed ones too.
        paths: of all requests.
    """

    folder: Path
    uid: str = "u1"
    version: int = 1
    faults: deque[Fault] = field(default_factory=deque)
    writes: list[Write] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    @property
    def states(self) -> list[dict[str, Any]]:
        """What was written, in its order."""
        return [write.training for write in self.writes]

    @property
    def access(self) -> ApiAccess:
        """The way in."""
        return ApiAccess("127.0.0.1", self._server.server_port, self.folder)

    def set_token(self, token: str) -> None:
        """Replace the token, as a kubelet does."""
        aside = self.folder / "token.aside"
        aside.write_text(token)
        aside.rename(self.folder / "token")

    def __enter__(self) -> "StatusServer":
        self._end = threading.Event()
        self._lock = threading.Lock()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*make_certificate(self.folder))
        self.set_token("first")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                url = urlsplit(self.path)
                query = {name: one[0] for name, one in parse_qs(url.query).items()}
                assert self.headers["Content-Type"] == "application/apply-patch+yaml"
                assert self.headers["User-Agent"] == "ppojob-controller"
                with server._lock:
                    server.paths.add(url.path)
                    server.requests.append(query)
                    fault = server.faults.popleft() if server.faults else None
                if fault is None:
                    token = self.headers["Authorization"].removeprefix("Bearer ")
                    with server._lock:
                        status, answer = server._carry_out(json.loads(body), query, token)
                    self._answer(status, json.dumps(answer).encode())
                elif fault.status > 0:
                    proper = json.dumps({"message": fault.message}).encode()
                    body = proper if fault.body is None else fault.body
                    self._answer(fault.status, body, fault.headers)
                elif fault.status < 0:
                    server._end.wait()

            def _answer(
                self, status: int, data: bytes, headers: tuple[tuple[str, str], ...] = ()
            ) -> None:
                self.send_response(status)
                for name, value in (*headers, ("Content-Length", str(len(data)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        return Handler

    def _carry_out(
        self, body: dict[str, Any], query: dict[str, str], token: str
    ) -> tuple[int, object]:
        assert query["force"] == "true"
        assert query["fieldManager"] == "ppojob-controller"
        if not self.uid:
            return 404, {"message": "not found", "details": {"name": "sum"}}
        wanted = body["metadata"].get("resourceVersion")
        if wanted is not None and wanted != str(self.version):
            return 409, {"message": "the object has been modified"}
        if query.get("dryRun") != "All":
            assert set(body["status"]) == {"training"}
            self.version += 1
            self.writes.append(Write(body["status"]["training"], token))
        return 200, {"metadata": {"uid": self.uid, "resourceVersion": str(self.version)}}


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, `ca.crt`, and its key."""
    certificate, key = folder / "ca.crt", folder / "server.key"
    subject = ("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *files, *subject], check=True, capture_output=True
    )
    return certificate, key
