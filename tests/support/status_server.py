"""An API server over HTTPS that knows one PPOJob, and fails as it is told."""

import ssl
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_api_server import Answer, FakeApiServer, Request, serving

from ppojob_trainer.kubernetes_api import ApiAccess


def failing(status: int, message: str = "why", **answer: Any) -> Answer:
    """How a request fails instead of being carried out."""
    return Answer(status, {"message": message}, **answer)


@dataclass
class Write:
    """A `status.training` that was written, and the token of its writer."""

    training: dict[str, Any]
    token: str


@dataclass
class StatusServer(FakeApiServer):
    folder: Path = Path()
    """For the certificate and the credentials."""
    uid: str = "u1"
    """Of the job that is there; empty: of none."""
    version: int = 1
    """Of the job; anybody may raise it."""
    faults: deque[Answer] = field(default_factory=deque)
    """One is taken by each request."""
    writes: list[Write] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    @property
    def states(self) -> list[dict[str, Any]]:
        return [write.training for write in self.writes]

    @property
    def access(self) -> ApiAccess:
        return ApiAccess("127.0.0.1", self.port, self.folder)

    def set_token(self, token: str) -> None:
        aside = self.folder / "token.aside"
        aside.write_text(token)
        aside.rename(self.folder / "token")

    def answer(self, request: Request) -> Answer:
        assert request.method == "PATCH"
        assert request.headers["Content-Type"] == "application/apply-patch+yaml"
        assert request.headers["User-Agent"] == "ppojob-controller"
        with self._lock:
            self.requests.append(request)
            return self.faults.popleft() if self.faults else self._carry_out(request)

    def _carry_out(self, request: Request) -> Answer:
        assert request.query["force"] == "true"
        assert request.query["fieldManager"] == "ppojob-controller"
        if not self.uid:
            return Answer(404, {"message": "not found", "details": {"name": "sum"}})
        wanted = request.body["metadata"].get("resourceVersion")
        if wanted is not None and wanted != str(self.version):
            return Answer(409, {"message": "the object has been modified"})
        if request.query.get("dryRun") != "All":
            assert set(request.body["status"]) == {"training"}
            self.version += 1
            token = request.headers["Authorization"].removeprefix("Bearer ")
            self.writes.append(Write(request.body["status"]["training"], token))
        return Answer(value={"metadata": {"uid": self.uid, "resourceVersion": str(self.version)}})


@contextmanager
def status_server(folder: Path) -> Iterator[StatusServer]:
    """A server with a certificate, and a token, in a folder."""
    with serving(lambda: StatusServer(folder=folder), make_context(folder)) as one:
        one.set_token("first")
        yield one


def make_context(folder: Path) -> ssl.SSLContext:
    """TLS settings of a server with a certificate of the folder's authority, `ca.crt`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(folder))
    return context


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, of an authority whose constraints are not critical."""
    authority, certificate, key = (folder / one for one in ("ca.crt", "server.crt", "server.key"))
    _openssl(authority, folder / "ca.key", "basicConstraints=CA:TRUE")
    signer = ("-CA", str(authority), "-CAkey", str(folder / "ca.key"))
    names = ("basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=IP:127.0.0.1")
    _openssl(certificate, key, *names, *signer)
    return certificate, key


def _openssl(certificate: Path, key: Path, *extensions: str) -> None:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subject = ("-subj", f"/CN={certificate.stem}", "-days", "2", "-addext", *extensions)
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *files, *subject], check=True, capture_output=True
    )
