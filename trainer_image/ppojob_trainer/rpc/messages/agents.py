"""Calls of tools, and turns of users: from the rank that holds the engine to who answers them."""

import msgspec

from ppojob_trainer.rpc.messages.rows import BatchName


class ToolsPeer(msgspec.Struct, frozen=True, array_like=True):
    """A rank that answers calls: address or name of its pod, and its port."""

    host: str
    port: int


class ToolCall(msgspec.Struct, frozen=True, array_like=True):
    """A call as the model wrote it.

    Attributes:
        arguments: JSON object, as text; it may be wrong.
        created: JSON object: what the row says its tool is made with.
        id: by which the model tells its calls apart; empty in most formats.
        to_user: it is no call, but a turn that the user of this name answers. `arguments` are the
            conversation, as `tools.wire.Conversation`; no model writes one.
    """

    name: str
    arguments: str
    created: bytes = b"{}"
    id: str = ""
    to_user: bool = False


class SeenPicture(msgspec.Struct, frozen=True, array_like=True):
    """A picture of a row, encoded, and the sides in pixels of what the model sees of it."""

    file: bytes
    width: int
    height: int


class Act(msgspec.Struct, frozen=True):
    """Make the calls of one turn of a row, one after the other; the answer comes when all are made.

    Attributes:
        turn: how many turns with calls the row had before.
        calls: in the order in which the model wrote them.
        tools: names of those that the row may call; empty for all.
        pictures: of the row so far; None where tools cannot show it any.
    """

    batch: BatchName
    row: int
    turn: int
    calls: list[ToolCall]
    tools: list[str] = []
    pictures: list[SeenPicture] | None = None


class ToolAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a call gave.

    Attributes:
        text: for the model; where the call failed, what it is told of that.
        reward: that the tool gave for the call, or the user for the turn.
        failure: empty, or a word: `unknown`, `arguments`, `raised`, `timeout`, `died`.
        ends: the user ends the conversation.
        pictures: that stand before the text, as `data.pictures.packed` has them.
        context: JSON list of messages, by which the user begins a new context; empty: it does not.
        asked: JSON of what a program asks, as `tools.wire.Asked`; empty of all others.
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
