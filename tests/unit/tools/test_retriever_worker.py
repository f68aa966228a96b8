import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.remote_tools import RemoteTools
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.index import open_index
from ppojob_trainer.rpc.client import Peer
from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall
from ppojob_trainer.rpc.messages.rollout import PromptTokens
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.workers.retriever import RetrieverWorker
from ppojob_trainer.workers.tools import ToolsWorker

pytestmark = pytest.mark.processes
TOWN = 'Doc 1(Title: "3") 3 lives in town 4.\n'


@pytest.fixture
def agent(index: Path) -> AgentSpec:
    tools = [{"name": "calculator"}, {"name": "search", "config": {"topk": 1}}]
    return AgentSpec.model_validate({"tools": tools, "retriever": {"index": str(index)}})


@pytest.fixture
def retriever(serve, agent: AgentSpec, index: Path) -> Iterator[Peer]:
    with open_index(index) as found, ThreadPoolExecutor(1) as thread:
        worker = RetrieverWorker(agent, agent.tools[1], found, thread)
        yield serve(worker.routes(), "retriever", 5)


@pytest.fixture
def tools(serve, agent: AgentSpec) -> Iterator[Peer]:
    with ToolPool(agent, elsewhere=["search"]) as pool:
        yield serve(ToolsWorker(pool).routes(), "tools", 5)


def ask(caller, tools: list[Peer], retrievers: list[Peer], *calls: ToolCall) -> list[ToolAnswer]:
    caller.default_deadline_seconds = 60.0
    remote = RemoteTools(
        caller, tools, retrievers, 3, [(BatchName(0, 3, "train"), 7)], [PromptTokens(0, [])]
    )
    return remote.wait(remote.start(0, 0, calls))


def search(query: str) -> ToolCall:
    return ToolCall("search", json.dumps({"query": query}))


def test_calls_of_a_turn_go_to_who_answers_them_and_come_back_in_their_order(
    tools: Peer, retriever: Peer, caller_of
):
    summed = ToolCall("calculator", '{"expression": "1 + 1"}')
    calls = [search("4"), summed, search("nowhere"), ToolCall("add", "{}"), ToolCall("search", "{")]
    answers = ask(caller_of("actorRollout", attempt=0), [tools], [retriever], *calls)
    assert [answer.text for answer in answers[:3]] == [TOWN, "2", ""]
    assert [answer.failure for answer in answers] == ["", "", "", "unknown", "arguments"]
    assert answers[3].text == "Error: there is no tool add. Tools: calculator, search."


def test_where_nothing_but_search_is_called_the_retriever_answers_all(retriever: Peer, caller_of):
    answers = ask(caller_of("actorRollout", attempt=0), [], [retriever], ToolCall("add", "{}"))
    assert answers[0].text == "Error: there is no tool add. Tools: calculator, search."


def test_what_is_searched_is_said_once(agent: AgentSpec, index: Path):
    said_twice = agent.tools[1].model_copy(update={"config": {"index": str(index)}})
    refused = pytest.raises(ConfigError, match=r"config.index: got .*agent.retriever sets")
    with open_index(index) as found, ThreadPoolExecutor(1) as thread, refused:
        RetrieverWorker(agent, said_twice, found, thread)
