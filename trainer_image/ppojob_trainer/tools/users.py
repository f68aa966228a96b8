"""Simulated users: verl's interactions, and functions.

A user is asked in whichever process is free, which may be another one each time. So nothing of it
is kept between two turns: it hears the whole conversation, and one that may remember is led through
its earlier turns again.
"""

import copy
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

import msgspec

from ppojob_api.v1alpha1.agent import InteractionSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult, read_number, shown
from ppojob_trainer.tools import verl_names
from ppojob_trainer.tools.custom import made_of, named_in, refuse_config

Message = dict[str, Any]
User = Callable[["Heard", dict[str, Json], str], object]
"""(conversation, what the row tells, name of the row) -> what `read_reply` takes, or an awaitable
of it."""
REPLY_CHARACTERS: Final = 1_000_000
"""Of what a user says; verl knows no limit."""
_METHODS = ("start_interaction", "generate_response", "finalize_interaction")
_FORM = "(whether the conversation ends, text, score), or text"
_ALLOWED = "a function, or a class with verl's generate_response"


class Heard(msgspec.Struct):
    """A conversation, as its user has heard it.

    Attributes:
        messages: with "role" and "content".
        asked: how many there were when the user was asked before.
    """

    messages: list[Message]
    asked: list[int] = []


def read_reply(value: object) -> tuple[bool, str, float]:
    """Whether a conversation ends, what the user says, and the score of the turn.

    By the rules of verl's `generate_response`, which returns them and a dict of metrics; what
    is behind the text may be left out, and so may all but the text. No score counts as 0.

    Raises:
        BadResult: it is something else, or the score is no finite number.
    """
    if isinstance(value, str):
        value = (False, value)
    if not isinstance(value, tuple) or not 2 <= len(value) <= 4 or not isinstance(value[1], str):
        raise BadResult("BadAnswer", shown(value), f"a user returns {_FORM}")
    ends, text, score = bool(value[0]), str.__str__(value[1]), (*value, None)[2]
    return ends, text, 0.0 if score is None else read_number(score, "a score is a number")


def load_user(path: str, name: str, user: InteractionSpec, modules: dict[str, ModuleType]) -> User:
    """Import a file and make a user of the function or class of this name in it.

    Args:
        path: the file.
        name: in it.
        user: as the job has it.
        modules: files that were imported already; a file is imported once for all that is in it.

    Raises:
        ConfigError: the file cannot be imported, or what is in it is no user.
    """
    verl_names.provide_interactions()
    found = named_in(path, name, modules, _ALLOWED)
    if isinstance(found, type):
        return _of_class(name, found, {**user.config, "name": user.name})
    refuse_config(name, user.config)
    return _of_function(found)


def _of_function(function: Callable[..., object]) -> User:
    """A function remembers nothing: it is asked once a turn."""

    def answer(heard: Heard, arguments: dict[str, Json], _row: str) -> object:
        own = {name: value for name, value in arguments.items() if name != "name"}
        return function(heard.messages, **own)

    return answer


def _of_class(name: str, kind: type, config: dict[str, Json]) -> User:
    missing = [one for one in _METHODS if not hasattr(kind, one)]
    if missing:
        why = f"the class has no {', '.join(missing)}"
        raise ConfigError(f"source.function: got {name}: {why}; {_ALLOWED}")
    user = made_of(name, partial(kind, config=config))

    async def answer(heard: Heard, arguments: dict[str, Json], row: str) -> object:
        await user.start_interaction(row, **arguments)
        try:
            for length in heard.asked:
                await _again(user, row, heard.messages[:length], arguments)
            return await user.generate_response(row, heard.messages, **arguments)
        finally:
            await _finished(user, row)

    return answer


async def _again(user: Any, row: str, messages: list[Message], arguments: dict[str, Json]) -> None:
    """An earlier turn; what it raised, the model was told then."""
    try:
        await user.generate_response(row, copy.deepcopy(messages), **arguments)
    except Exception:
        return


def _finished(user: Any, row: str) -> Awaitable[object]:
    """In verl's base class this method takes nothing, in its examples the row."""
    finalize: Callable[..., Awaitable[object]] = user.finalize_interaction
    return finalize(row) if inspect.signature(finalize).parameters else finalize()
