"""Custom agent loop: a user's generator, which yields what the model reads next.

Any free process runs a turn. So the generator starts anew each time, and is sent the model's
earlier turns again; if it then yields something else than before, the row would differ from the
generated one, and that is an error.
"""

from collections.abc import Callable, Generator
from copy import deepcopy
from dataclasses import dataclass

from ppojob_api.problem import shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.tools.answers import Reply, read_reply
from ppojob_trainer.tools.wire import Conversation, Message

_Generator = Generator[object, str, object]


@dataclass(frozen=True, slots=True)
class Loop:
    """A user that is a generator function.

    Attributes:
        function: gets the messages of the prompt, and by name what the row tells it. Its first
            yield, of nothing, gives the model's first turn; each further one is a text, or a list
            of messages that begins a new context, if need be in a tuple with a score, and gives the
            turn that answers it. It returns at the end, None or a score.
    """

    function: Callable[..., _Generator]

    def __call__(
        self, conversation: Conversation, arguments: dict[str, Json], _row: str
    ) -> tuple[bool, str | list[dict[str, str]], object]:
        """Return its answer to the last turn of the model.

        Raises:
            BadResult: it yields an invalid value, or another one than before.
        """
        prompt = deepcopy(conversation.messages[: conversation.prompt])
        loop = self.function(prompt, **told_by_row(arguments))
        try:
            return _answer(loop, conversation)
        finally:
            loop.close()


def told_by_row(arguments: dict[str, Json]) -> dict[str, Json]:
    """Return the row's arguments of its user simulator, by name."""
    return {name: value for name, value in arguments.items() if name != "name"}


def _answer(
    loop: _Generator, conversation: Conversation
) -> tuple[bool, str | list[dict[str, str]], object]:
    heard = conversation.messages
    ended, value = _sent(loop, None)
    if value is not None and not ended:
        raise BadResult("BadAnswer", shown(value), "the first yield of a loop has no value")
    for before in conversation.spoken:
        if not ended:
            ended, value = _sent(loop, str(heard[before.behind - 1]["content"]))
        words, begins = ([], False) if ended else _words(_read(value))
        then = heard[before.behind : before.behind + before.messages]
        if (words, begins) != (then, before.begins_context):
            got = "its end" if ended else shown(words)
            why = f"where it said {shown(then)} before; the same words to the same turns"
            raise BadResult("BadAnswer", got, why)
    if not ended:
        ended, value = _sent(loop, str(heard[-1]["content"]))
    if ended:
        return True, "", value
    reply = _read(value)
    return False, reply.context or reply.text, reply.score


def _sent(loop: _Generator, said: str | None) -> tuple[bool, object]:
    """Return whether a loop has ended after a model turn, and what it returned or yielded."""
    try:
        return False, next(loop) if said is None else loop.send(said)
    except StopIteration as end:
        return True, end.value


def _read(value: object) -> Reply:
    """A value that was yielded."""
    said, score = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if not isinstance(said, str | list):
        why = "a loop yields text, messages of a new context, or (one of both, score)"
        raise BadResult("BadAnswer", shown(value), why)
    return read_reply((False, said, score))


def _words(reply: Reply) -> tuple[list[Message], bool]:
    """The messages of a reply, and whether they begin a context."""
    if reply.context:
        return list(reply.context), True
    return [{"role": "user", "content": reply.text}], False
