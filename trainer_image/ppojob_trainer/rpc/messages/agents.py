"""Messages of tool calls and user simulator turns."""

import msgspec

from ppojob_trainer.rpc.messages.rows import BatchName


class ToolsPeer(msgspec.Struct, frozen=True, array_like=True):
    """A rank that runs tool calls: address or name of its pod, and port."""

    host: str
    port: int


class ToolCall(msgspec.Struct, frozen=True, array_like=True):
    """A tool call of the model, or a turn of the user simulator.

    Attributes:
        arguments: JSON object, unchecked; of a user simulator a `tools.wire.Conversation`.
        created: JSON object with the row's constructor arguments of the tool, or with those of each
            environment.
        id: the model's id of the call; empty in most formats.
        to_user: whether the user simulator of this name answers.
    """

    name: str
    arguments: str
    created: bytes = b"{}"
    id: str = ""
    to_user: bool = False


class SeenPicture(msgspec.Struct, frozen=True, array_like=True):
    """An encoded picture, and its size in pixels for the model."""

    file: bytes
    width: int
    height: int


class Act(msgspec.Struct, frozen=True):
    """Run the calls of one turn of a row in sequence.

    Attributes:
        turn: number of earlier turns with calls.
        calls: empty: the row has ended, and its environment is closed.
        tools: names of allowed tools; empty for all.
        pictures: pictures of the row so far; None if tools cannot return pictures.
        before: earlier calls of the row to its environment, in order.
    """

    batch: BatchName
    row: int
    turn: int
    calls: list[ToolCall]
    tools: list[str] = []
    pictures: list[SeenPicture] | None = None
    before: list[ToolCall] = []


class ToolAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result of a call.

    Attributes:
        text: result or error text for the model.
        reward: reward of the call or turn.
        failure: empty, `unknown`, `arguments`, `raised`, `timeout` or `died`.
        ends: whether the user simulator ends the conversation.
        pictures: pictures before the text, packed by `data.pictures.packed`.
        context: JSON list of the first messages of a new context; empty for none.
        asked: `tools.wire.ModelRequest` of a program as JSON; empty for others.
    """

    text: str
    reward: float = 0.0
    failure: str = ""
    seconds: float = 0.0
    ends: bool = False
    pictures: bytes = b""
    context: bytes = b""
    asked: bytes = b""


def reached_environment(answer: ToolAnswer) -> bool:
    """Return whether a call counts as one that the environment has answered.

    A call that was too slow, or whose process died, ended the environment: the next one is made
    without it.
    """
    return answer.failure in ("", "raised")


class Acted(msgspec.Struct, frozen=True):
    """Answers in the order of the calls."""

    answers: list[ToolAnswer]
