"""The child that calls tools and asks users.

It trusts nothing of them: every call gets objects of its own, whatever a tool raises is an answer,
and what it prints cannot reach the pipes. Loops, bombs and deaths are the parent's and the
guardian's to end (``ppojob_trainer.tools.pool``, ``ppojob_trainer.children.guardian``).
"""

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.agent import AgentSpec, InteractionSpec, ToolSource, ToolSpec
from ppojob_trainer.children import guardian
from ppojob_trainer.children.neighbours import Neighbours
from ppojob_trainer.children.serving import answer_requests
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.sandbox.executor import SandboxRefused
from ppojob_trainer.sandbox.settings import open_sandbox
from ppojob_trainer.tools.answers import for_the_model, read_answer
from ppojob_trainer.tools.built_in import TOOLS, USERS
from ppojob_trainer.tools.built_in.tool import Call
from ppojob_trainer.tools.custom import Tool, load_tool
from ppojob_trainer.tools.describe import describe_tools
from ppojob_trainer.tools.http_tool import http_tool
from ppojob_trainer.tools.mcp_tools import (
    McpFailed,
    McpServer,
    Offered,
    describe_server,
    mcp_tool,
)
from ppojob_trainer.tools.schemas import tool_schema
from ppojob_trainer.tools.users import REPLY_CHARACTERS, Heard, load_user, read_reply
from ppojob_trainer.tools.wire import (
    CallTool,
    DescribeTools,
    LoadTools,
    ServerCode,
    ToolCalled,
    ToolRequest,
    ToolsDescribed,
    ToolsLoaded,
)

# Taken before a tool is loaded, which may put something else in their place.
_decode: Final = msgspec.msgpack.Decoder(ToolRequest).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_json: Final = msgspec.json.Decoder().decode
_decode_heard: Final = msgspec.json.Decoder(Heard).decode


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A tool or user, and where its file lies; empty where it has none.

    Attributes:
        ask: what it answers, or an awaitable of it.
        read: what that means, by the number of the call.
        folder: of the file.
    """

    ask: Callable[[CallTool], object]
    read: Callable[[int, object], ToolCalled]
    folder: str


class Tools:
    """The loaded tools, called by position."""

    def __init__(self) -> None:
        self._tools: list[_Loaded] = []
        self._servers: dict[str, tuple[McpServer, Mapping[str, Offered] | None]] = {}
        self._request: LoadTools
        self._agent: AgentSpec
        self._neighbours = Neighbours()
        # One loop for all calls: what a coroutine leaves open (a connection, say) lives on in it.
        self._loop = asyncio.Runner()

    def load(self, request: LoadTools) -> ToolsLoaded:
        """Load all; say what is wrong with each that cannot be used."""
        self._request = request
        self._agent = agent = AgentSpec.model_validate_json(request.agent)
        problems = self._open_servers()
        modules: dict[str, ModuleType] = {}
        answering: list[tuple[str, ToolSpec | InteractionSpec]] = [
            *((f"tools[{number}]", tool) for number, tool in enumerate(agent.tools)),
            *((f"interactions[{number}]", user) for number, user in enumerate(agent.interactions)),
        ]
        for place, one in answering:
            try:
                self._tools.append(self._load(one, modules))
            except ConfigError as wrong:
                problems += [f"spec.agent.{place}.{line}" for line in wrong.problems]
        return ToolsLoaded(problems)

    def describe(self, server: ServerCode) -> ToolsDescribed:
        """Say what tools a server has."""
        opened = McpServer(server, self._loop.run)
        if (wrong := opened.problem()) is not None:
            return ToolsDescribed([], [f"{server.name}: {wrong}"])
        try:
            return ToolsDescribed(describe_server(opened), [])
        except McpFailed as failed:
            return ToolsDescribed([], [_away(server.name, server, failed)])

    def call(self, request: CallTool) -> ToolCalled:
        """Call a tool with objects decoded for this call alone."""
        tool = self._tools[request.tool]
        try:
            self._neighbours.enter(tool.folder)
            value = tool.ask(request)
            if inspect.isawaitable(value):
                value = self._loop.run(_result(value))
            return tool.read(request.number, value)
        except BadResult as bad:
            return ToolCalled(request.number, raised=f"got {bad.got}: {bad.why}")
        except BaseException as error:  # SystemExit and its kin are answers too
            text, where = raised(error, __file__)
            return ToolCalled(request.number, raised=text, where=where)

    def _open_servers(self) -> list[str]:
        """Ask the servers what their tools take, if need be; what is wrong with each."""
        problems: list[str] = []
        for position, one in enumerate(self._agent.mcp_servers):
            code = ServerCode(one.name, one.url or "", list(one.command), one.key_variable or "")
            where, server = f"spec.agent.mcpServers[{position}]", McpServer(code, self._loop.run)
            if (wrong := server.problem()) is not None:
                problems.append(f"{where}: {wrong}")
                continue
            try:
                offered = server.offered() if self._request.compares else None
            except McpFailed as failed:
                problems.append(_away(where, code, failed))
                continue
            self._servers[code.name] = server, offered
        return problems

    def _load(self, one: ToolSpec | InteractionSpec, modules: dict[str, ModuleType]) -> _Loaded:
        path = (one.source.file if one.source else None) or ""
        name = (one.source.function if one.source else None) or one.name
        folder = str(Path(path).resolve().parent) if path else ""
        self._neighbours.enter(folder)
        if isinstance(one, InteractionSpec):
            user = load_user(path, name, one, modules) if path else USERS[name].answer

            def hear(request: CallTool) -> object:
                heard, told = _decode_heard(request.arguments), _decode_json(request.created)
                return user(heard, told, request.instance)

            return _Loaded(hear, _said, folder)
        if path:
            tool = load_tool(path, name, one, tool_schema(one), modules)
        else:
            tool = self._without_file(one)

        def call(request: CallTool) -> object:
            arguments, created = (_decode_json(one) for one in (request.arguments, request.created))
            return tool(arguments, created, request.instance)

        return _Loaded(call, self._answered, folder)

    def _without_file(self, tool: ToolSpec) -> Tool:
        source = tool.source or ToolSource()
        if source.mcp_server is not None:
            if source.mcp_server not in self._servers:
                return _answered_elsewhere  # never called: the server was told of
            server, offered = self._servers[source.mcp_server]
            return mcp_tool(source.tool or tool.name, tool.parameters, server, offered)
        if source.url is not None:
            return http_tool(source.url, source.key_variable or "", tool.time_limit_seconds)
        if tool.name in self._request.elsewhere:
            return _answered_elsewhere
        return self._built_in(tool)

    def _answered(self, number: int, value: object) -> ToolCalled:
        text, reward = read_answer(value)
        most, side = (
            self._agent.max_tool_response_characters,
            self._agent.tool_response_truncate_side,
        )
        return ToolCalled(number, for_the_model(text, most, side), reward)

    def _built_in(self, spec: ToolSpec) -> Tool:
        tool, config = TOOLS[spec.name], spec.config
        sandbox = partial(open_sandbox, self._request.sandbox)
        if tool.runs_code:
            try:
                sandbox()
            except SandboxRefused as refused:
                got = f"{spec.name} with {refused.got}"
                raise ConfigError(f"name: got {got}: {refused.why}; {refused.allowed}") from None
        if tool.opens is not None:
            tool.opens(config)

        def call(arguments: dict[str, Json], created: dict[str, Json], _: str) -> object:
            return tool.answer(Call(arguments, created, config, sandbox))

        return call


def _answered_elsewhere(*_: object) -> object:
    raise LookupError("another role answers it")


def _away(where: str, server: ServerCode, failed: McpFailed) -> str:
    got = shown(server.url or " ".join(server.command))
    why = f"the server does not say which tools it has: {failed}"
    return f"{where}: got {got}: {why}; an MCP server that is up"


def _said(number: int, value: object) -> ToolCalled:
    """Of a user; nothing of its words is cut but what no model reads."""
    ends, text, score = read_reply(value)
    return ToolCalled(number, for_the_model(text, REPLY_CHARACTERS, "left"), score, ends=ends)


async def _result(value: object) -> object:
    assert inspect.isawaitable(value)
    return await value


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    tools = Tools()

    def answer(body: bytes) -> bytes:
        request = _decode(body)
        if isinstance(request, DescribeTools):
            server = request.server
            return _encode(tools.describe(server) if server else describe_tools(request.path))
        return _encode(
            tools.load(request) if isinstance(request, LoadTools) else tools.call(request)
        )

    answer_requests(requests, answers, answer)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
