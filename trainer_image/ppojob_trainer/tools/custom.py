"""Users' tools: functions, and classes in verl's form."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.agent import ToolSpec
from ppojob_api.v1alpha1.section import source_field
from ppojob_trainer.children.user_code import UnusableModule, load_module, raised
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.tools import verl_names

Tool = Callable[[dict[str, Json], dict[str, Json], str], object]
"""(arguments, what the row says the tool is made with, name of the call) -> what `read_answer`
takes, or an awaitable of it."""
_ALLOWED: Final = "a function, or a class with verl's execute"


def load_tool(
    path: str, name: str, tool: ToolSpec, schema: dict[str, Json], modules: dict[str, ModuleType]
) -> Tool:
    """Import a file and make a tool of the function or class of this name in it.

    Args:
        path: the file.
        name: in it.
        tool: as the job has it.
        schema: what the model is told.
        modules: files that were imported already; a file is imported once for all of its tools.

    Raises:
        ConfigError: the file cannot be imported, or what is in it cannot be called so; the place is
            in the tool (``source.path``).
    """
    verl_names.provide()
    found = named_in(path, name, modules, _ALLOWED)
    if isinstance(found, type):
        return _of_class(name, found, tool.config, schema)
    refuse_config(name, tool.config)
    return _of_function(name, found, tool.parameters)


def refuse_config(name: str, config: Mapping[str, Json]) -> None:
    """A function has no settings.

    Raises:
        ConfigError: some are given.
    """
    if config:
        raise ConfigError(
            f"config: got {shown(config)}: {name} is a function, and settings are what a class is "
            "made with; remove it, or a class in verl's form"
        )


def named_in(
    path: str, name: str, modules: dict[str, ModuleType], allowed: str
) -> Callable[..., object]:
    """What a file has by a name; the file is imported unless it was.

    Raises:
        ConfigError: it cannot be imported, or the name is that of nothing that can be called.
    """
    module = modules.get(path)
    if module is None:
        try:
            module = load_module(path, f"ppojob_tools_{len(modules)}", pod="tools")
        except UnusableModule as bad:
            raise ConfigError(f"{source_field(path)}: {bad}") from None
        modules[path] = module
    found: object = vars(module).get(name)
    if found is None:
        raise ConfigError(f"source.function: got {name}: {path} has no such name; {allowed}")
    if not callable(found):
        got = f"{name} = {type(found).__name__}"
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
