"""What the pool of tools and its children say to each other."""

import msgspec

from ppojob_trainer.sandbox.settings import SandboxSettings


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
        sandbox: where code that a model has written runs.
    """

    agent: bytes
    elsewhere: list[str]
    compares: bool
    sandbox: SandboxSettings


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
