import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.rpc.client import Call, Caller, CallRefused, Peer
from ppojob_trainer.rpc.messages.agents import Act, ToolCall
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.methods import ACT
from ppojob_trainer.rpc.wire import ErrorKind, RequestId
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.workers.tools import ToolsWorker

pytestmark = pytest.mark.processes

BATCH = BatchName(0, 3, "train")
TOOLS = """
import time
def waits():
    time.sleep(1)
    return "waited"
"""


@pytest.fixture
def agent(tmp_path: Path) -> AgentSpec:
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    waits = {"name": "waits", "description": "waits", "source": {"path": str(file)}}
    waits["parameters"] = {"type": "object"}
    return AgentSpec.model_validate({"tools": [{"name": "calculator"}, waits]})


@pytest.fixture
def peer(serve, agent: AgentSpec) -> Iterator[Peer]:
    with ToolPool(agent, processes=4) as pool:
        yield serve(ToolsWorker(pool).routes(), "tools", 5)


def turn(row: int, *calls: tuple[str, str], number: int = 0) -> tuple[Act, RequestId]:
    """The calls of one turn of a row, and their request id, which has no attempt."""
    act = Act(BATCH, row, number, [ToolCall(*call) for call in calls])
    return act, RequestId(0, BATCH.step, f"{BATCH.label}/act/{row}", number)


@pytest.fixture
def caller(caller_of) -> Caller:
    caller = caller_of("actorRollout", attempt=0)
    caller.default_deadline_seconds = 60.0
    return caller


def test_answers_are_in_order_and_other_tools_than_those_of_the_row_are_unknown(peer, caller):
    sums = [ToolCall("calculator", f'{{"expression": "{number} + 1"}}') for number in range(3)]
    for shown, known in ([], "calculator, waits"), (["calculator"], "calculator"):
        act = Act(BATCH, len(shown), 0, [*sums, ToolCall("wait", "{}")], shown)
        id_ = RequestId(0, BATCH.step, f"train/act/{len(shown)}", 0)
        answers = caller.call(Call(peer, ACT, act, id_)).answers
        assert [answer.text for answer in answers[:3]] == ["1", "2", "3"]
        assert answers[3].text == f"Error: there is no tool wait. Tools: {known}."
        assert all(answer.seconds > 0 for answer in answers)


def test_rows_do_not_wait_for_each_other(peer: Peer, caller: Caller) -> None:
    caller.call(Call(peer, ACT, *turn(9, *[("waits", "{}")])))  # all that is imported is
    began = time.monotonic()
    pending = [caller.start([Call(peer, ACT, *turn(row, ("waits", "{}")))]) for row in range(20)]
    texts = [answer.answers[0].text for one in pending for answer in caller.wait(one)]
    assert texts == ["waited"] * 20
    assert time.monotonic() - began < 18  # twenty calls of a second each, in four processes


@pytest.mark.parametrize("role", ["controller", "reward", "tools"])
def test_none_but_those_who_generate_may_call(role: str, peer: Peer, caller_of) -> None:
    with pytest.raises(CallRefused) as refused:
        caller_of(role, attempt=1).call(Call(peer, ACT, *turn(0, ("calculator", "{}"))))
    assert refused.value.kind is ErrorKind.FORBIDDEN
