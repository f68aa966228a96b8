"""Custom agent loop: a user's generator, which yields the messages after each turn of the model.

Any free process runs a turn, so the generator is restarted each time and is sent the model's
earlier turns again. If it then yields other messages than before, the row would differ from the
generated one, which is an error.
"""

import json
from collections.abc import Callable, Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Final

from ppojob_api.problem import printable, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.tools.answers import Reply, read_reply
from ppojob_trainer.tools.wire import Conversation, Message

_Generator = Generator[object, str, object]
_BEFORE_CHARACTERS: Final = 40
_SHOWN_CHARACTERS: Final = 120


@dataclass(frozen=True, slots=True)
class Loop:
    """A user simulator that is a generator function."""

    # Takes the messages of the prompt, and the row's arguments by name. Its first yield has no
    # value, and evaluates to the model's first turn. Each further one yields a text, or a list of
    # messages that begins a new context, optionally in a tuple with a score, and evaluates to the
    # turn that answers it. It returns None or a score.
    function: Callable[..., _Generator]

    def __call__(
        self, conversation: Conversation, arguments: dict[str, Json], _row: str
    ) -> tuple[bool, str | list[dict[str, str]], object]:
        """Return its answer to the last turn of the model."""
        prompt = deepcopy(conversation.messages[: conversation.prompt])
        loop = self.function(prompt, **without_name(arguments))
        try:
            return _answer(loop, conversation)
        finally:
            loop.close()


def without_name(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return the row's arguments for its user simulator, without the name of the simulator."""
    return {name: value for name, value in arguments.items() if name != "name"}


def first_difference(now: list[Message], before: list[Message]) -> tuple[str, str]:
    """Return the place of the first message that differs, with its text from there, and before."""
    pairs = enumerate(zip_longest(now, before))
    number, pair = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    one, other = texts_around(*pair)
    return f"messages[{number}] {one}", other


def texts_around(now: object, before: object) -> list[str]:
    """Return both values as short texts that begin shortly before their first difference."""
    texts = [json.dumps(one, ensure_ascii=False) if one else "nothing" for one in (now, before)]
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
    start = max(0, len(list(alike)) - _BEFORE_CHARACTERS)
    cut = "..." if start else ""
    return [cut + printable(text[start:], _SHOWN_CHARACTERS) for text in texts]


def _answer(
    loop: _Generator, conversation: Conversation
) -> tuple[bool, str | list[dict[str, str]], object]:
    messages = conversation.messages
    ended, value = _sent(loop, None)
    if value is not None and not ended:
        raise BadResult("BadAnswer", shown(value), "the first yield of a loop has no value")
    for turn in conversation.user_turns:
        if not ended:
            ended, value = _sent(loop, str(messages[turn.start - 1]["content"]))
        found, begins = ([], False) if ended else _messages(_read(value))
        before = messages[turn.start : turn.start + turn.messages]
        if (found, begins) != (before, turn.begins_context):
            got, earlier = "its end" if ended else shown(found), shown(before)
            if not ended and found != before:
                got, earlier = first_difference(found, before)
            why = f"before, it was {earlier}; the same messages after the same turns"
            raise BadResult("BadAnswer", got, why)
    if not ended:
        ended, value = _sent(loop, str(messages[-1]["content"]))
    if ended:
        return True, "", value
    reply = _read(value)
    return False, reply.context or reply.text, reply.score


def _sent(loop: _Generator, turn: str | None) -> tuple[bool, object]:
    """Send a model turn; return whether the loop ended, and what it returned or yielded."""
    try:
        return False, next(loop) if turn is None else loop.send(turn)
    except StopIteration as end:
        return True, end.value


def _read(value: object) -> Reply:
    content, score = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if not isinstance(content, str | list):
        why = "a loop yields text, messages of a new context, or (one of both, score)"
        raise BadResult("BadAnswer", shown(value), why)
    return read_reply((False, content, score))


def _messages(reply: Reply) -> tuple[list[Message], bool]:
    """Return the messages of a reply, and whether they begin a context."""
    if reply.context:
        return list(reply.context), True
    return [{"role": "user", "content": reply.text}], False
