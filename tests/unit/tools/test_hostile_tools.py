import inspect
from collections.abc import Iterator

import hostile_tools
import pytest
from reward_functions import descendants, running
from tool_calls import ask, turn_of

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.rpc.messages.agents import ToolCall
from ppojob_trainer.tools.pool import ToolPool

pytestmark = pytest.mark.processes

HOSTILE = {
    name: (inspect.getdoc(function) or "").split(", ")
    for name, function in vars(hostile_tools).items()
    if inspect.isfunction(function)
}
SECONDS, PATIENT_SECONDS, GRACE_SECONDS = 1.0, 30.0, 2.0


def limit(name: str) -> float:
    """Short for what never ends; what ends by itself may find this machine busy."""
    return SECONDS if "hangs" in HOSTILE[name] else PATIENT_SECONDS


def agent(*names: str) -> AgentSpec:
    tools = [
        {
            "name": name,
            "source": {"path": hostile_tools.__file__},
            "description": "harmless",
            "parameters": {"type": "object"},
            "timeLimitSeconds": limit(name),
        }
        for name in names
    ]
    return AgentSpec.model_validate({"tools": tools})


@pytest.fixture(scope="module")
def pool() -> Iterator[ToolPool]:
    with ToolPool(agent(*HOSTILE)) as pool:
        yield pool
    assert not running("sleep 1000.125")
    assert not [command for command in descendants() if "tools.child" in command]


def test_there_are_enough() -> None:
    assert len(HOSTILE) > 40


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str, pool: ToolPool) -> None:
    made, after = ask(pool, name), ask(pool, "good")
    assert made.failure == HOSTILE[name][0].replace("answers", "")
    assert made.seconds < limit(name) + GRACE_SECONDS
    assert len(made.text) <= 256 + 2 * len("...(truncated)...")
    made.text.encode()  # no half of a pair is in it
    assert (made.reward, after.failure) == (0.5 if name == "good" else 0.0, "")
    assert (after.text, after.reward) == ("good 1", 0.5)


def test_they_harm_none_of_those_beside_them() -> None:
    """Four processes, of which one always dies or hangs."""
    names = ["sleeps", *["good"] * 5, "leaves", *["good"] * 5] * 2
    with ToolPool(agent("sleeps", "leaves", "good"), processes=4) as pool:
        begun = [pool.start(turn_of(3, [ToolCall(name, "{}")])) for name in names]
        failures = [one.result().answers[0].failure for one in begun]
    assert failures == [{"sleeps": "timeout", "leaves": "died"}.get(name, "") for name in names]
