"""Messages between the tool pool and its children."""

from itertools import pairwise
from typing import Any

import msgspec

from ppojob_trainer.children.frames import Loaded, Numbered
from ppojob_trainer.rpc.messages.agents import SeenImage, ToolAnswer
from ppojob_trainer.sandbox.executor import Settings
from ppojob_trainer.tools.answers import Side

Message = dict[str, Any]


class UserTurn(msgspec.Struct, frozen=True, array_like=True):
    """An earlier answer of a user simulator, or request of a program or agent loop."""

    start: int  # number of messages before it
    messages: int = 1  # number of its messages
    begins_context: bool = False  # whether they begin a context
    tools: list[Message] = []  # of a program, tool schemas for the model from here on
    max_tokens: int = 0  # of a program, limit of the next turn of the model; 0 for the job's limit
    stop: list[str] = []  # of a program, texts that also end the next turn of the model
    json_schema: str = ""  # of a program, of the next turn of the model; empty for none


class ModelTurn(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of a turn of the model, for a program, by OpenAI's names.

    `prompt_tokens` are those of its context before it.
    """

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class ModelRequest(msgspec.Struct, frozen=True):
    """A program's request to the model, or the messages of a user simulator."""

    # Normalised messages (`tools.requests.read_message`): all of a new context, else those after
    # the last turn; none if the request is the prompt of the data. Of an agent loop their tokens,
    # as one message, `{"ids": [...]}`.
    messages: list[Message]
    begins_context: bool = False
    tools: list[Message] = []
    max_tokens: int = 0  # limit of the turn; 0 for the job's limit
    stop: list[str] = []  # texts that also end the turn
    json_schema: str = ""  # of the turn; empty for none
    images: list[bytes] = []  # files of the images of `messages`, in order


class LoopEnded(msgspec.Struct, frozen=True):
    """The end of an agent loop: its score, and the numbers of the turns that are not trained."""

    score: float
    masked: list[int]


class Conversation(msgspec.Struct):
    """A conversation, as the input of its user simulator."""

    messages: list[Message]  # messages of all contexts, concatenated
    prompt: int  # number of messages of the prompt
    # Answers of the user simulator, or requests of the program, in order. The encoded names, here
    # and below, are those of checkpoints with rows in flight.
    user_turns: list[UserTurn] = msgspec.field(default_factory=list, name="spoken")
    # Of a program, the turns that answered its requests.
    model_turns: list[ModelTurn] = msgspec.field(default_factory=list, name="drawn")
    # Of a program, settings of the job that it may repeat, by OpenAI's names.
    sampling: dict[str, float] = msgspec.field(default_factory=dict)
    # Of an agent loop, the tokens of the prompt, and the current time of its chat template.
    ids: list[int] = msgspec.field(default_factory=list)
    began: float = 0.0

    def add_request(self, request: ModelRequest) -> None:
        """Append a turn of the user simulator, or a program's request."""
        size, more = len(request.messages), (request.tools, request.max_tokens, request.stop)
        begins, schema = request.begins_context, request.json_schema
        self.user_turns.append(UserTurn(len(self.messages), size, begins, *more, schema))
        self.messages += request.messages

    @property
    def tools(self) -> list[Message]:
        """Return the tool schemas of the last request of the program."""
        return self.user_turns[-1].tools if self.user_turns else []

    def contexts(self, length: int | None = None) -> list[list[Message]]:
        """Return the messages of each context, up to `length` messages; None for all."""
        length = len(self.messages) if length is None else length
        starts = (one.start for one in self.user_turns if one.begins_context)
        edges = [0, *(start for start in starts if start < length), length]
        return [self.messages[start:end] for start, end in pairwise(edges)]


class ServerCode(msgspec.Struct, frozen=True):
    """An MCP server: a URL of Streamable HTTP, or a command.

    `key_variable` is the environment variable with the API key; None for none.
    """

    name: str
    url: str | None
    command: list[str]
    key_variable: str | None
    session: str = "call"


class Source(msgspec.Struct, frozen=True):
    """Source of a tool or a user simulator, as in ``ToolSource`` and ``UserSource``."""

    file: str | None = None
    function: str | None = None
    url: str | None = None
    key_variable: str | None = None
    mcp_server: str | None = None
    tool: str | None = None


class ToolCode(msgspec.Struct, frozen=True):
    """The part of a ``ToolSpec`` for children."""

    name: str
    source: Source | None
    description: str | None
    parameters: dict[str, Any]
    config: dict[str, Any]
    time_limit_seconds: float


class UserCode(msgspec.Struct, frozen=True):
    """The part of an ``InteractionSpec`` for children."""

    name: str
    source: Source | None
    interface: str
    config: dict[str, Any]


class AgentCode(msgspec.Struct, frozen=True):
    """The part of an ``AgentSpec`` for children, for which pydantic would load too slowly."""

    tools: list[ToolCode]
    interactions: list[UserCode]
    mcp_servers: list[ServerCode]
    max_tool_response_characters: int
    tool_response_truncate_side: Side


class LoopSettings(msgspec.Struct, frozen=True):
    """What agent loops read of the job: its tokenizer, and settings of each by verl's names."""

    model: str
    tokenizer: str | None
    chat_template: str | None
    settings: dict[str, dict[str, Any]]


class LoadTools(msgspec.Struct, frozen=True, tag=True):
    """Load the tools and users of a job; calls refer to them by position, first the tools."""

    agent: AgentCode
    loops: LoopSettings | None  # None: no agent loop is run
    elsewhere: list[str]  # names of tools that another role runs, which are not loaded
    compares: bool  # whether schemas are compared with those of the MCP servers
    sandbox: Settings


class RowCall(msgspec.Struct, frozen=True):
    """A call of a user simulator with the arguments of a row."""

    function: str
    given: int  # number of arguments before those of the row
    takes_name: bool  # whether the row's `name` is passed, too
    parameters: list[tuple[str, int, bool]]  # name, kind of `inspect`, whether it has a default


class ToolsLoaded(Loaded, frozen=True):
    """Answer to ``LoadTools``: user simulators that cannot continue after a failure."""

    loops: list[str]
    scores: bool  # whether an environment has a score for a row that has ended
    row_calls: dict[str, list[RowCall]]  # those of user simulators with code, by name


class EnvironmentCall(msgspec.Struct, frozen=True, array_like=True):
    """A call to the environment of a row."""

    tool: int  # position in ``LoadTools``
    arguments: bytes  # JSON object


class CallTool(Numbered, frozen=True, tag=True):
    """Call a tool or a user simulator."""

    tool: int  # position in ``LoadTools``
    instance: str  # name of the call, the same in every repetition
    arguments: bytes  # JSON object; for a user simulator the `Conversation`
    # JSON object: the row's constructor arguments of the tool or of each environment, or arguments
    # of the user simulator.
    created: bytes
    # Images of the row so far, for a program of its prompt; None if they cannot return images.
    images: list[SeenImage] | None = None
    row: str = ""  # name of the row, for a call to its environment
    # Earlier calls of the row to its environment, in order.
    before: list[EnvironmentCall] = msgspec.field(default_factory=list)


class EndRow(Numbered, frozen=True, tag=True):
    """Score and close the environments of a row that has ended; fields as in `CallTool`."""

    row: str
    created: bytes
    before: list[EnvironmentCall]


class DescribeTools(msgspec.Struct, frozen=True, tag=True):
    """Describe the tools of a Python file, or of an MCP server if there is no file.

    Attributes:
        environment: the class whose methods are the tools; empty: functions of the file are.
    """

    path: str
    server: ServerCode | None = None
    environment: str = ""


class Described(msgspec.Struct, frozen=True):
    """Description of a tool, from a function or an MCP server."""

    name: str
    function: str  # name in the file or at the server
    description: str
    parameters: bytes


class ToolsDescribed(msgspec.Struct, frozen=True):
    """Answer to ``DescribeTools``; each problem is a line for the user."""

    tools: list[Described]
    problems: list[str]


class ToolCalled(Numbered, frozen=True):
    """Answer to ``CallTool`` and ``EndRow``, whose reward is the row's score."""

    answer: ToolAnswer = ToolAnswer("")  # without its images, which are encoded in `images`
    images: list[bytes] = msgspec.field(default_factory=list)
    raised: str = ""  # exception of the tool, as text; empty without one
    where: str = ""  # place of the exception, for the log


ToolRequest = LoadTools | CallTool | EndRow | DescribeTools
