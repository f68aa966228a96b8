"""Messages of tool calls and user simulator turns, between engine ranks and the tools role."""

import msgspec

from ppojob_trainer.rpc.messages.rows import BatchName


class ToolsPeer(msgspec.Struct, frozen=True, array_like=True):
    """A rank that runs tool calls: address or name of its pod, and its port."""

    host: str
    port: int


class ToolCall(msgspec.Struct, frozen=True, array_like=True):
    """A tool call as the model wrote it.

    Attributes:
        arguments: JSON object, as text; it may be wrong.
        created: JSON object: the row's constructor arguments of the tool.
        id: the model's id of the call; empty in most formats.
        to_user: not a tool call, but a turn that the user simulator of this name answers.
            `arguments` are the conversation, as `tools.wire.Conversation`; no model writes one.
    """

    name: str
    arguments: str
    created: bytes = b"{}"
    id: str = ""
    to_user: bool = False


class SeenPicture(msgspec.Struct, frozen=True, array_like=True):
    """A picture of a row, encoded, and the size in pixels at which the model sees it."""

    file: bytes
    width: int
    height: int


class Act(msgspec.Struct, frozen=True):
    """Run the calls of one turn of a row in sequence; answered when all are done.

    Attributes:
        turn: how many turns with calls the row had before.
        calls: in the order in which the model wrote them.
        tools: names of allowed tools; empty for all.
        pictures: of the row so far; None if tools cannot show it any.
    """

    batch: BatchName
    row: int
    turn: int
    calls: list[ToolCall]
    tools: list[str] = []
    pictures: list[SeenPicture] | None = None


class ToolAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result of a call.

    Attributes:
        text: for the model; if the call failed, what it is told of that.
        reward: from the tool for the call, or from the user simulator for the turn.
        failure: empty, or a word: `unknown`, `arguments`, `raised`, `timeout`, `died`.
        ends: the user simulator ends the conversation.
        pictures: pictures before the text, packed by `data.pictures.packed`.
        context: JSON list of messages with which the user begins a new context; empty for none.
        asked: JSON of a program's request, as `tools.wire.ModelRequest`; empty for others.
    """

    text: str
    reward: float = 0.0
    failure: str = ""
    seconds: float = 0.0
    ends: bool = False
    pictures: bytes = b""
    context: bytes = b""
    asked: bytes = b""


class Acted(msgspec.Struct, frozen=True):
    """Answers in the order of the calls."""

    answers: list[ToolAnswer]
