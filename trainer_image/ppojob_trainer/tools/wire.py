"""What the pool of tools and its children say to each other."""

import msgspec

from ppojob_trainer.sandbox.settings import SandboxSettings
from ppojob_trainer.tools.answers import Side


class ToolCode(msgspec.Struct, frozen=True):
    """One tool, or one user.

    Attributes:
        name: as the model calls it.
        path: Python file; empty where something else answers.
        function: function or class in that file, or name of the tool at its server.
        schema: JSON of what the model is told of it; null of a user.
        config: JSON object that a class is made with.
        seconds: limit of a call.
        url: of the service that answers; empty where code does.
        key_variable: environment variable with the key of the service; empty for none.
        server: name of the MCP server that answers; empty where none does.
        is_elsewhere: whether another role answers, and nothing is loaded.
        is_user: it is no tool, but a user who answers the model.
    """

    name: str
    path: str
    function: str
    schema: bytes
    config: bytes
    seconds: float
    url: str = ""
    key_variable: str = ""
    server: str = ""
    is_elsewhere: bool = False
    is_user: bool = False


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
    """Load these; calls name them by position.

    Attributes:
        compares: whether servers are asked what their tools take.
        sandbox: where code that a model has written runs.
        most_characters: of an answer.
        side: where a longer one is cut.
    """

    tools: list[ToolCode]
    servers: list[ServerCode]
    compares: bool
    sandbox: SandboxSettings
    most_characters: int
    side: Side


class ToolsLoaded(msgspec.Struct, frozen=True):
    """Answer to ``LoadTools``: a line for the user each; empty when all is well."""

    problems: list[str]


class CallTool(msgspec.Struct, frozen=True, tag=True):
    """Call a tool, or ask a user.

    Attributes:
        number: of the call; the answer repeats it.
        tool: position in ``LoadTools``.
        instance: names the call, the same whenever it is made again.
        arguments: JSON object; of a user the conversation, as `users.Heard`.
        created: JSON object: what the row says its tool is made with, or tells its user.
    """

    number: int
    tool: int
    instance: str
    arguments: bytes
    created: bytes


class DescribeTools(msgspec.Struct, frozen=True, tag=True):
    """Say which tools a Python file has, or an MCP server where there is no file."""

    path: str
    server: ServerCode | None = None


class Described(msgspec.Struct, frozen=True):
    """What a function, or a server of its tool, says of it.

    Attributes:
        function: of the function; of a server's tool its name there.
        parameters: JSON schema of its arguments.
    """

    name: str
    function: str
    description: str
    parameters: bytes


class ToolsDescribed(msgspec.Struct, frozen=True):
    """Answer to ``DescribeTools``; problems as in ``ToolsLoaded``."""

    tools: list[Described]
    problems: list[str]


class ToolCalled(msgspec.Struct, frozen=True):
    """Answer to ``CallTool``.

    Attributes:
        raised: empty, or what the tool raised instead of an answer.
        where: what was raised came from, for the log.
        ends: the user ends the conversation.
    """

    number: int
    text: str = ""
    reward: float = 0.0
    raised: str = ""
    where: str = ""
    ends: bool = False


ToolRequest = LoadTools | CallTool | DescribeTools
