"""What the runner makes of whatever answers where a pod should."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from ppojob_api import contract
from ppojob_cli.addresses import Addresses
from ppojob_cli.local_pods import RunningPod
from ppojob_operator.build.pods import Pod

pytestmark = pytest.mark.processes


@pytest.fixture
def address() -> Iterator[str]:
    with closing(Addresses()) as addresses:
        yield addresses.take()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b'HTTP/1.0 200 OK\r\n\r\n{"role": 3}',
        b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"220 mail\r\n",
        b"",
    ],
)
def test_another_program_is_no_pod(answer: bytes, address: str) -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    with (
        socket.create_server((address, contract.PORT_HEALTH)) as listener,
        subprocess.Popen([sys.executable, "-c", ""]) as process,
    ):
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        pod = Pod("p", "p", "reward", 0, gpus=0)
        assert RunningPod(pod, address, process).status() is None
        thread.join()
