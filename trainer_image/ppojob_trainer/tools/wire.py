"""What the pool of tools and its children say to each other."""

from itertools import pairwise
from typing import Any

import msgspec

from ppojob_trainer.children.frames import Loaded, Numbered
from ppojob_trainer.rpc.messages.agents import SeenPicture
from ppojob_trainer.sandbox.executor import Settings

Message = dict[str, Any]


class Spoken(msgspec.Struct, frozen=True, array_like=True):
    """What a user said before.

    Attributes:
        behind: how many messages it had heard.
        messages: how many its words are, right behind those.
        begins_context: whether they begin a context.
    """

    behind: int
    messages: int = 1
    begins_context: bool = False


class Conversation(msgspec.Struct):
    """A conversation, as its user has heard it.

    Attributes:
        messages: with "role" and "content", of all contexts, one after the other.
        prompt: how many of them are the prompt.
        spoken: what the user said, in order.
    """

    messages: list[Message]
    prompt: int
    spoken: list[Spoken] = msgspec.field(default_factory=list)

    def say(self, messages: list[Message], *, begins_context: bool = False) -> None:
        """Take in what the user says."""
        self.spoken.append(Spoken(len(self.messages), len(messages), begins_context))
        self.messages += messages

    def contexts(self, length: int | None = None) -> list[list[Message]]:
        """The messages of each context, of so many; None: of all."""
        length = len(self.messages) if length is None else length
        starts = (one.behind for one in self.spoken if one.begins_context)
        edges = [0, *(start for start in starts if start < length), length]
        return [self.messages[start:end] for start, end in pairwise(edges)]


class ServerCode(msgspec.Struct, frozen=True):
    """An MCP server.

    Attributes:
        url: of Streamable HTTP; empty where it is a command.
        key_variable: environment variable with the key; empty for none.
    """

    name: str
    url: str
    command: list[str]
    key_variable: str


class LoadTools(msgspec.Struct, frozen=True, tag=True):
    """Load the tools and users of a job; calls name them by position, users behind the tools.

    Attributes:
        agent: JSON of ``spec.agent``.
        elsewhere: names of tools that another role answers, and nothing is loaded for.
        compares: whether MCP servers are asked what their tools take.
    """

    agent: bytes
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
    """What a function, or a server of its tool, says of it.

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
    """

    text: str = ""
    reward: float = 0.0
    raised: str = ""
    where: str = ""
    ends: bool = False
    pictures: list[bytes] = msgspec.field(default_factory=list)
    context: bytes = b""


ToolRequest = LoadTools | CallTool | DescribeTools
