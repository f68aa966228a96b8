"""A loop of a job's own around the model: a generator, which yields what the model reads next.

A generator is asked in whichever process is free, which may be another one each time. So it begins
anew each time, and is sent again what the model has written before; where it then yields something
else than it did, the row would not be the one that was drawn, and that is an error.
"""

from collections.abc import Callable, Generator
from copy import deepcopy
from dataclasses import dataclass

from ppojob_api.problem import shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.tools.answers import Reply, read_reply
from ppojob_trainer.tools.wire import Conversation, Message


@dataclass(frozen=True, slots=True)
class Loop:
    """A user that is a generator function.

    Attributes:
        function: gets the messages of the prompt, and by name what the row tells it. Its first
            yield, of nothing, gives the model's first turn; each further one is a text, or a list
            of messages that begins a new context, if need be in a tuple with a score, and gives the
            turn that answers it. It returns at the end, None or a score.
    """

    function: Callable[..., Generator[object, str, object]]

    def __call__(
        self, conversation: Conversation, arguments: dict[str, Json], _row: str
    ) -> tuple[bool, str | list[dict[str, str]], float | None]:
        """What it says to the last turn of the model.

        Raises:
            BadResult: it yields what nobody can read, or other than before.
        """
        *before, now = *conversation.asked, len(conversation.messages)
        prompt = conversation.messages[: (*before, now)[0] - 1]
        loop = self.function(deepcopy(prompt), **told_by_row(arguments))
        try:
            if (first := next(loop)) is not None:
                raise BadResult("BadAnswer", shown(first), "the first yield of a loop has no value")
            for length in before:
                reply = _read(loop.send(_said(conversation, length)))
                _hold(reply, conversation, length)
            reply = _read(loop.send(_said(conversation, now)))
        except StopIteration as end:
            return True, "", end.value
        finally:
            loop.close()
        return False, reply.context or reply.text, reply.score


def told_by_row(arguments: dict[str, Json]) -> dict[str, Json]:
    """What a row tells its user, by name."""
    return {name: value for name, value in arguments.items() if name != "name"}


def _said(conversation: Conversation, length: int) -> str:
    """The turn of the model that is the last of so many messages."""
    return str(conversation.messages[length - 1]["content"])


def _read(value: object) -> Reply:
    """A value that was yielded."""
    said, score = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    return read_reply((False, said, score))


def _hold(reply: Reply, conversation: Conversation, length: int) -> None:
    """Hold what a loop says to a turn against what it said to it before."""
    messages: list[Message] = reply.context or [{"role": "user", "content": reply.text}]
    then = conversation.messages[length : length + len(messages)]
    if then != messages or (length in conversation.starts) != bool(reply.context):
        why = f"to the same turns it said {shown(then)} before; the same words to the same turns"
        raise BadResult("BadAnswer", shown(messages), why)
