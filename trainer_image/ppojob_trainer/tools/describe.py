"""Tool schemas from a Python file (signatures and docstrings) or from an MCP server.

A child process reads them, since the file is the user's (``ppojob tools``). The result is data in
the manifest of a job. Both readers raise `ConfigError` for what cannot be described.
"""

import functools
import importlib
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildTimeout
from ppojob_trainer.children.user_code import load_module
from ppojob_trainer.errors import BadInput, ConfigError
from ppojob_trainer.tools.custom import IMAGES
from ppojob_trainer.tools.environments import AT_THE_END
from ppojob_trainer.tools.verl.imports import provide_verl
from ppojob_trainer.tools.wire import Described, DescribeTools, ServerCode, ToolsDescribed

_SECONDS = 120.0
_MODULE = "ppojob_tools"
_FORM = "a docstring with a summary and `Args:`, and a type for each argument"


def read_tools(path: str, environment: str = "") -> list[Described]:
    """Read the tools of a file, or of an environment in it, in a child process."""
    got, allowed = f"{path}: got a file whose import", "a file that can be imported"
    return _described_by_child(DescribeTools(path, environment=environment), got, allowed)


def read_server(server: ServerCode) -> list[Described]:
    """Read the tools of an MCP server, in a child process."""
    got = f"{server.name}: got a server of which the client"
    variables = (server.key_variable,) if server.key_variable else ()
    return _described_by_child(DescribeTools("", server), got, "a server that answers", variables)


def _described_by_child(
    request: DescribeTools, got: str, allowed: str, variables: tuple[str, ...] = ()
) -> list[Described]:
    module, log = "ppojob_trainer.tools.child", logging.getLogger(__name__)
    child = BoundedProcess(module, memory_bytes=None, log=log, variables=variables)
    try:
        body = child.call(msgspec.msgpack.encode(request), _SECONDS)
    except (ChildTimeout, ChildDied) as error:
        raise ConfigError(f"{got} {error}; {allowed}") from None
    finally:
        child.kill()
    described = msgspec.msgpack.decode(body, type=ToolsDescribed)
    if described.problems:
        raise ConfigError(described.problems)
    return described.tools


def describe_tools(path: str, environment: str = "") -> ToolsDescribed:
    """Describe verl's decorated functions, or else all public ones; runs in the child.

    With an `environment`, the name of a class, its public methods but for those at the end.
    """
    provide_verl()
    try:
        module = load_module(path, _MODULE, pod="tools")
    except BadInput as bad:
        return ToolsDescribed([], [f"{path}: {bad}"])
    tools, problems = list[Described](), list[str]()
    found, prefix = _found(module), ""
    if environment:
        kind = vars(module).get(environment)
        if not isinstance(kind, type):
            why = "the file has no such class; one whose methods are tools"
            return ToolsDescribed([], [f"{path}: got {environment}: {why}"])
        found, prefix = _methods(kind), f"{environment}."
    for name, function, schema in found:
        try:
            tools.append(_described(name, prefix + function.__name__, function, schema))
        except Exception as error:
            place, why = f"{path}: {name}", printable(str(error), 300)
            problems.append(f"{place}: got no complete description: {why}; {_FORM}")
    if not tools and not problems:
        problems.append(f"{path}: got no function: there is no tool; public functions")
    return ToolsDescribed(tools, problems)


def _found(module: ModuleType) -> Iterator[tuple[str, Callable[..., object], Any]]:
    registry = importlib.import_module("verl.tools.function_tool").FUNCTION_TOOL_REGISTRY
    registered = [one for one in registry.values() if one.fn.__module__ == _MODULE]
    if registered:
        for one in registered:
            schema = getattr(one, "schema", None) or getattr(one, "tool_schema", None)
            yield one.name, one.fn, schema
        return
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == _MODULE and not name.startswith("_"):
            yield name, value, None


def _methods(environment: type) -> Iterator[tuple[str, Callable[..., object], Any]]:
    members = (vars(base).items() for base in reversed(environment.__mro__))
    for name, value in dict(itertools.chain.from_iterable(members)).items():
        if inspect.isfunction(value) and not name.startswith("_") and name not in AT_THE_END:
            self = next(iter(inspect.signature(value).parameters))
            yield name, _without(value, self), None


def _without(function: Callable[..., object], argument: str) -> Callable[..., object]:
    """Return a function that has the same signature but for one argument."""
    signature = inspect.signature(function)
    reduced: Any = functools.wraps(function)(lambda: None)
    kept = [one for one in signature.parameters.values() if one.name != argument]
    reduced.__signature__ = signature.replace(parameters=kept)
    hints = function.__annotations__.items()
    reduced.__annotations__ = {name: hint for name, hint in hints if name != argument}
    without: Callable[..., object] = reduced
    return without


def _schema(function: Callable[..., object]) -> dict[str, Any]:
    """Build the schema by transformers, as verl does, so that a file means the same in both.

    The argument for the images of the row is omitted, unless its type is text.
    """
    parameters = inspect.signature(function).parameters
    if IMAGES in parameters and "str" not in str(function.__annotations__.get(IMAGES)):
        function = _without(function, IMAGES)
    signature = inspect.signature(function)
    for one in signature.parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise ValueError(f"a schema cannot describe {one}")
    schema: dict[str, Any] = importlib.import_module("transformers.utils").get_json_schema(function)
    return schema


def _described(name: str, source: str, function: Callable[..., object], schema: Any) -> Described:
    if schema is None:
        schema = _schema(function)
    elif not isinstance(schema, dict):
        schema = schema.model_dump(exclude_unset=True, exclude_none=True)
    described = schema["function"]
    parameters = msgspec.json.encode(described.get("parameters", {"type": "object"}))
    return Described(name, source, described["description"], parameters)
