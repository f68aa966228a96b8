import shutil
import socket
import subprocess
import sys
import threading
from contextlib import closing

import msgspec
import pytest

from ppojob_api import contract
from ppojob_api.topology import PodTopology
from ppojob_cli import local_pods
from ppojob_cli.local_pods import Addresses, RunningPod
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rpc.messages.pods import PodStatus

TAKE = "from ppojob_cli.local_pods import Addresses; print(Addresses().take())"
POD = PodTopology(name="p", host="p", index=0)
OTHER_USER = ("unshare", "--user", "--map-user=54321")


def test_no_address_is_given_twice() -> None:
    with closing(Addresses()) as one, closing(Addresses()) as other:
        assert len({one.take(), one.take(), other.take()}) == 3


@pytest.mark.parametrize("port", [7400, 7401, 7403, 7404, 7420, 7423])
def test_where_somebody_listens_is_no_room_for_a_pod(port: int) -> None:
    with closing(Addresses(ranks_per_pod=4)) as addresses:
        free = addresses.take()
    with socket.create_server((free, port)), closing(Addresses(ranks_per_pod=4)) as addresses:
        assert addresses.take() != free


def test_a_port_that_is_taken_everywhere_is_named() -> None:
    with (
        socket.create_server(("0.0.0.0", contract.PORT_FIRST_RANK + 40)),
        closing(Addresses(ranks_per_pod=41)) as addresses,
        pytest.raises(ConfigError, match=r"got port 7460 taken at .* a program listens there"),
    ):
        addresses.take()


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*OTHER_USER, "true"], check=False, capture_output=True).returncode != 0,
    reason="no user namespaces here",
)
@pytest.mark.processes
def test_another_user_of_the_machine_gets_other_addresses() -> None:
    command = [*OTHER_USER, sys.executable, "-c", TAKE]
    with closing(Addresses()) as addresses:
        mine = addresses.take()
        theirs = subprocess.run(command, check=True, capture_output=True, text=True)
        assert theirs.stdout.strip() != mine


@pytest.mark.processes
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
def test_another_program_is_no_pod(answer: bytes) -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    with closing(Addresses()) as addresses:
        address = addresses.take()
    with (
        socket.create_server((address, contract.PORT_HEALTH)) as listener,
        subprocess.Popen([sys.executable, "-c", ""]) as process,
    ):
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        assert RunningPod(POD, "reward", address, process).status() is None
        thread.join()


@pytest.mark.processes
def test_a_pod_too_busy_to_answer_is_what_it_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    said = PodStatus("reward", 0, 1, "starting")
    body = msgspec.json.encode(said)
    with closing(Addresses()) as addresses:
        address = addresses.take()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        running = RunningPod(POD, "reward", address, process)
        with socket.create_server((address, contract.PORT_HEALTH)) as listener:

            def answer_once() -> None:
                with listener.accept()[0] as connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)

            thread = threading.Thread(target=answer_once, daemon=True)
            thread.start()
            assert running.status() == said
            thread.join()
            monkeypatch.setattr(local_pods, "_HTTP_SECONDS", 0.2)
            assert running.status() == said  # the kernel takes the connection, and nobody answers
        assert running.status() is None
