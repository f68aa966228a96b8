"""Messages of tool calls and user simulator turns."""

import msgspec

from ppojob_trainer.rpc.messages.rows import BatchName


class ToolsPeer(msgspec.Struct, frozen=True, array_like=True):
    """A rank that runs tool calls: address or name of its pod, and port."""

    host: str
    port: int


class ToolCall(msgspec.Struct, frozen=True, array_like=True):
    """A tool call of the model, or a turn of the user simulator."""

    name: str
    arguments: str  # JSON object, unchecked; of a user simulator a `tools.wire.Conversation`
    # JSON object with the row's constructor arguments of the tool, or those of each environment
    created: bytes = b"{}"
    id: str = ""  # the model's id of the call; empty in most formats
    to_user: bool = False  # whether the user simulator of this name answers


class SeenImage(msgspec.Struct, frozen=True, array_like=True):
    """An encoded image, and its size in pixels for the model."""

    file: bytes
    width: int
    height: int


class Act(msgspec.Struct, frozen=True):
    """Run the calls of one turn of a row in sequence."""

    batch: BatchName
    row: int
    turn: int  # number of earlier turns with calls
    calls: list[ToolCall]  # empty: the row has ended, its environments are scored and closed
    tools: list[str] = []  # names of allowed tools; empty for all
    images: list[SeenImage] | None = None  # of the row so far; None if tools cannot return any
    before: list[ToolCall] = []  # earlier calls of the row to its environments, in order
    created: bytes = b"{}"  # of a row that has ended, as in `ToolCall`


class ToolAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result of a call."""

    text: str  # result or error text for the model
    reward: float = 0.0  # reward of the call or turn
    failure: str = ""  # empty, `unknown`, `arguments`, `raised`, `timeout` or `died`
    seconds: float = 0.0
    ends: bool = False  # whether the user simulator ends the conversation
    images: bytes = b""  # images before the text, packed by `data.images.packed`
    context: bytes = b""  # JSON list of the first messages of a new context; empty for none
    asked: bytes = b""  # `tools.wire.ModelRequest` of a program as JSON; empty for others
    masked: list[int] = []  # of an agent loop at its end, numbers of turns that are not trained


def reached_environment(answer: ToolAnswer) -> bool:
    """Return whether a call counts as one that the environment has answered.

    A call that was too slow, or whose process died, ended the environment: the next one is made
    without it.
    """
    return answer.failure in ("", "raised")


class Acted(msgspec.Struct, frozen=True):
    """Answers in the order of the calls."""

    answers: list[ToolAnswer]
