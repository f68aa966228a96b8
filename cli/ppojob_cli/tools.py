"""`ppojob tools`: writes `spec.agent` for existing tools and user simulators."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppojob_api.checks.tools import port_of
from ppojob_api.manifest import to_yaml
from ppojob_api.problem import shown
from ppojob_cli.input_error import InputError
from ppojob_cli.verl_tools import read_verl_agent, wrong_agent

if TYPE_CHECKING:
    from ppojob_trainer.tools.wire import Described

_PYTHON = re.compile(r"(?P<path>.+\.py)(:(?P<environment>\w+))?")


@click.command()
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "--mcp", metavar="URL", help="An MCP server, or the command of one, with its arguments."
)
@click.option("--name", default="mcp", metavar="NAME", help="Name of that server in the job.")
@click.option(
    "--key-variable", metavar="NAME", help="Environment variable with the key of that server."
)
def tools(file: str | None, mcp: str | None, name: str, key_variable: str | None) -> None:
    """Print spec.agent of tools in Python, YAML or an MCP server.

    The YAML is verl's, of tools, interactions or agent loops. Of a Python file the tools are all
    public functions, or those that verl's @function_tool marks; of FILE.py:CLASS they are the
    methods of that class, an environment. Descriptions come from signatures and docstrings; the
    file itself is not copied. Of an MCP server it prints all tools, with what a job needs to call
    them.
    """
    if (file is None) == (mcp is None):
        got = "both" if file else "neither"
        why = "tools are in a file, or at a server"
        raise InputError(f"FILE and --mcp: got {got}: {why}; one of the two")
    if file is None:
        agent = _of_server(str(mcp), name, key_variable)
    elif file.endswith((".yaml", ".yml", ".json")):
        agent = read_verl_agent(file)
        users = agent.get("interactions", [])
        if users and all(one.get("interface") == "agent_loop" for one in users):
            agent["default"] = users[0]["name"]
    elif (found := _PYTHON.fullmatch(file)) is not None:
        agent = {"tools": _of_python(found["path"], found["environment"] or "")}
    else:
        why = "tools are in YAML or in Python"
        raise InputError(f"FILE: got {shown(file)}: {why}; a name that ends in .yaml or .py")
    if problems := list(wrong_agent(agent)):
        raise InputError("\n".join(map(str, problems)))
    click.echo(to_yaml({"agent": agent}), nl=False)


def _of_python(file: str, environment: str) -> list[dict[str, Any]]:
    from ppojob_trainer.tools.describe import read_tools

    described = read_tools(file, environment)
    path = str(Path(file))
    return list(_tools(described, lambda one: {"path": path, "function": one.function}))


def _of_server(place: str, name: str, key_variable: str | None) -> dict[str, Any]:
    from ppojob_trainer.tools.describe import read_server
    from ppojob_trainer.tools.wire import ServerCode

    is_url = place.startswith(("http://", "https://"))
    command = [] if is_url else shlex.split(place)
    if not is_url and not command:
        raise InputError(f"--mcp: got {shown(place)}: no server; http://HOST:PORT/mcp or a command")
    server: dict[str, Any] = {"name": name} | ({"url": place} if is_url else {"command": command})
    if key_variable:
        server["keyVariable"] = key_variable
    code = ServerCode(name, place if is_url else None, command, key_variable)
    described = read_server(code)
    port = port_of(place) if is_url else None

    def source(one: "Described") -> dict[str, str]:
        own_name = {} if one.function == _tool_name(one.name) else {"tool": one.function}
        return {"mcpServer": name, **own_name}

    return {
        "mcpServers": [server],
        **({"egress": [{"ports": [port]}]} if port is not None else {}),
        "tools": list(_tools(described, source)),
    }


def _tools(
    described: "Iterable[Described]", source: "Callable[[Described], dict[str, str]]"
) -> Iterator[dict[str, Any]]:
    import msgspec

    for one in described:
        yield {
            "name": _tool_name(one.name),
            "description": one.description,
            "parameters": msgspec.json.decode(one.parameters),
            "source": source(one),
        }


def _tool_name(name: str) -> str:
    """Replace characters that servers allow in names, but chat models do not."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]
