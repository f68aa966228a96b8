"""Custom tools and user simulators of a job: functions, classes in verl's form, services.

Any free process runs a turn of a user simulator, so no state is kept between turns: a function gets
the whole conversation, and an object, which may have state, first repeats its earlier turns.
Loaders raise `ConfigError`, with a place relative to the tool (``source.path``).
"""

import contextlib
import copy
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from PIL import Image

from ppojob_api.contract import source_field
from ppojob_api.problem import shown
from ppojob_trainer.children.user_code import load_module, raised
from ppojob_trainer.data.media.images import opened
from ppojob_trainer.errors import BadInput, ConfigError
from ppojob_trainer.http_calls import endpoint_problem, json_or_text, post_json
from ppojob_trainer.json_value import Json
from ppojob_trainer.rpc.messages.agents import SeenImage
from ppojob_trainer.tools.answers import response
from ppojob_trainer.tools.environments import Method, check_arguments, load_method
from ppojob_trainer.tools.loop import Loop, without_name
from ppojob_trainer.tools.verl.imports import provide_verl
from ppojob_trainer.tools.wire import Conversation, ToolCode, UserCode

Tool = Callable[[dict[str, Json], dict[str, Json], str, Sequence[SeenImage]], object]
"""(arguments, the row's constructor arguments, name of the call, images of the row) -> a value
for `answers.read_answer`, or an awaitable of it.
"""
User = Callable[[Conversation, dict[str, Json], str], object]
"""(conversation, the row's arguments, name of the row) -> a value for `answers.read_reply`, or an
awaitable of it.
"""
_TOOLS: Final = "a function, a class with verl's execute, or CLASS.METHOD of an environment"
_USERS: Final = "a function, or a class with verl's generate_response"
_PROGRAMS: Final = "a function that calls the model at OPENAI_BASE_URL"
_LOOPS: Final = "a subclass of verl's AgentLoopBase with async def run"
IMAGES: Final = "images"
"""Argument of a function for the images of the row; it is not in the model's schema."""
SEEN_SIZE: Final = "seen_size"
_WITH_REWARD: Final = frozenset({"text", "reward", "images"})


def load_tool(
    path: str, name: str, tool: ToolCode, schema: dict[str, Json], modules: dict[str, ModuleType]
) -> Tool:
    """Load a tool from a function or class of this name in a file.

    `schema` is that for the model; `modules` are the imported files, each of which is imported
    once.
    """
    provide_verl()
    found = _named_in(path, name, tool.config, modules, _TOOLS)
    if isinstance(found, type):
        return _tool_of_class(name, found, tool.config, schema)
    return _tool_of_function(name, found, tool.parameters)


def load_environment(
    path: str, name: str, tool: ToolCode, modules: dict[str, ModuleType]
) -> Method:
    """Load a method of an environment, `CLASS.METHOD`, from a file; see `load_tool`."""
    provide_verl()
    kind = _named_in(path, name.partition(".")[0], {}, modules, _TOOLS)
    return load_method(kind, path, name, tool)


def load_user(path: str, name: str, user: UserCode, modules: dict[str, ModuleType]) -> User:
    """Load a user simulator from a function or class in a file; see `load_tool`."""
    provide_verl()
    found = _named_in(path, name, user.config, modules, _USERS)
    if isinstance(found, type):
        return _user_of_class(name, found, {**user.config, "name": user.name})
    if inspect.isgeneratorfunction(found):
        return Loop(found)
    if inspect.isasyncgenfunction(found):
        why = "it yields, and is asynchronous"
        raise ConfigError(f"source.function: got {name}: {why}; a loop by def, without async")

    def answer(conversation: Conversation, arguments: dict[str, Json], _row: str) -> object:
        return found(conversation.contexts()[-1], **without_name(arguments))

    return answer


def load_program(
    path: str, name: str, user: UserCode, modules: dict[str, ModuleType]
) -> Callable[..., object]:
    """Load an agent program, a function that calls the model; see `load_tool`."""
    provide_verl()
    found = _named_in(path, name, user.config, modules, _PROGRAMS)
    if isinstance(found, type) or inspect.isgeneratorfunction(inspect.unwrap(found)):
        got = f"{name}, " + ("a class" if isinstance(found, type) else "which yields")
        raise ConfigError(f"source.function: got {got}: interface is openai; {_PROGRAMS}")
    return found


def load_agent_loop(
    path: str, name: str, user: UserCode, modules: dict[str, ModuleType]
) -> Callable[..., object]:
    """Load an agent loop, by its name or the one it is registered by; see `load_tool`."""
    provide_verl()
    found: Any = vars(_imported(path, modules)).get(name)
    if not isinstance(found, type):
        from ppojob_trainer.tools.verl.agent_loops import REGISTERED  # late: as in `verl.imports`

        found = REGISTERED.get(name) or found or _named_in(path, name, {}, modules, _LOOPS)
    if why := _no_agent_loop(found):
        raise ConfigError(f"source.function: got {name}, {why}: interface is agent_loop; {_LOOPS}")
    loop: Callable[..., object] = found
    return loop


def _no_agent_loop(found: object) -> str:
    """Return why an object is no agent loop; empty if it is one."""
    if not isinstance(found, type):
        return "which is no class"
    if all(base.__name__ != "AgentLoopBase" for base in found.__mro__):
        return "which is no such subclass"
    own = next(base for base in found.__mro__ if "run" in vars(base))
    if own.__name__ == "AgentLoopBase":
        return "which has no run"
    run = inspect.unwrap(vars(own)["run"])
    return "" if inspect.iscoroutinefunction(run) else "whose run is not async"


def http_tool(url: str, key_variable: str, seconds: float) -> Tool:
    """Make a tool that calls a service.

    A call is a POST of its arguments, a JSON object. The answer for the model is the body: text, or
    JSON by its `Content-Type`. A JSON text is that text, and an object with only `text`, `reward`
    and `images` is an answer with these.
    """
    wrong = endpoint_problem(url, key_variable, role="tools")
    if wrong is not None:
        raise ConfigError(f"source: {wrong}")

    def call(arguments: dict[str, Json], *_: object) -> object:
        answer = post_json(
            url,
            arguments,
            read=json_or_text,
            key_variable=key_variable,
            attempt_seconds=seconds,  # also the limit of all attempts
        )
        return returned(answer)

    return call


def returned(answer: Json) -> object:
    """Convert the answer of a service to the return value of a function."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict) and answer.keys() <= _WITH_REWARD:
        text, images = answer.get("text"), answer.get("images") or []
        if isinstance(text, str) or (text is None and images):
            listed = images if isinstance(images, list) else [images]
            return response(text or "", listed), answer.get("reward")
    return json.dumps(answer, ensure_ascii=False)


def _named_in(
    path: str,
    name: str,
    config: Mapping[str, Json],
    modules: dict[str, ModuleType],
    allowed: str,
) -> Callable[..., object]:
    """Return a function or class of a file; only classes take settings."""
    found: object = vars(_imported(path, modules)).get(name)
    if found is None:
        raise ConfigError(f"source.function: got {name}: {path} has no such name; {allowed}")
    if not callable(found):
        got = f"{name} = {type(found).__name__}"
        raise ConfigError(f"source.function: got {got}: not callable; {allowed}")
    if config and not isinstance(found, type):
        raise ConfigError(
            f"config: got {shown(config)}: {name} is a function, but only a class "
            "takes settings; remove it, or a class in verl's form"
        )
    return found


def _imported(path: str, modules: dict[str, ModuleType]) -> ModuleType:
    """Return the module of a file, which is imported once."""
    if path not in modules:
        try:
            modules[path] = load_module(path, f"ppojob_tools_{len(modules)}", pod="tools")
        except BadInput as bad:
            raise ConfigError(f"{source_field(path)}: {bad}") from None
    return modules[path]


def _object_of(
    name: str, kind: type, methods: Sequence[str], make: Callable[[], object], allowed: str
) -> Any:
    """Create an object of a user's class, which must have these methods."""
    missing = [one for one in methods if not hasattr(kind, one)]
    if missing:
        why = f"the class has no {', '.join(missing)}"
        raise ConfigError(f"source.function: got {name}: {why}; {allowed}")
    try:
        return make()
    except BaseException as error:  # the class is the user's
        text, where = raised(error, __file__)
        raise ConfigError(
            f"source.function: got {name}: its constructor raised {text} ({where}); "
            "a class that takes its config"
        ) from None


def _tool_of_function(
    name: str, function: Callable[..., object], parameters: Mapping[str, Any]
) -> Tool:
    properties = parameters.get("properties") or {}
    takes: list[str] = []
    try:
        signature = inspect.signature(function)
    except ValueError:
        pass  # a builtin without a signature
    else:
        takes += [one for one in signature.parameters if one == IMAGES and one not in properties]
        check_arguments(name, signature, [*properties, *takes], "function")

    def call(
        arguments: dict[str, Json], _created: object, _instance: str, seen: Sequence[SeenImage]
    ) -> object:
        return function(**arguments, **{name: _opened(seen) for name in takes})

    return call


def _tool_of_class(name: str, kind: type, config: dict[str, Json], schema: dict[str, Json]) -> Tool:
    def make() -> object:
        forms = importlib.import_module("verl.tools.schemas")
        form = forms.OpenAIFunctionToolSchema.model_validate(schema)
        return kind(config=config, tool_schema=form)

    tool = _object_of(name, kind, ("create", "execute", "release"), make, _TOOLS)
    parameters = inspect.signature(tool.execute).parameters
    takes_more = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    takes_data = takes_more or "agent_data" in parameters

    async def call(
        arguments: dict[str, Json],
        created: dict[str, Json],
        instance: str,
        seen: Sequence[SeenImage],
    ) -> object:
        data = SimpleNamespace(image_data=_opened(seen) or None) if takes_data else None
        more = {} if data is None else {"agent_data": data}
        made = await tool.create(instance, create_kwargs=created)
        own = made[0] if isinstance(made, tuple) else made
        try:
            return await tool.execute(own, arguments, **more)
        finally:
            await tool.release(own)

    return call


def _opened(seen: Sequence[SeenImage]) -> list[Image.Image]:
    """Decode the images of a row; `info` of each has the size of the model's input."""
    images = [opened(one.file) for one in seen]
    for image, one in zip(images, seen, strict=True):
        image.info[SEEN_SIZE] = one.width, one.height
    return images


def _user_of_class(name: str, kind: type, config: dict[str, Json]) -> User:
    methods = ("start_interaction", "generate_response", "finalize_interaction")
    user = _object_of(name, kind, methods, partial(kind, config=config), _USERS)

    async def answer(conversation: Conversation, arguments: dict[str, Json], row: str) -> object:
        await user.start_interaction(row, **arguments)
        try:
            for turn in conversation.user_turns:
                messages = copy.deepcopy(conversation.contexts(turn.start)[-1])
                with contextlib.suppress(Exception):  # reported when the turn was first answered
                    await user.generate_response(row, messages, **arguments)
            return await user.generate_response(row, conversation.contexts()[-1], **arguments)
        finally:
            # In verl's base class this method has no argument, in its examples the row.
            finalize = user.finalize_interaction
            await (finalize(row) if inspect.signature(finalize).parameters else finalize())

    return answer
