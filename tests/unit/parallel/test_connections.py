import os
import socket

import pytest

from ppojob_trainer.parallel.channel import shut_down_connections


@pytest.fixture
def connected():
    opened: list[socket.socket] = []

    def connect() -> tuple[tuple[str, int], socket.socket, socket.socket]:
        listener = socket.create_server(("127.0.1.9", 0))
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        opened.extend((listener, near, far))
        return listener.getsockname(), near, far

    yield connect
    for each in opened:
        each.close()


def test_looking_for_sockets_leaves_no_descriptor_open(connected):
    endpoint, _, _ = connected()
    before = len(os.listdir("/proc/self/fd"))
    shut_down_connections([endpoint])
    assert len(os.listdir("/proc/self/fd")) == before


def test_listeners_and_the_connections_of_others_live_on(connected):
    endpoint, _, _ = connected()
    _, near, far = connected()
    shut_down_connections([endpoint])
    near.sendall(b"alive")
    assert far.recv(5) == b"alive"
    with socket.create_connection(endpoint) as late:
        late.sendall(b"still listening")
