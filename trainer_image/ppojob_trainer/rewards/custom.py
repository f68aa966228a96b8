"""Custom reward functions: loaded by path and name, checked before the first call."""

import inspect
import os
from collections.abc import Callable, Mapping

from ppojob_api import contract
from ppojob_trainer.children.user_code import load_module, load_packaged
from ppojob_trainer.errors import ConfigError, Wrong
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.wire import Source

SIGNATURE = "(data_source, solution_str, ground_truth, extra_info, **arguments)"
BATCH_SIGNATURE = "(data_sources, solution_strs, ground_truths, extra_infos, **arguments)"
GROUP_SIGNATURE = "(data_source, solution_strs, ground_truth, extra_infos, **arguments)"
BATCHED = "solution_strs"
"""Names the responses to functions that take many of them at once."""
OF_THE_PROMPT = {"data_source": "data_sources", "ground_truth": "ground_truths"}
"""What all responses to a prompt share, and its name for functions that take all prompts' at once.

A function that names one of these beside the responses takes those to one prompt.
"""
_OF_THE_ROW = {
    "data_sources": "data_source",
    "solution_strs": "solution_str",
    "ground_truths": "ground_truth",
    "extra_infos": "extra_info",
}
_OF_THE_RESPONSE = {"response_tokens": "response_tokens", "finish_reasons": "finish_reason"}
OF_THE_JUDGE = ("reward_router_address", "reward_model_tokenizer")
"""Arguments for the job's own judge (host and port), and its tokenizer, by verl's names."""
SINGULAR = _OF_THE_ROW | _OF_THE_RESPONSE
"""What functions that take all responses at once are told, and its name for the others."""


def load_function(
    source: Source, name: str, arguments: Mapping[str, Json], position: int
) -> Callable[..., object]:
    """Import a file or a package and return a function from it that accepts these arguments.

    Every call will have these keyword arguments; the position is that among the job's functions.

    Raises:
        ConfigError: the module cannot be imported, or has no such function; the place is in the
            reward (``source.path``).
    """
    path, package = source.file, source.package or ""
    try:
        if path is not None:
            module = load_module(path, f"ppojob_custom_reward_{position}", pod="reward")
        else:
            module = load_packaged(package, pod="reward")
    except Wrong as bad:
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
    """Return the columns of a function: the row's, and those of the response in its signature.

    A signature with ``solution_strs`` takes all responses at once, or those to one prompt. In a job
    with a judge a function gets it too, by the names in its signature.
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
            f"arguments: got {name} with {taken}: each call gets it from the row already; "
            "arguments of other names"
        )
    try:
        given = columns | arguments.keys()
        inspect.signature(function).bind(**dict.fromkeys(given))
    except TypeError as error:
        told = ", ".join(sorted(given))
        allowed = SIGNATURE
        if BATCHED in columns:
            allowed = GROUP_SIGNATURE if columns & OF_THE_PROMPT.keys() else BATCH_SIGNATURE
        raise ConfigError(
            f"function: got {name}{inspect.signature(function)}: {path}: it cannot be called with "
            f"{told}: {error}; def {name}{allowed}"
        ) from None
    except ValueError:
        return function  # a builtin without a signature is found out by calling it
    return function
