"""A real MCP server, by the package that the client is of: over HTTP, or by stdin and stdout.

    python mcp_server.py stdio
    python mcp_server.py http  # prints its port

The variables `CHANGED` and `KEY` have it take other arguments, and ask for a key.
"""

import os
import socket
import sys
import time

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("sums")
calls: list[str] = []

if os.environ.get("CHANGED"):

    @server.tool()
    def add(a: float, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)

else:

    @server.tool()
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)


@server.tool()
def fails(why: str | None = None) -> str:
    """Fails."""
    raise ToolError(f"{why}, says {os.environ.get('KEY')}")


@server.tool()
def waits(seconds: float) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "waited"


@server.tool(name="town.people")
def people(town: str) -> dict[str, int]:
    """Tells the population of a town."""
    calls.append(town)
    return {town: len(calls)}


@server.tool()
def draw() -> Image:
    """Draws."""
    return Image(data=b"P1 1 1 0", format="png")


@server.tool()
def ends(unless: str) -> None:
    """Ends the server, once."""
    if not os.path.exists(unless):
        open(unless, "w").close()
        os._exit(1)


def over_http() -> None:
    app = server.streamable_http_app()
    key = os.environ.get("KEY", "")

    async def guarded(scope, receive, send) -> None:
        told = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        if scope["type"] == "http" and key and told != f"Bearer {key}":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no key"})
            return
        await app(scope, receive, send)

    bound = socket.create_server(("127.0.0.1", 0))
    print(bound.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(guarded, log_level="error")).run(sockets=[bound])


if __name__ == "__main__":
    over_http() if sys.argv[1] == "http" else server.run("stdio")
