"""Child process that runs tools and user simulators.

It does not trust them: every call gets its own objects, exceptions become answers, and output
cannot reach the pipes. The parent and the guardian end loops, fork bombs and dead processes
(``ppojob_trainer.tools.pool``, ``ppojob_trainer.children.guardian``).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from types import ModuleType
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.children import guardian
from ppojob_trainer.children.user_code import ImportFolder, raised, run_coroutine
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.rpc.messages.agents import SeenImage, ToolAnswer
from ppojob_trainer.sandbox.executor import SandboxRefused, open_sandbox
from ppojob_trainer.tools import wire
from ppojob_trainer.tools.answers import check_images, for_the_model, read_answer, read_reply
from ppojob_trainer.tools.built_in import TOOLS, USERS
from ppojob_trainer.tools.built_in.tool import Call
from ppojob_trainer.tools.custom import (
    Tool,
    User,
    http_tool,
    load_agent_loop,
    load_environment,
    load_program,
    load_tool,
    load_user,
)
from ppojob_trainer.tools.describe import describe_tools
from ppojob_trainer.tools.environments import Environments, Kind, Method
from ppojob_trainer.tools.loop import Loop
from ppojob_trainer.tools.mcp_tools import McpFailed, McpServer, mcp_tool
from ppojob_trainer.tools.program import Program, ProgramRaised, awaited, open_listener
from ppojob_trainer.tools.row_calls import row_calls
from ppojob_trainer.tools.schemas import tool_schema

# Bound before users' code is imported, which may replace them.
_decode: Final = msgspec.msgpack.Decoder(wire.ToolRequest).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_encode_json: Final = msgspec.json.Encoder().encode
_decode_json: Final = msgspec.json.Decoder().decode
_decode_conversation: Final = msgspec.json.Decoder(wire.Conversation).decode


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A loaded tool or user simulator."""

    name: str
    call: Callable[..., object] | Method  # a `Tool`, a `Method` of an environment, or a `User`
    is_user: bool
    folder: str


class Tools:
    """The loaded tools, called by position."""

    def __init__(self) -> None:
        self._tools: list[_Loaded] = []
        self._servers: dict[str, tuple[McpServer, Mapping[str, wire.Described] | None]] = {}
        self._request: wire.LoadTools
        self._agent: wire.AgentCode
        self._listener: socket | None = None
        self._agent_loop: Callable[..., User] | None = None
        self._imports = ImportFolder()
        self._methods: dict[int, Method] = {}
        self._row_calls: dict[str, list[wire.RowCall]] = {}
        self._environments = Environments(self._methods, self._finished)

    def answer(self, body: bytes) -> bytes:
        request = _decode(body)
        if isinstance(request, wire.LoadTools):
            return _encode(self.load(request))
        if isinstance(request, wire.CallTool | wire.EndRow):
            return _encode(self.call(request))
        path, server = request.path, request.server
        return _encode(
            self.describe(server) if server else describe_tools(path, request.environment)
        )

    def load(self, request: wire.LoadTools) -> wire.ToolsLoaded:
        """Load all tools and users; return the problems of those that cannot be used."""
        self._request = request
        self._agent = agent = request.agent
        if any(one.interface == "openai" for one in agent.interactions):
            self._listener = open_listener()
        problems = self._open_servers()
        if request.loops is not None:
            from ppojob_trainer.tools import agent_loop  # late: transformers imports slowly

            try:
                tokenizer = agent_loop.LoopTokenizer.of(request.loops)
            except ConfigError as wrong:
                problems += wrong.problems
            else:
                self._agent_loop = partial(agent_loop.AgentLoop, tokenizer)
        modules: dict[str, ModuleType] = {}
        answering: list[tuple[str, wire.ToolCode | wire.UserCode]] = [
            *((f"tools[{number}]", tool) for number, tool in enumerate(agent.tools)),
            *((f"interactions[{number}]", user) for number, user in enumerate(agent.interactions)),
        ]
        for place, one in answering:
            try:
                self._tools.append(self._load(one, modules))
            except ConfigError as wrong:
                problems += [f"spec.agent.{place}.{line}" for line in wrong.problems]
        tools = enumerate(self._tools)
        self._methods |= {at: one.call for at, one in tools if isinstance(one.call, Method)}
        loops = [one.name for one in self._tools if isinstance(one.call, Loop | Program)]
        loops += [one.name for one in agent.interactions if one.interface == "agent_loop"]
        scores = any(method.kind.scores for method in self._methods.values())
        return wire.ToolsLoaded(problems, loops, scores, self._row_calls)

    def describe(self, server: wire.ServerCode) -> wire.ToolsDescribed:
        opened = McpServer(server)
        if (wrong := opened.problem()) is not None:
            return wire.ToolsDescribed([], [f"{server.name}: {wrong}"])
        try:
            return wire.ToolsDescribed(list(opened.tools().values()), [])
        except McpFailed as failed:
            return wire.ToolsDescribed([], [_unreachable(server.name, server, failed)])

    def call(self, request: wire.CallTool | wire.EndRow) -> wire.ToolCalled:
        """Call a tool or a user, or end a row; exceptions become answers."""
        number = request.number
        try:
            if isinstance(request, wire.EndRow):
                self._imports.enter(self._tools[min(self._methods)].folder)
                return wire.ToolCalled(number, ToolAnswer("", self._environments.end(request)))
            tool = self._tools[request.tool]
            self._imports.enter(tool.folder)
            value = self._finished(self._called(tool, request))
            if isinstance(value, wire.ModelRequest):
                asked = _encode_json(msgspec.structs.replace(value, images=[]))
                return wire.ToolCalled(number, ToolAnswer("", asked=asked), value.images)
            if isinstance(value, wire.LoopEnded):
                ended = ToolAnswer("", value.score, ends=True, masked=value.masked)
                return wire.ToolCalled(number, ended)
            if tool.is_user:  # without the length limit of tools
                ends, text, score, context = read_reply(value)
                encoded = _encode_json(context) if context else b""
                reply = ToolAnswer(text, score, ends=ends, context=encoded)
                return wire.ToolCalled(number, reply)
            text, images, reward = read_answer(value)
            check_images(images, are_shown=request.images is not None)
            most = self._agent.max_tool_response_characters
            text = for_the_model(text, most, self._agent.tool_response_truncate_side)
            return wire.ToolCalled(number, ToolAnswer(text, reward), images)
        except BadResult as bad:
            return wire.ToolCalled(number, raised=f"got {bad.got}: {bad.why}")
        except ProgramRaised as of_program:
            text, where = of_program.args
            return wire.ToolCalled(number, raised=text, where=where)
        except BaseException as error:  # also SystemExit
            text, where = raised(error, __file__)
            return wire.ToolCalled(number, raised=text, where=where)

    def _called(self, tool: _Loaded, request: wire.CallTool) -> object:
        """Call a tool or a user with objects decoded for this call only."""
        if isinstance(tool.call, Method):
            return self._environments.call(request)
        decode = _decode_conversation if tool.is_user else _decode_json
        created = _decode_json(request.created)
        given: tuple[object, ...] = () if tool.is_user else (request.images or [],)
        if isinstance(tool.call, Program):
            given = (request.images,)
        return tool.call(decode(request.arguments), created, request.instance, *given)

    def _finished(self, value: object) -> object:
        return run_coroutine(awaited(value)) if inspect.isawaitable(value) else value

    def _open_servers(self) -> list[str]:
        """Read the tools' schemas from the MCP servers, if needed; return the problems."""
        problems: list[str] = []
        for position, code in enumerate(self._agent.mcp_servers):
            where, server = f"spec.agent.mcpServers[{position}]", McpServer(code)
            if (wrong := server.problem()) is not None:
                problems.append(f"{where}: {wrong}")
                continue
            try:
                offered = server.tools() if self._request.compares else None
            except McpFailed as failed:
                problems.append(_unreachable(where, code, failed))
                continue
            self._servers[code.name] = server, offered
        return problems

    def _load(self, one: wire.ToolCode | wire.UserCode, modules: dict[str, ModuleType]) -> _Loaded:
        path = (one.source.file if one.source else None) or ""
        name = (one.source.function if one.source else None) or one.name
        folder = str(Path(path).resolve().parent) if path else ""
        self._imports.enter(folder)
        if isinstance(one, wire.UserCode):
            return _Loaded(one.name, self._user(one, path, name, modules), True, folder)
        tool: Tool | Method
        if path and "." in name:
            tool = load_environment(path, name, one, modules)
        elif path:
            tool = load_tool(path, name, one, tool_schema(one), modules)
        else:
            tool = self._without_file(one)
        return _Loaded(one.name, tool, False, folder)

    def _user(
        self, one: wire.UserCode, path: str, name: str, modules: dict[str, ModuleType]
    ) -> User | Program:
        if not path:
            return USERS[name].answer
        if one.interface == "agent_loop":
            kind = load_agent_loop(path, name, one, modules)
            if self._agent_loop is None or self._request.loops is None:
                return _answered_elsewhere  # never called: the tokenizer has a problem
            return self._agent_loop(self._request.loops.settings[one.name], kind, one.config)
        user: User | Program
        if self._listener and one.interface == "openai":
            user = Program(load_program(path, name, one, modules), self._listener)
        else:
            user = load_user(path, name, one, modules)
        self._row_calls[one.name] = row_calls(vars(modules[path])[name])
        return user

    def _without_file(self, tool: wire.ToolCode) -> Tool | Method:
        source = tool.source or wire.Source()
        if source.mcp_server is not None:
            if source.mcp_server not in self._servers:
                return _answered_elsewhere  # never called: the server has a problem
            server, offered = self._servers[source.mcp_server]
            return mcp_tool(source.tool or tool.name, tool.parameters, server, offered)
        if source.url is not None:
            return http_tool(source.url, source.key_variable or "", tool.time_limit_seconds)
        if tool.name in self._request.elsewhere:
            return _answered_elsewhere
        return self._built_in(tool)

    def _built_in(self, spec: wire.ToolCode) -> Tool | Method:
        tool, config = TOOLS[spec.name], spec.config
        sandbox = partial(open_sandbox, self._request.sandbox)
        if tool.opens is not None:
            tool.opens(config)
        try:
            if tool.environment is not None:
                create = tool.environment(sandbox(), config)
                return Method(Kind(spec.name, create, scores=True, takes_row=True), tool.answer)
            if tool.runs_code:
                sandbox()
        except SandboxRefused as refused:
            raise ConfigError(f"name: got {spec.name} with {refused}") from None

        def call(
            arguments: dict[str, Json],
            created: dict[str, Json],
            _: str,
            images: Sequence[SeenImage],
        ) -> object:
            return tool.answer(Call(arguments, created, config, sandbox, images))

        return call


def _answered_elsewhere(*_: object) -> object:
    raise LookupError("another role answers it")


def _unreachable(where: str, server: wire.ServerCode, failed: McpFailed) -> str:
    got = shown(server.url or " ".join(server.command))
    why = f"the server does not list its tools: {failed}"
    return f"{where}: got {got}: {why}; a running MCP server"


if __name__ == "__main__":
    guardian.main(lambda: Tools().answer)
