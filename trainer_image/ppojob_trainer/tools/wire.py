"""Messages between the tool pool and its children."""

from itertools import pairwise
from typing import Any

import msgspec

from ppojob_trainer.children.frames import Loaded, Numbered
from ppojob_trainer.rpc.messages.agents import SeenPicture
from ppojob_trainer.sandbox.executor import Settings
from ppojob_trainer.tools.answers import Side

Message = dict[str, Any]


class Spoken(msgspec.Struct, frozen=True, array_like=True):
    """An earlier answer of a user simulator.

    Attributes:
        behind: number of messages before it.
        messages: number of its messages, right after those.
        begins_context: whether they begin a context.
        tools: of a program, tool schemas for the model from here on.
        max_tokens: of a program, for the answering turn; 0: the job's limit.
    """

    behind: int
    messages: int = 1
    begins_context: bool = False
    tools: list[Message] = []
    max_tokens: int = 0


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of a model turn for a program, beside its message.

    Attributes:
        finish_reason: in OpenAI's words.
        read: tokens of its context before it.
        written: tokens of it.
    """

    finish_reason: str
    read: int
    written: int


class Asked(msgspec.Struct, frozen=True):
    """A program's request to the model.

    Attributes:
        messages: as `tools.requests.read_messages` leaves them; without a new context, those that
            follow the turn before, none for the prompt of the data.
        tools: tool schemas for the model.
        max_tokens: of the turn; 0: the job's limit.
    """

    messages: list[Message]
    begins_context: bool
    tools: list[Message] = []
    max_tokens: int = 0


class Conversation(msgspec.Struct):
    """A conversation as its user simulator hears it.

    Attributes:
        messages: with "role" and "content", of all contexts, concatenated.
        prompt: how many of them are the prompt.
        spoken: the user's answers, in order; of a program its requests, the first turn too.
        drawn: of a program, the turns that answered it, in order.
        sampling: of a program, the settings of the job that it may repeat, by OpenAI's names.
    """

    messages: list[Message]
    prompt: int
    spoken: list[Spoken] = msgspec.field(default_factory=list)
    drawn: list[Drawn] = msgspec.field(default_factory=list)
    sampling: dict[str, float] = msgspec.field(default_factory=dict)

    def say(self, messages: list[Message], *, begins_context: bool = False) -> None:
        """Append the user's messages."""
        self.spoken.append(Spoken(len(self.messages), len(messages), begins_context))
        self.messages += messages

    def ask(self, asked: Asked) -> None:
        """Append a program's request."""
        begins, told = asked.begins_context, (asked.tools, asked.max_tokens)
        self.spoken.append(Spoken(len(self.messages), len(asked.messages), begins, *told))
        self.messages += asked.messages

    @property
    def tools(self) -> list[Message]:
        """Return the tool schemas for the model in its context, from the program."""
        return self.spoken[-1].tools if self.spoken else []

    def contexts(self, length: int | None = None) -> list[list[Message]]:
        """Return the messages of each context, up to `length` messages; None: of all."""
        length = len(self.messages) if length is None else length
        starts = (one.behind for one in self.spoken if one.begins_context)
        edges = [0, *(start for start in starts if start < length), length]
        return [self.messages[start:end] for start, end in pairwise(edges)]


class ServerCode(msgspec.Struct, frozen=True):
    """An MCP server.

    Attributes:
        url: of Streamable HTTP; None where it is a command.
        key_variable: environment variable with the key; None for none.
    """

    name: str
    url: str | None
    command: list[str]
    key_variable: str | None


class Source(msgspec.Struct, frozen=True):
    """The source of a tool or a user simulator, as in ``ToolSource`` and ``UserSource``."""

    file: str | None = None
    function: str | None = None
    url: str | None = None
    key_variable: str | None = None
    mcp_server: str | None = None
    tool: str | None = None


class ToolCode(msgspec.Struct, frozen=True):
    """The part of a ``ToolSpec`` that children need."""

    name: str
    source: Source | None
    description: str | None
    parameters: dict[str, Any]
    config: dict[str, Any]
    time_limit_seconds: float


class UserCode(msgspec.Struct, frozen=True):
    """The part of an ``InteractionSpec`` that children need."""

    name: str
    source: Source | None
    interface: str
    config: dict[str, Any]


class AgentCode(msgspec.Struct, frozen=True):
    """The part of an ``AgentSpec`` that children need; its model loads slowly."""

    tools: list[ToolCode]
    interactions: list[UserCode]
    mcp_servers: list[ServerCode]
    max_tool_response_characters: int
    tool_response_truncate_side: Side


class LoadTools(msgspec.Struct, frozen=True, tag=True):
    """Load the tools and users of a job; calls name them by position, users behind the tools.

    Attributes:
        elsewhere: names of tools that another role answers, and nothing is loaded for.
        compares: whether MCP servers are asked what their tools take.
    """

    agent: AgentCode
    elsewhere: list[str]
    compares: bool
    sandbox: Settings


class ToolsLoaded(Loaded, frozen=True):
    """Answer to ``LoadTools``.

    Attributes:
        loops: names of users that cannot go on behind a failure.
    """

    loops: list[str]


class CallTool(Numbered, frozen=True, tag=True):
    """Call a tool, or ask a user.

    Attributes:
        tool: position in ``LoadTools``.
        instance: names the call, the same whenever it is made again.
        arguments: JSON object; of a user the `Conversation`.
        created: JSON object: what the row says its tool is made with, or tells its user.
        pictures: of the row so far; None where a tool cannot show it any.
    """

    tool: int
    instance: str
    arguments: bytes
    created: bytes
    pictures: list[SeenPicture] | None = None


class DescribeTools(msgspec.Struct, frozen=True, tag=True):
    """Say which tools a Python file has, or an MCP server where there is no file."""

    path: str
    server: ServerCode | None = None


class Described(msgspec.Struct, frozen=True):
    """A tool's description, from a function or an MCP server.

    Attributes:
        function: its name in the file, or at the server.
        parameters: JSON schema.
    """

    name: str
    function: str
    description: str
    parameters: bytes


class ToolsDescribed(msgspec.Struct, frozen=True):
    """Answer to ``DescribeTools``; each problem is a line for the user."""

    tools: list[Described]
    problems: list[str]


class ToolCalled(Numbered, frozen=True):
    """Answer to ``CallTool``.

    Attributes:
        raised: what the tool raised instead of an answer; empty: nothing.
        where: it was raised, for the log.
        ends: the user ends the conversation.
        pictures: encoded.
        context: JSON list of the messages of a new context; empty where the user begins none.
        asked: JSON of what a program asks, `Asked`; empty of all others.
    """

    text: str = ""
    reward: float = 0.0
    raised: str = ""
    where: str = ""
    ends: bool = False
    pictures: list[bytes] = msgspec.field(default_factory=list)
    context: bytes = b""
    asked: bytes = b""


ToolRequest = LoadTools | CallTool | DescribeTools
