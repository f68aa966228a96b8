"""Users' reward functions: found by path and name, checked before the first call."""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType

from ppojob_trainer.children.user_code import UnusableModule, load_module, load_packaged
from ppojob_trainer.json_value import Json

SIGNATURE = "(data_source, solution_str, ground_truth, extra_info, **arguments)"
BATCH_SIGNATURE = "(data_sources, solution_strs, ground_truths, extra_infos, **arguments)"
_OF_THE_ROW = {
    "data_sources": "data_source",
    "solution_strs": "solution_str",
    "ground_truths": "ground_truth",
    "extra_infos": "extra_info",
}
_OF_THE_RESPONSE = {"response_tokens": "response_tokens", "finish_reasons": "finish_reason"}
SINGULAR = _OF_THE_ROW | _OF_THE_RESPONSE
"""What functions that take all responses at once are told, and its name for the others."""


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
    try:
        module = load_module(path, f"ppojob_custom_reward_{position}", pod="reward")
    except UnusableModule as bad:
        raise BadFunction("RewardModule", bad.got, bad.why, bad.allowed) from None
    return _taken(path, name, module, arguments)


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
        module = load_packaged(package, pod="reward")
    except UnusableModule as bad:
        raise BadFunction("RewardModule", bad.got, bad.why, bad.allowed) from None
    return _taken(package, name, module, arguments)


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


def columns_of(function: Callable[..., object]) -> frozenset[str]:
    """What a function is called with: the row, and of the response what its signature names."""
    of_the_response = _named(_OF_THE_RESPONSE, function) & _parameters(function)
    return _named(_OF_THE_ROW, function) | of_the_response


def _named(columns: Mapping[str, str], function: Callable[..., object]) -> frozenset[str]:
    return frozenset(columns if takes_batch(function) else columns.values())


def _parameters(function: Callable[..., object]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # a builtin without a signature
        return frozenset()


def _checked(
    path: str, name: str, function: object, arguments: Mapping[str, Json]
) -> Callable[..., object]:
    if not callable(function):
        raise BadFunction(
            "RewardFunction", f"{name} = {type(function).__name__}", "not callable", "a function"
        )
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if isinstance(function, type) or is_generator:
        kind = "a generator" if is_generator else "a class"
        why = "what a call of it gives is no score"
        raise BadFunction("RewardFunction", f"{name}, {kind}", why, "a function that returns one")
    for taken in sorted(_named(_OF_THE_ROW, function) & arguments.keys()):
        raise BadFunction(
            "RewardArguments",
            f"{name} with {taken}",
            "every call has it already, from the row",
            "arguments of other names",
        )
    try:
        given = columns_of(function) | arguments.keys()
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
