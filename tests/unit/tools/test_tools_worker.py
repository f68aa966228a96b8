"""The rank of the role `tools`, over a real socket; killed in the middle of a call, too."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.rpc.client import Call, Caller, CallRefused, Peer
from ppojob_trainer.rpc.messages.agents import Act, ToolAnswer, ToolCall
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.methods import ACT
from ppojob_trainer.rpc.wire import ErrorKind, RequestId
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.workers.tools import ToolsWorker

pytestmark = pytest.mark.processes

BATCH = BatchName(0, 3, "train")
TOOLS = """
import os, time
def waits(marker=""):
    if marker and not os.path.exists(marker):
        open(marker, "w").close()
        time.sleep(1000)
    time.sleep(1)
    return "waited"
"""
SERVE = """
import sys
from pathlib import Path
from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.rpc.keys import read_key_ring
from ppojob_trainer.rpc.server import RpcServer
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.workers.tools import ToolsWorker
agent, keys, host, port, epoch = sys.argv[1:]
with ToolPool(AgentSpec.model_validate_json(agent)) as pool:
    ring = read_key_ring(Path(keys), "tools")
    server = RpcServer(host, int(port), ring, ToolsWorker(pool).routes(), int(epoch))
    server.start()
    server.work()
"""


@pytest.fixture
def agent(tmp_path: Path) -> AgentSpec:
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    waits = {"name": "waits", "description": "waits", "source": {"path": str(file)}}
    waits["parameters"] = {"type": "object", "properties": {"marker": {"type": "string"}}}
    return AgentSpec.model_validate({"tools": [{"name": "calculator"}, waits]})


@pytest.fixture
def peer(serve, agent: AgentSpec) -> Iterator[Peer]:
    with ToolPool(agent, processes=4) as pool:
        yield serve(ToolsWorker(pool).routes(), "tools", 5)


def turn(row: int, *calls: tuple[str, str], number: int = 0) -> tuple[Act, RequestId]:
    """The calls of one turn of a row, and their request id, which has no epoch."""
    act = Act(BATCH, row, number, [ToolCall(*call) for call in calls])
    return act, RequestId(0, BATCH.step, f"{BATCH.label}/act/{row}", number)


def ask(caller: Caller, peer: Peer, *calls: tuple[str, str]) -> list[ToolAnswer]:
    caller.default_deadline_seconds = 60.0
    return caller.call(Call(peer, ACT, *turn(0, *calls))).answers


def test_answers_are_in_the_order_of_the_calls(peer: Peer, caller_of) -> None:
    sums = [("calculator", f'{{"expression": "{number} + 1"}}') for number in range(3)]
    answers = ask(caller_of("actorRollout", epoch=0), peer, *sums, ("calc", "{}"))
    assert [answer.text for answer in answers[:3]] == ["1", "2", "3"]
    assert [answer.failure for answer in answers] == ["", "", "", "unknown"]
    assert all(answer.seconds > 0 for answer in answers)


def test_a_row_calls_the_tools_that_it_shows_and_no_others(peer: Peer, caller_of) -> None:
    caller = caller_of("actorRollout", epoch=0)
    caller.default_deadline_seconds = 60.0
    calls = [ToolCall("calculator", '{"expression": "1"}'), ToolCall("waits", "{}")]
    act = Act(BATCH, 1, 0, calls, ["calculator"])
    acted = caller.call(Call(peer, ACT, act, RequestId(0, BATCH.step, "train/act/1", 0)))
    assert [answer.failure for answer in acted.answers] == ["", "unknown"]
    assert acted.answers[1].text == "Error: there is no tool waits. Tools: calculator."


def test_rows_do_not_wait_for_each_other(peer: Peer, caller_of) -> None:
    caller = caller_of("actorRollout", epoch=0)
    caller.default_deadline_seconds = 60.0
    caller.call(Call(peer, ACT, *turn(9, *[("waits", "{}")])))  # all that is imported is
    began = time.monotonic()
    pending = [caller.start([Call(peer, ACT, *turn(row, ("waits", "{}")))]) for row in range(20)]
    texts = [answer.answers[0].text for one in pending for answer in caller.wait(one)]
    assert texts == ["waited"] * 20
    assert time.monotonic() - began < 18  # twenty calls of a second each, in four processes


@pytest.mark.parametrize("role", ["controller", "reward", "tools"])
def test_none_but_those_who_generate_may_call(role: str, peer: Peer, caller_of) -> None:
    with pytest.raises(CallRefused) as refused:
        ask(caller_of(role, epoch=1), peer, ("calculator", "{}"))
    assert refused.value.kind is ErrorKind.FORBIDDEN


@pytest.mark.usefixtures("rings")
def test_a_rank_that_is_killed_is_asked_again(agent, caller_of, tmp_path) -> None:
    host, port = f"127.65.{os.getpid() % 250}.1", next(itertools.count(23_000))
    peer, marker = Peer("tools rank 0", host, port, "tools"), tmp_path / "marker"
    caller = caller_of("actorRollout", epoch=0)
    caller.default_deadline_seconds = 60.0
    first = start(agent, tmp_path, peer, 1)
    pending = caller.start([Call(peer, ACT, *turn(0, ("waits", f'{{"marker": "{marker}"}}')))])
    try:
        eventually(marker.exists)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    second = start(agent, tmp_path, peer, 2)
    try:
        (acted,) = caller.wait(pending)
    finally:
        second.kill()
        second.wait()
    assert [answer.text for answer in acted.answers] == ["waited"]


def start(agent: AgentSpec, folder: Path, peer: Peer, epoch: int) -> "subprocess.Popen[bytes]":
    """A process that serves as a rank of the role does."""
    told = [agent.model_dump_json(), str(folder / "keys" / "tools"), peer.host]
    return subprocess.Popen([sys.executable, "-c", SERVE, *told, str(peer.port), str(epoch)])
