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
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.children import guardian
from ppojob_trainer.children.neighbours import Neighbours
from ppojob_trainer.children.serving import answer_requests
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.sandbox.executor import Runner, SandboxRefused
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
from ppojob_trainer.tools.users import REPLY_CHARACTERS, Heard, load_user, read_reply
from ppojob_trainer.tools.wire import (
    CallTool,
    DescribeTools,
    LoadTools,
    ServerCode,
    ToolCalled,
    ToolCode,
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
        self._settings: LoadTools
        self._opened: Runner | None = None
        self._neighbours = Neighbours()
        # One loop for all calls: what a coroutine leaves open (a connection, say) lives on in it.
        self._loop = asyncio.Runner()

    def load(self, request: LoadTools) -> ToolsLoaded:
        """Load all; say what is wrong with each that cannot be used."""
        self._settings = request
        problems = self._open_servers(request)
        modules: dict[str, ModuleType] = {}
        for position, code in enumerate(request.tools):
            if code.server and code.server not in self._servers:
                continue  # which was told of the server
            try:
                self._tools.append(self._load(code, modules))
            except ConfigError as wrong:
                place = _place(position, request.tools)
                problems += [f"{place}.{one}" for one in wrong.problems]
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

    def _open_servers(self, request: LoadTools) -> list[str]:
        """Ask the servers what their tools take, if need be; what is wrong with each."""
        problems: list[str] = []
        for position, code in enumerate(request.servers):
            where, server = f"spec.agent.mcpServers[{position}]", McpServer(code, self._loop.run)
            if (wrong := server.problem()) is not None:
                problems.append(f"{where}: {wrong}")
                continue
            try:
                offered = server.offered() if request.compares else None
            except McpFailed as failed:
                problems.append(_away(where, code, failed))
                continue
            self._servers[code.name] = server, offered
        return problems

    def _load(self, code: ToolCode, modules: dict[str, ModuleType]) -> _Loaded:
        folder = str(Path(code.path).resolve().parent) if code.path else ""
        if folder:
            self._neighbours.enter(folder)
        if code.is_user:
            user = load_user(code, modules) if folder else USERS[code.name].answer

            def hear(request: CallTool) -> object:
                heard, told = _decode_heard(request.arguments), _decode_json(request.created)
                return user(heard, told, request.instance)

            return _Loaded(hear, _said, folder)
        tool = load_tool(code, modules) if folder else self._without_file(code)

        def call(request: CallTool) -> object:
            arguments, created = (_decode_json(one) for one in (request.arguments, request.created))
            return tool(arguments, created, request.instance)

        return _Loaded(call, self._answered, folder)

    def _without_file(self, code: ToolCode) -> Tool:
        if code.server:
            return mcp_tool(code, *self._servers[code.server])
        if code.url:
            return http_tool(code)
        if code.is_elsewhere:
            return _answered_elsewhere
        return self._built_in(code)

    def _answered(self, number: int, value: object) -> ToolCalled:
        text, reward = read_answer(value)
        settings = self._settings
        return ToolCalled(
            number, for_the_model(text, settings.most_characters, settings.side), reward
        )

    def _built_in(self, code: ToolCode) -> Tool:
        tool, config = TOOLS[code.name], _decode_json(code.config)
        if tool.runs_code:
            try:
                self._sandbox()
            except SandboxRefused as refused:
                got = f"{code.name} with {refused.got}"
                raise ConfigError(f"name: got {got}: {refused.why}; {refused.allowed}") from None
        if tool.opens is not None:
            tool.opens(config)

        def call(arguments: dict[str, Json], created: dict[str, Json], _: str) -> object:
            return tool.answer(Call(arguments, created, config, self._sandbox))

        return call

    def _sandbox(self) -> Runner:
        """The same for all calls."""
        if self._opened is None:
            self._opened = self._settings.sandbox.open()
        return self._opened


def _place(position: int, codes: list[ToolCode]) -> str:
    """Of a tool or user in `spec.agent`; users stand behind the tools."""
    tools = sum(not code.is_user for code in codes)
    own = f"tools[{position}]" if position < tools else f"interactions[{position - tools}]"
    return f"spec.agent.{own}"


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
