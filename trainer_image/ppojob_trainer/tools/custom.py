"""Users' tools: functions, and classes in verl's form."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import msgspec

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.code_source import source_field
from ppojob_trainer.children.user_code import UnusableModule, load_module, raised
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.tools import verl_names
from ppojob_trainer.tools.wire import ToolCode

Tool = Callable[[dict[str, Json], dict[str, Json], str], object]
"""(arguments, what the row says the tool is made with, name of the call) -> what `read_answer`
takes, or an awaitable of it."""
_ALLOWED: Final = "a function, or a class with verl's execute"


def load_tool(code: ToolCode, modules: dict[str, ModuleType]) -> Tool:
    """Import a file, unless that was done for another tool, and make a tool of what is in it.

    Raises:
        ConfigError: the file cannot be imported, or what is in it cannot be called so; the place is
            in the tool (``source.path``).
    """
    verl_names.provide()
    schema = msgspec.json.decode(code.schema)
    found = named_in(code, modules, _ALLOWED)
    if isinstance(found, type):
        return _of_class(code.function, found, msgspec.json.decode(code.config), schema)
    refuse_config(code)
    return _of_function(code.function, found, schema["function"]["parameters"])


def refuse_config(code: ToolCode) -> None:
    """A function has no settings.

    Raises:
        ConfigError: some are given.
    """
    config = msgspec.json.decode(code.config)
    if config:
        raise ConfigError(
            f"config: got {shown(config)}: {code.function} is a function, and settings are what a "
            "class is made with; remove it, or a class in verl's form"
        )


def named_in(code: ToolCode, modules: dict[str, ModuleType], allowed: str) -> Callable[..., object]:
    """What a file has by a name; the file is imported unless it was.

    Raises:
        ConfigError: it cannot be imported, or the name is that of nothing that can be called.
    """
    module = modules.get(code.path)
    if module is None:
        try:
            module = load_module(code.path, f"ppojob_tools_{len(modules)}", pod="tools")
        except UnusableModule as bad:
            raise ConfigError(f"{source_field(code.path)}: {bad}") from None
        modules[code.path] = module
    found: object = vars(module).get(code.function)
    if found is None:
        why = f"{code.path} has no such name"
        raise ConfigError(f"source.function: got {code.function}: {why}; {allowed}")
    if not callable(found):
        got = f"{code.function} = {type(found).__name__}"
        raise ConfigError(f"source.function: got {got}: not callable; {allowed}")
    return found


def made_of(name: str, make: Callable[[], object]) -> Any:
    """An object of a user's class.

    Raises:
        ConfigError: making one raises.
    """
    try:
        return make()
    except BaseException as error:  # the class is the user's
        text, where = raised(error, __file__)
        raise ConfigError(
            f"source.function: got {name}: making one raised {text} ({where}); "
            "a class that takes its config"
        ) from None


def _of_function(name: str, function: Callable[..., object], parameters: Mapping[str, Any]) -> Tool:
    try:
        signature = inspect.signature(function)
        signature.bind(**dict.fromkeys(parameters.get("properties") or {}))
    except TypeError as error:
        raise ConfigError(
            f"parameters: got {name}{signature}: it cannot be called with the properties of "
            f"parameters: {error}; the arguments of the function"
        ) from None
    except ValueError:
        pass  # a builtin without a signature is found out by calling it
    return lambda arguments, _created, _instance: function(**arguments)


def _of_class(name: str, kind: type, config: dict[str, Json], schema: dict[str, Json]) -> Tool:
    missing = [one for one in ("create", "execute", "release") if not hasattr(kind, one)]
    if missing:
        why = f"the class has no {', '.join(missing)}"
        raise ConfigError(f"source.function: got {name}: {why}; {_ALLOWED}")

    def make() -> object:
        forms = importlib.import_module("verl.tools.schemas")
        form = forms.OpenAIFunctionToolSchema.model_validate(schema)
        return kind(config=config, tool_schema=form)

    tool = made_of(name, make)
    more = {"agent_data": None} if _takes(tool.execute, "agent_data") else {}

    async def call(arguments: dict[str, Json], created: dict[str, Json], instance: str) -> object:
        made = await tool.create(instance, create_kwargs=created)
        own = made[0] if isinstance(made, tuple) else made
        try:
            return await tool.execute(own, arguments, **more)
        finally:
            await tool.release(own)

    return call


def _takes(function: Callable[..., object], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()
    )
