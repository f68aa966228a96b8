"""Custom reward functions: loaded by path and name, checked before the first call."""

import inspect
import os
from collections.abc import Callable, Mapping

from ppojob_api import contract
from ppojob_trainer.children.user_code import load_module, load_packaged
from ppojob_trainer.errors import BadInput, ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.wire import Source

SIGNATURE = "(data_source, solution_str, ground_truth, extra_info, **arguments)"
BATCH_SIGNATURE = "(data_sources, solution_strs, ground_truths, extra_infos, **arguments)"
GROUP_SIGNATURE = "(data_source, solution_strs, ground_truth, extra_infos, **arguments)"
BATCHED = "solution_strs"
"""Argument for the responses of functions that take many at once."""
OF_THE_PROMPT = {"data_source": "data_sources", "ground_truth": "ground_truths"}
"""Columns that all responses to a prompt share, with their names for batch functions.

A function with one of these and `solution_strs` takes all responses to one prompt.
"""
_OF_THE_ROW = {
    "data_sources": "data_source",
    "solution_strs": "solution_str",
    "ground_truths": "ground_truth",
    "extra_infos": "extra_info",
}
_OF_THE_RESPONSE = {"response_tokens": "response_tokens", "finish_reasons": "finish_reason"}
OF_THE_JUDGE = ("reward_router_address", "reward_model_tokenizer")
"""Arguments for the job's judge (host and port) and its tokenizer, by verl's names."""
SINGULAR = _OF_THE_ROW | _OF_THE_RESPONSE
"""Arguments of batch functions, with their names for functions that take one response."""


def load_function(
    source: Source, name: str, arguments: Mapping[str, Json], position: int
) -> Callable[..., object]:
    """Import a file or a package and return a function from it, which must accept the arguments.

    `position` is its index among the job's functions. Raises ConfigError if the module cannot be
    imported, or has no such function; the place is relative to the reward (``source.path``).
    """
    path, package = source.file, source.package or ""
    try:
        if path is not None:
            module = load_module(path, f"ppojob_custom_reward_{position}", pod="reward")
        else:
            module = load_packaged(package, pod="reward")
    except BadInput as bad:
        raise ConfigError(
            f"{contract.source_field(path) if path else 'source.package'}: {bad}"
        ) from None
    if name not in vars(module):
        names = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        allowed = f"one of {', '.join(names)}" if names else f"def {name}{SIGNATURE}"
        why = f"{path or package} has no such function"
        raise ConfigError(f"function: got {name}: {why}; {allowed}")
    return _checked(path or package, name, vars(module)[name], arguments)


def columns_of(function: Callable[..., object]) -> frozenset[str]:
    """Return the columns that a function gets, by its signature.

    These are the columns of the row, and those of the response and the judge that it names. A
    function with ``solution_strs`` takes all responses, or those to one prompt.
    """
    try:
        parameters = inspect.signature(function).parameters.keys()
    except (ValueError, TypeError):  # a builtin without a signature
        return frozenset(_OF_THE_ROW.values())
    judge = OF_THE_JUDGE if contract.ENV_JUDGE_URL in os.environ else ()
    if BATCHED in parameters:
        own = frozenset(_OF_THE_ROW)
        if parameters & OF_THE_PROMPT.keys():
            own = own - {*OF_THE_PROMPT.values()} | OF_THE_PROMPT.keys()
        return own | ({*_OF_THE_RESPONSE, *judge} & parameters)
    return frozenset(_OF_THE_ROW.values()) | ({*_OF_THE_RESPONSE.values(), *judge} & parameters)


def _checked(
    path: str, name: str, function: object, arguments: Mapping[str, Json]
) -> Callable[..., object]:
    if not callable(function):
        kind = type(function).__name__
        raise ConfigError(f"function: got {name} = {kind}: not callable; a function")
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if isinstance(function, type) or is_generator:
        kind = "a generator" if is_generator else "a class"
        raise ConfigError(
            f"function: got {name}, {kind}: a call does not return a score; "
            "a function that returns one"
        )
    columns = columns_of(function)
    of_the_row = _OF_THE_ROW.keys() | set(_OF_THE_ROW.values())
    for taken in sorted(columns & of_the_row & arguments.keys()):
        raise ConfigError(
            f"arguments: got {name} with {taken}: each call gets it from the row; other names"
        )
    try:
        given = columns | arguments.keys()
        inspect.signature(function).bind(**dict.fromkeys(given))
    except TypeError as error:
        names = ", ".join(sorted(given))
        allowed = SIGNATURE
        if BATCHED in columns:
            allowed = GROUP_SIGNATURE if columns & OF_THE_PROMPT.keys() else BATCH_SIGNATURE
        if "completions" in inspect.signature(function).parameters:
            allowed += f" that calls TRL's {name}, as docs/data-and-rewards.md shows"
        raise ConfigError(
            f"function: got {name}{inspect.signature(function)}: {path}: it cannot be called with "
            f"{names}: {error}; def {name}{allowed}"
        ) from None
    except ValueError:
        return function  # a builtin without a signature
    return function
