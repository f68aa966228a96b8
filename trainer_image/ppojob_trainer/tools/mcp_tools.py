"""MCP tools, by the official client, in the child process that runs tools.

A call opens its own connection, to a server process of its own if the server is a command, so calls
share no connection state; or it uses the session of its row, which is an environment.
"""

import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from ppojob_api.problem import printable, shown
from ppojob_trainer.children.user_code import run_coroutine
from ppojob_trainer.errors import BadInput, ConfigError
from ppojob_trainer.http_calls import endpoint_problem
from ppojob_trainer.json_value import Json, without_nulls
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.tools.answers import response
from ppojob_trainer.tools.custom import Tool
from ppojob_trainer.tools.environments import Kind, Method
from ppojob_trainer.tools.wire import Described, ServerCode

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

LIST_SECONDS: Final = 20.0
_WAITS: Final = (0.5, 1.0, 2.0)
_WHY_CHARACTERS: Final = 200


class McpFailed(Exception):  # noqa: N818  the name in messages
    """A server gave no answer, or reported that the call failed."""


class McpServer:
    """An MCP server."""

    def __init__(self, code: ServerCode) -> None:
        self.name = code.name
        self.code = code
        self._key = os.environ.get(code.key_variable, "").strip() if code.key_variable else ""

    def problem(self) -> BadInput | None:
        """Return the problem of its URL or key, before any request."""
        if not self.code.url:
            return None
        return endpoint_problem(self.code.url, self.code.key_variable or "", role="tools")

    def tools(self) -> dict[str, Described]:
        """Return its tools by name, or raise McpFailed; it is retried for some seconds."""
        for wait in (*_WAITS, None):
            try:
                return run_coroutine(self._listed())
            except TimeoutError:
                raise McpFailed(f"no answer in {LIST_SECONDS:g} s") from None
            except BaseException as error:  # the client raises groups of any exceptions
                if wait is None:
                    raise McpFailed(self.reason(error)) from None
                time.sleep(wait)
        raise AssertionError("the last attempt raises")

    async def call(self, name: str, arguments: Mapping[str, Json]) -> object:
        """Call a tool; raises McpFailed if there is no answer, or the call failed."""
        try:
            async with self.connected() as client:
                result = await client.call_tool(name, dict(arguments))
        except BaseException as error:
            raise McpFailed(self.reason(error)) from None
        return self.read(result)

    def read(self, result: "CallToolResult") -> object:
        """Return an answer as a tool does; raises McpFailed if the call failed."""
        text, images = _parts_of(result)
        text = text.replace(self._key, "***") if self._key else text
        if result.is_error:
            raise McpFailed(text)
        return response(text, images)

    async def _listed(self) -> dict[str, Described]:
        import asyncio  # late: it imports slowly, and few jobs need it

        found: dict[str, Described] = {}
        async with asyncio.timeout(LIST_SECONDS), self.connected() as client:
            cursor: str | None = None
            while True:
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    parameters = json.dumps(without_nulls(tool.input_schema)).encode()
                    description = tool.description or ""
                    found[tool.name] = Described(tool.name, tool.name, description, parameters)
                cursor = page.next_cursor
                if not cursor:
                    return found

    @asynccontextmanager
    async def connected(self) -> "AsyncIterator[Client]":
        import httpx2  # for mcp; both import slowly, and few jobs need them
        from mcp import Client, StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client

        if url := self.code.url:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            # Calls and the list of tools have their own time limits.
            async with (
                httpx2.AsyncClient(headers=headers, timeout=None) as http,
                Client(streamable_http_client(url, http_client=http), cache=None) as client,
            ):
                yield client
            return
        program, *arguments = self.code.command
        server = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
        async with Client(server, cache=None) as client:
            yield client

    def reason(self, error: BaseException) -> str:
        """Return the first exception in one line, without the key."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = f"{type(error).__name__}: {error}"
        text = text.replace(self._key, "***") if self._key else text
        return printable(text, _WHY_CHARACTERS)


class McpSession:
    """The session of a row with a server, which a task of its own holds open from its first call.

    The client's connections must be opened and closed by one task, and each call is another.
    """

    def __init__(self, server: McpServer) -> None:
        import asyncio

        self._server = server
        self._calls: asyncio.Queue[tuple[str, dict[str, Json], asyncio.Future[Any]] | None]
        self._calls = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.is_lost = False  # whether its connection has ended

    async def call(self, name: str, arguments: dict[str, Json]) -> object:
        """Call a tool in the session; raises as `McpServer.call`."""
        import asyncio

        self._task = self._task or asyncio.create_task(self._serve())
        answer: asyncio.Future[CallToolResult] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait((name, arguments, answer))
        either: set[asyncio.Future[Any]] = {answer, self._task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        ended: asyncio.Future[Any] = answer if answer.done() else self._task
        if (failed := ended.exception()) is not None:
            self.is_lost = True
            raise McpFailed(self._server.reason(failed))
        return self._server.read(answer.result())

    async def close(self) -> None:
        """End the session, and the server if it is a command."""
        import asyncio

        if self._task is not None:
            self._calls.put_nowait(None)
            await asyncio.wait({self._task})

    async def _serve(self) -> None:
        async with self._server.connected() as client:
            while (asked := await self._calls.get()) is not None:
                name, arguments, answer = asked
                try:
                    answer.set_result(await client.call_tool(name, arguments))
                except Exception as error:  # a tool's own error is a result
                    answer.set_exception(error)
                    return


def mcp_tool(
    name: str,
    parameters: dict[str, Json],
    server: McpServer,
    offered: Mapping[str, Described] | None,
) -> Tool | Method:
    """Make a tool that calls a server's tool of this name, in a session of the row if it has one.

    Raises ConfigError if it is not among the `offered` ones, or `parameters`, the schema for the
    model, differ from theirs; None skips the comparison.
    """
    if offered is not None:
        if name not in offered:
            raise ConfigError(
                f"source: got {name}: {server.name} has no such tool; "
                f"one of its own: {', '.join(offered) or 'none there'}"
            )
        theirs = json.loads(offered[name].parameters)
        if (found := _difference(without_nulls(parameters), theirs, "parameters")) is not None:
            place, mine, other = found
            raise ConfigError(
                f"{place}: got {mine}: {server.name} now has {other} for {name}; the output of "
                "`ppojob tools --mcp`"
            )

    async def call(arguments: dict[str, Json], *_: object) -> object:
        return await server.call(name, arguments)

    async def call_in_session(session: McpSession, **arguments: Json) -> object:
        return await session.call(name, arguments)

    if server.code.session != "row":
        return call
    return Method(Kind(server.name, lambda **_: McpSession(server)), call_in_session)


def _difference(ours: Json, theirs: Json, place: str) -> tuple[str, str, str] | None:
    """Return the first place where two schemas differ, and both values; None if equal."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return None if ours == theirs else (place, shown(ours), shown(theirs))
    for key in sorted(ours.keys() | theirs.keys()):
        here = f"{place}.{key}"
        if key not in ours or key not in theirs:
            mine, other = (shown(one[key]) if key in one else "nothing" for one in (ours, theirs))
            return here, mine, other
        if (found := _difference(ours[key], theirs[key], here)) is not None:
            return found
    return None


def _parts_of(result: "CallToolResult") -> tuple[str, list[Json]]:
    """Return text and images of an answer; without any, its structured content."""
    texts, images = [], list[Json]()
    for block in result.content:
        if block.type == "image":
            images.append(block.data)
        elif block.type == "text":
            texts.append(block.text)
        else:
            got, allowed = f"content of type {block.type}", "a response is text and images here"
            raise BadResult("BadAnswer", got, allowed)
    if not texts and not images and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False), []
    return "\n".join(texts), images
