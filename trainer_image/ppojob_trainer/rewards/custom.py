"""Users' reward functions: found by path and name, checked before the first call."""

import asyncio
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from ppojob_api.problem import printable
from ppojob_trainer.json_value import Json

SIGNATURE = "(data_source, solution_str, ground_truth, extra_info, **arguments)"
BATCH_SIGNATURE = "(data_sources, solution_strs, ground_truths, extra_infos, **arguments)"
_SHOWN_FRAMES = 5
_EVENT_LOOP = Path(asyncio.__file__).parent
_OF_THE_ROW = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"})
_OF_THE_RESPONSE = frozenset({"response_tokens", "finish_reason"})
_OF_THE_ROWS = frozenset({"data_sources", "solution_strs", "ground_truths", "extra_infos"})
_OF_THE_RESPONSES = frozenset({"response_tokens", "finish_reasons"})


class BadFunction(Exception):  # noqa: N818  the function is bad
    """A reward function cannot be used.

    Attributes:
        reason_code: stable word.
        got: what is there.
        why: what is wrong with it.
        allowed: what to write instead.
    """

    def __init__(self, reason_code: str, got: str, why: str, allowed: str) -> None:
        self.reason_code = reason_code
        self.got = got
        self.why = why
        self.allowed = allowed
        super().__init__(f"got {got}: {why}; {allowed}")


def load_function(
    path: str, name: str, arguments: Mapping[str, Json], position: int
) -> Callable[..., object]:
    """Import a Python file and take a function from it.

    Args:
        path: the file.
        name: the function in it.
        arguments: keyword arguments that every call will have.
        position: among the job's functions; it is part of the module's name.

    Raises:
        BadFunction: the file cannot be imported, or holds no such function.
    """
    return _taken(path, name, _module_of_file(path, position), arguments)


def load_from_package(
    package: str, name: str, arguments: Mapping[str, Json]
) -> Callable[..., object]:
    """Import a module of an installed package and take a function from it.

    Args:
        package: the module, ``rewards`` or ``our_package.rewards``.
        name: the function in it.
        arguments: keyword arguments that every call will have.

    Raises:
        BadFunction: there is no such module, it cannot be imported, or holds no such function.
    """
    try:
        module = importlib.import_module(package)
    except BaseException as error:  # as in a file
        raise _package_problem(package, error) from None
    return _taken(package, name, module, arguments)


def _module_of_file(path: str, position: int) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise BadFunction("RewardModule", path, "no such file", "a Python file")
    module_name = f"ppojob_custom_reward_{position}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise BadFunction("RewardModule", path, "no Python file", "a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # the file is the user's: it may even call sys.exit
        raise _import_problem(path, error) from None
    return module


def _taken(
    path: str, name: str, module: ModuleType, arguments: Mapping[str, Json]
) -> Callable[..., object]:
    if name not in vars(module):
        names = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise BadFunction(
            "RewardFunction",
            name,
            f"{path} has no such function",
            f"one of {', '.join(names)}" if names else f"def {name}{SIGNATURE}",
        )
    return _checked(path, name, vars(module)[name], arguments)


def takes_batch(function: Callable[..., object]) -> bool:
    """Whether a function takes all responses at once: its signature names them so."""
    return "solution_strs" in _parameters(function)


def of_the_response(function: Callable[..., object]) -> frozenset[str]:
    """What a function is told of responses besides their text: what its signature names."""
    known = _OF_THE_RESPONSES if takes_batch(function) else _OF_THE_RESPONSE
    return known & _parameters(function)


def _parameters(function: Callable[..., object]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # a builtin without a signature
        return frozenset()


def user_frames(error: BaseException, caller: str) -> list[str]:
    """The last five frames of an exception, as ``file:line name``, those of the caller left out."""
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if frame.filename != caller]
    own = [frame for frame in others if Path(frame.filename).parent != _EVENT_LOOP]
    return [_shown(frame) for frame in own[-_SHOWN_FRAMES:]]


def _shown(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} {frame.name}"


def _last_place(path: str, error: BaseException) -> str:
    """The last line of the file, or of one beside it, that an exception came through."""
    file = Path(path)
    folders = {file.absolute().parent, file.resolve().parent}
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent in folders]
    return _shown(own[-1]) if own else path


def _checked(
    path: str, name: str, function: object, arguments: Mapping[str, Json]
) -> Callable[..., object]:
    if not callable(function):
        raise BadFunction(
            "RewardFunction", f"{name} = {type(function).__name__}", "not callable", "a function"
        )
    of_the_row = _OF_THE_ROWS if takes_batch(function) else _OF_THE_ROW
    for taken in sorted(of_the_row & arguments.keys()):
        raise BadFunction(
            "RewardArguments",
            f"{name} with {taken}",
            "every call has it already, from the row",
            "arguments of other names",
        )
    try:
        given = of_the_row | arguments.keys() | of_the_response(function)
        inspect.signature(function).bind(**dict.fromkeys(given))
    except TypeError as error:
        raise BadFunction(
            "RewardFunction",
            f"{name}{inspect.signature(function)}",
            f"{path}: it cannot be called with {', '.join(sorted(given))}: {error}",
            f"def {name}{BATCH_SIGNATURE if takes_batch(function) else SIGNATURE}",
        ) from None
    except ValueError:
        return function  # a builtin without a signature is found out by calling it
    return function


def _package_problem(package: str, error: BaseException) -> BadFunction:
    is_itself = isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(
        f"{error.name}."
    )
    if is_itself:
        return BadFunction(
            "RewardModule",
            package,
            "no such module is installed",
            "a module of a package in the reward pod's image, such as our_package.rewards",
        )
    return _import_problem(package, error)


def _import_problem(path: str, error: BaseException) -> BadFunction:
    if isinstance(error, SyntaxError):
        return BadFunction(
            "RewardModule", f"{path}:{error.lineno}", f"not Python: {error.msg}", "valid Python"
        )
    if isinstance(error, ModuleNotFoundError):
        return BadFunction(
            "RewardModule",
            path,
            f"it imports {error.name}, which is not installed",
            "a package of the reward pod's image, or a file beside this one",
        )
    return BadFunction(
        "RewardModule",
        _last_place(path, error),
        f"importing it raised {type(error).__name__}: {printable(str(error), 200)}",
        "a file that can be imported",
    )
