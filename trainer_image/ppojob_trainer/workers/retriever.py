"""Retriever worker: answers calls of the tool `search` from an index in memory.

It handles `act` like the tools role, without state of a call. It runs no user code, so it needs no
child processes: one thread searches the index.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ppojob_api.topology import retrieved_tools
from ppojob_api.v1alpha1.agent import AgentSpec, ToolSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.retrieval.index import open_index
from ppojob_trainer.retrieval.passages import Retriever
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.agents import Act, Acted, ToolAnswer, ToolCall
from ppojob_trainer.rpc.methods import ACT
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.tools.answers import failure_text, for_the_model
from ppojob_trainer.tools.arguments import WrongArguments, read_arguments
from ppojob_trainer.tools.built_in.search import answer, passages_a_query
from ppojob_trainer.tools.schemas import parameters_of


class RetrieverWorker:
    """Handles `act` for the tool `search`; one thread scores queries in sequence."""

    def __init__(
        self, agent: AgentSpec, tool: ToolSpec, retriever: Retriever, thread: ThreadPoolExecutor
    ) -> None:
        self._agent = agent
        self._tool = tool
        self._passages = passages_a_query(tool.config)
        self._retriever = retriever
        self._thread = thread

    def routes(self) -> list[Route]:
        return [Route(ACT, self._act)]

    def _act(self, request: Act) -> "Future[Acted]":
        known = request.tools or [tool.name for tool in self._agent.tools]
        return self._thread.submit(
            lambda: Acted([self._answer(call, known) for call in request.calls])
        )

    def _answer(self, call: ToolCall, known: Sequence[str]) -> ToolAnswer:
        began = time.monotonic()
        failure = ""
        if call.name != self._tool.name or call.name not in known:
            failure, text = "unknown", failure_text("unknown", call.name, ", ".join(known))
        else:
            try:
                arguments = read_arguments(call.arguments, parameters_of(self._tool))
                text = answer(self._retriever, msgspec.json.decode(arguments), self._passages)
            except WrongArguments as wrong:
                failure, text = "arguments", failure_text("arguments", call.name, str(wrong))
        most = self._agent.max_tool_response_characters
        text = for_the_model(text, most, self._agent.tool_response_truncate_side)
        return ToolAnswer(text, 0.0, failure, time.monotonic() - began)


@contextmanager
def open_retriever_worker(
    environment: PodEnvironment, _rank: RankEnvironment, _keys: KeyRing
) -> Iterator[RetrieverWorker]:
    """Open the worker and its index, which is closed with the block."""
    spec = environment.config.spec
    assert spec.agent is not None, "the role has a tool"
    assert spec.agent.retriever is not None, "the role has an index"
    where, encoder = spec.agent.retriever.index, spec.agent.retriever.encoder
    try:
        index = open_index(Path(where), Path(encoder) if encoder else None)
    except ConfigError as wrong:
        raise ConfigError(
            f"spec.agent.retriever: {problem}" for problem in wrong.problems
        ) from None
    with index, ThreadPoolExecutor(1, "search") as thread:
        yield RetrieverWorker(spec.agent, retrieved_tools(spec)[0], index, thread)
