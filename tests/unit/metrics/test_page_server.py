import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

import pytest

from ppojob_trainer.metrics.page_server import PageServer


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a name server was asked"))
    with closing(PageServer("127.0.0.1", 0, Page)) as made:
        made.start()
        yield made


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.0\r\nHost: "])
def test_a_connection_that_falls_silent_is_closed(said: bytes, server: PageServer) -> None:
    server.idle_seconds = 0.1
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(said)
        assert connection.recv(1) == b""


def test_a_page_is_answered(server: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 200 OK\r\n")


def test_a_peer_that_has_gone_is_no_news(capfd) -> None:
    """A probe that waits two seconds on a busy machine, say; what it leaves is no stack trace."""
    asked, gone = threading.Event(), threading.Event()

    class Slow(Page):
        def do_GET(self) -> None:
            asked.set()
            gone.wait(60)
            for _ in range(1_000):
                self.wfile.write(b"x" * 10_000)

    with closing(PageServer("127.0.0.1", 0, Slow)) as server:
        server.daemon_threads = False  # its end waits for them
        server.start()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            asked.wait(60)
        gone.set()
    assert capfd.readouterr().err == ""


@pytest.mark.timeout(60)
def test_one_that_waits_is_closed_at_once() -> None:
    with closing(PageServer("127.0.0.1", 0, Page)) as waiting:
        waiting.start()
        with socket.create_connection(("127.0.0.1", waiting.port), timeout=60) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(1) == b"H"  # it has begun to wait, and does again
