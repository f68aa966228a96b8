import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import rank_facts
from patience import eventually
from pod_plans import pod_plan

from ppojob_api import contract
from ppojob_trainer import stop_signal
from ppojob_trainer.supervisor import forked_process
from ppojob_trainer.supervisor.pod import Pod

pytestmark = pytest.mark.processes

SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def environment(program: str, threads: int = 1, **changes: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name[:7] != "PYTEST_"}
    paths = (str(Path(rank_facts.__file__).parent), os.environ.get("PYTHONPATH", ""))
    return {
        **inherited,
        **forked_process.rank_variables(threads),
        "PYTHONPATH": ":".join(filter(None, paths)),
        "PPOJOB_PROGRAM": program,
        **changes,
    }


def start_server(folder: Path, name: str) -> subprocess.Popen[bytes]:
    loads = environment("")
    with forked_process.listen(folder, loads) as listener, stop_signal.sigterm_blocked():
        return subprocess.Popen(
            [sys.executable, "-m", "rank_facts", name],
            env={**loads, contract.ENV_DIE_WITH_PARENT: str(os.getpid())},
            stdin=listener.fileno(),
            process_group=0,
        )


@dataclass
class Forks:
    """A server, and what its ranks print."""

    folder: Path
    process: subprocess.Popen[bytes]

    def start(
        self, program: str, command: str = "rank", **changes: str
    ) -> tuple[forked_process.ForkedProcess, Path]:
        printed = Path(tempfile.mkstemp(dir=self.folder)[1])
        kept = os.dup(1)
        with printed.open("wb") as output, open(os.devnull, "wb") as heartbeat:
            os.dup2(output.fileno(), 1)
            try:
                server = forked_process.ForkClient(self.folder)
                return server.fork(
                    command, environment(program, **changes), heartbeat.fileno()
                ), printed
            finally:
                os.dup2(kept, 1)
                os.close(kept)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("forks") / ("a-long-name-" * 15)
    with start_server(folder, "fork-server") as server:
        yield Forks(folder, server)
        server.kill()


@pytest.fixture
def own_forks(tmp_path: Path) -> Iterator[Forks]:
    """A server that a test may end; of the two the one that loads little."""
    with start_server(tmp_path / "server", "supervisor-server") as server:
        yield Forks(tmp_path / "server", server)
        server.kill()


def wait_for_fork(rank: forked_process.ForkedProcess) -> int:
    eventually(lambda: rank.poll() is not None or rank.pid > 0, seconds=200)
    assert rank.returncode is None
    return rank.pid


def connect(client: socket.socket, folder: Path) -> None:
    descriptor = os.open(folder, os.O_PATH)
    client.connect(f"/proc/self/fd/{descriptor}/socket")
    os.close(descriptor)


def is_gone(process: int, seconds: float = 60.0) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    ended = bool(poll.poll(seconds * 1000))
    os.close(process)
    return ended


def test_a_supervisor_is_forked_with_outputs_and_a_group_of_its_own(forks: Forks, tmp_path):
    told = "import os, sys; os.system('echo out; echo err >&2'); print(os.getpgrp() == os.getpid())"
    told += "; print('PPOJOB_HEARTBEAT' in os.environ, len(os.listdir('/proc/self/fd')))"
    with (tmp_path / "log").open("wb") as log:
        fork = forked_process.ForkClient(forks.folder).fork(
            "supervise", environment(told), outputs=(log.fileno(), log.fileno()), group=0
        )
    assert fork.is_forked_within(200)
    assert os.getpgid(fork.pid) == fork.pid
    assert fork.wait() == 0
    assert (tmp_path / "log").read_text().split() == ["out", "err", "True", "False", "4"]


def test_who_waits_for_a_fork_waits_no_longer_than_it_says(own_forks: Forks):
    running = forked_process.ForkClient(own_forks.folder).fork("supervise", environment(SLEEPS))
    assert running.is_forked_within(200)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.1)
    own_forks.process.send_signal(signal.SIGSTOP)
    waiting = forked_process.ForkClient(own_forks.folder).fork("supervise", environment(SLEEPS))
    assert not waiting.is_forked_within(0.1)
    own_forks.process.kill()
    assert not waiting.is_forked_within(200)
    assert (waiting.poll(), running.wait(60)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_a_fork_finds_what_a_rank_finds_that_is_started_by_itself(forks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a supervisor has it
    try:
        with stop_signal.sigterm_blocked():
            changes = {"threads": 3, "TMPDIR": str(tmp_path), "PPOJOB_RANK": "7"}
            rank, printed = forks.start(rank_facts.FACTS, **changes)
            alone = subprocess.run(
                [sys.executable, "-m", "rank_facts", "rank"],
                env=environment(rank_facts.FACTS, **changes),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=(heartbeat := os.open(os.devnull, os.O_WRONLY),),
                check=True,
            )
            os.close(heartbeat)
    finally:
        signal.signal(signal.SIGINT, before)
    assert rank.wait() == 0
    forked, expected = json.loads(printed.read_text()), json.loads(alone.stdout)
    assert forked["environment"].pop(contract.ENV_DIE_WITH_PARENT) == str(forks.process.pid)
    assert forked["environment"].pop(contract.ENV_HEARTBEAT).isdecimal()
    for lines in (forked, expected):
        lines["C's environment"] = sorted(
            line for line in lines["C's environment"] if not line.startswith("PPOJOB_")
        )
    assert len(forked.pop("opened")) == len(expected.pop("opened"))
    assert forked == expected


def test_a_rank_holds_nothing_of_its_siblings(forks: Forks):
    sleeping, _ = forks.start(SLEEPS)
    wait_for_fork(sleeping)
    opened = "import os; print(os.popen(f'ls -l /proc/{os.getpid()}/fd').read())"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        connect(silent, forks.folder)
        rank, printed = forks.start(opened)
        assert rank.wait() == 0
    listed = printed.read_text()
    assert "/dev/null" in listed
    assert "socket:" not in listed
    assert "pidfd" not in listed
    sleeping.send_signal(signal.SIGKILL)
    sleeping.wait()


def test_a_server_keeps_no_descriptor_of_ranks_that_ended(forks: Forks):
    def held() -> int:
        return len(os.listdir(f"/proc/{forks.process.pid}/fd"))

    forks.start("pass")[0].wait()
    before = held()
    for _ in range(5):
        forks.start("pass")[0].wait()
    # Those of the first may still have been open then.
    eventually(lambda: held() <= before)


SUPERVISOR = """
import os, sys, time
from pathlib import Path
from ppojob_trainer.supervisor.forked_process import ForkClient
nowhere = os.open(os.devnull, os.O_WRONLY)
rank = ForkClient(Path(sys.argv[1])).fork("rank", dict(os.environ), nowhere)
time.sleep(600)
"""


def test_a_rank_whose_supervisor_is_killed_is_gone(forks: Forks):
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, forks.folder],
        env=environment(SLEEPS),
        stdout=subprocess.PIPE,
    )
    with supervisor:
        rank = os.pidfd_open(int(supervisor.stdout.readline()))
        supervisor.kill()
        assert is_gone(rank)


def test_what_the_server_cannot_read_costs_nobody_else(forks: Forks):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        connect(other, forks.folder)
        other.send(b"{")
        assert other.recv(1) == b""
    assert forks.start("pass")[0].wait() == 0


@pytest.mark.parametrize("name", ["ATEN_CPU_CAPABILITY", "PYTHONPATH", "HF_HOME", "http_proxy"])
def test_a_rank_whose_libraries_would_load_otherwise_is_not_forked(name: str, forks: Forks):
    with pytest.raises(OSError, match="another environment"):
        forks.start("pass", **{name: "another"})


def test_a_relative_path_of_modules_is_read_where_the_server_started(tmp_path: Path, monkeypatch):
    variables = {"PYTHONPATH": f"{tmp_path}:"}
    forked_process.listen(tmp_path / "server", variables).close()
    assert forked_process.is_compatible(tmp_path / "server", variables)
    monkeypatch.chdir(tmp_path)
    assert not forked_process.is_compatible(tmp_path / "server", variables)


def test_a_rank_does_not_outlive_its_server(own_forks: Forks):
    server = forked_process.ForkClient(own_forks.folder)
    rank = server.fork("rank", environment(SLEEPS), 2)
    process = os.pidfd_open(wait_for_fork(rank))
    own_forks.process.kill()
    assert rank.wait() == -signal.SIGKILL
    assert is_gone(process, seconds=0)
    with pytest.raises(OSError, match="it has ended"):
        server.fork("rank", environment(SLEEPS), 2)
    with pytest.raises(ConnectionRefusedError):
        forked_process.ForkClient(own_forks.folder).fork("rank", environment(SLEEPS), 2)


def test_a_server_that_is_stopped_delays_nobody(own_forks: Forks, tmp_path: Path):
    """Neither the end of a rank that runs, nor that of one which is yet to be forked."""
    server = forked_process.ForkClient(own_forks.folder)
    running = server.fork("rank", environment(SLEEPS), 2)
    wait_for_fork(running)
    own_forks.process.send_signal(signal.SIGSTOP)
    opens = f"open({str(tmp_path / 'ran')!r}, 'w')"
    waiting = server.fork("rank", environment(opens), 2)
    began = time.monotonic()
    for rank in (waiting, running):
        rank.send_signal(signal.SIGKILL)
        assert rank.wait() == -signal.SIGKILL
    assert time.monotonic() - began < 30
    with pytest.raises(OSError, match="too slow"):
        server.fork("rank", environment(SLEEPS), 2)
    own_forks.process.send_signal(signal.SIGCONT)
    assert own_forks.start("pass")[0].wait() == 0
    assert not (tmp_path / "ran").exists()


def test_a_signal_waits_for_the_fork(own_forks: Forks):
    server = forked_process.ForkClient(own_forks.folder)
    own_forks.process.send_signal(signal.SIGSTOP)
    listens = "import signal; signal.pthread_sigmask(signal.SIG_SETMASK, []); "
    rank = server.fork("controller", environment(listens + SLEEPS), 2)
    rank.send_signal(signal.SIGTERM)
    own_forks.process.send_signal(signal.SIGCONT)
    assert rank.wait() == -signal.SIGTERM


def test_a_pod_without_its_server_starts_ranks_by_themselves(tmp_path: Path, caplog):
    """They end at once, since nobody tells them who they are."""
    told = {"fork_server": str(tmp_path / "nowhere"), "environment": environment("")}
    pod = Pod(pod_plan("actorRollout", **told))
    pod.request_attempt(1)

    def is_lost() -> bool:
        pod.tick()
        return pod.status().phase == "lost"

    eventually(is_lost, seconds=200)
    assert "environment: PPOJOB_CONFIG is not set" in pod.status().reason
    (line,) = [record for record in caplog.messages if "fork server" in record]
    assert "No such file or directory" in line
    pod.kill()
