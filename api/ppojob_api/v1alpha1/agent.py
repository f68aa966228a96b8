"""How a row becomes a conversation: turns, tools, and their limits."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import (
    PRINTABLE,
    Arguments,
    CodeSource,
    EnvironmentName,
    Items,
    Path,
    Seconds,
    Section,
    Tokens,
    Url,
)

ToolName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
ToolFormat = Literal[
    "hermes",
    "gpt-oss",
    "qwen3_coder",
    "glm",
    "seed",
    "minimax",
    "kimi",
    "deepseek_v4",
    "gemma4",
    "llama3_json",
    "search_r1",
]
Port = Annotated[int, Field(ge=1, le=65_535)]
Turns = Annotated[int, Field(ge=1, le=10_000)]


class UserSource(CodeSource):
    """Where the code of an interaction comes from; one of path and configMap."""

    function: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Function, or class with verl's `generate_response`, in that file; one that yields is a loop
    around the model, and one with `interface: openai` a program; absent: the interaction's name."""


class ToolSource(CodeSource):
    """What answers the calls of a tool; one of path, configMap, url and mcpServer."""

    function: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Function, or class in verl's form, in that file; absent: the name of the tool or
    interaction."""

    url: Url | None = None
    """Service that is posted the arguments as a JSON object: http://HOST:PORT/PATH."""

    key_variable: EnvironmentName | None = None
    """Variable of the tools pods that holds the key of `url`, sent as a bearer token; absent: no
    key."""

    mcp_server: ToolName | None = None
    """Name of an item of `mcpServers`."""

    tool: Annotated[str, Field(min_length=1, max_length=253, pattern=PRINTABLE)] | None = None
    """What the server calls it; absent: the tool's name."""


class ToolSpec(Section):
    """A tool that the model may call; what it is told of it is data, and written here."""

    name: ToolName
    """As the model calls it. verl: tool_schema.function.name."""

    source: ToolSource | None = None
    """Its code, or a service; absent: the built-in tool of that name. verl: class_name."""

    description: Annotated[str, Field(max_length=16_384)] | None = None
    """What it does, for the model; absent only where it is built in.
    verl: tool_schema.function.description."""

    parameters: Arguments = Field(default_factory=dict)
    """JSON schema of its arguments: `type: object`, `properties`, `required`; empty: those of the
    built-in tool. verl: tool_schema.function.parameters."""

    config: Arguments = Field(default_factory=dict)
    """Settings that the tool is made with. verl: config."""

    time_limit_seconds: Seconds = 30.0
    """Of a call; what takes longer is killed."""


class RetrieverSpec(Section):
    """What the built-in tool `search` searches, in pods that hold it once for all calls."""

    index: Path
    """Folder that `ppojob index` made."""

    encoder: Path | None = None
    """Folder of the sentence encoder of a dense index; absent: where it was when that was made."""


class McpServerSpec(Section):
    """A server of the Model Context Protocol; one of url and command."""

    name: ToolName
    """By which tools name it."""

    url: Url | None = None
    """Its address, by Streamable HTTP: http://HOST:PORT/mcp."""

    key_variable: EnvironmentName | None = None
    """Variable of the tools pods that holds its key, sent as a bearer token; absent: no key."""

    command: Annotated[Items[Path], Field(max_length=64)] = ()
    """Program and arguments; started for each call, in the tools pods, and spoken to by stdin and
    stdout."""


class EgressSpec(Section):
    """Addresses and TCP ports that tools pods may connect to."""

    cidr: Annotated[str, Field(min_length=1, max_length=64, pattern=PRINTABLE)] | None = None
    """Addresses, 10.1.0.0/16; absent: all."""

    ports: Annotated[Items[Port], Field(max_length=64)] = ()
    """Ports; empty: all."""


class InteractionSpec(Section):
    """A simulated user, who answers the turns of the model that call no tool."""

    name: ToolName
    """By which rows ask for it: `extra_info.interaction_kwargs.name`. verl: interaction[].name."""

    source: UserSource | None = None
    """Its code; absent: the built-in interaction of that name. verl: interaction[].class_name."""

    interface: Literal["messages", "openai"] = "messages"
    """How it speaks with the model: it is told the messages and answers; or it is a program, a
    function that asks the model itself, by OpenAI's chat completions at OPENAI_BASE_URL."""

    config: Arguments = Field(default_factory=dict)
    """Settings that a class is made with. verl: interaction[].config."""

    time_limit_seconds: Seconds = 30.0
    """Of an answer; what takes longer is killed."""


class NamedAgentSpec(Section):
    """An agent for the rows that name it: `agent` with what is said here in place of its own."""

    name: ToolName
    """By which rows ask for it: the column `agent_name`. verl: agent_loop_config_path."""

    tools: Annotated[Items[ToolName], Field(max_length=64)] | None = None
    """Of `agent.tools`, those that the model is shown and may call; absent: all."""

    format: ToolFormat | None = None
    """How the model writes a call; absent: as `agent` says."""

    max_assistant_turns: Turns | None = None
    """Turns of the model in a row; absent: as `agent` says."""

    max_user_turns: Turns | None = None
    """Answers to the model in a row; absent: as `agent` says."""


class AgentSpec(Section):
    """Rows of several turns: the model speaks, tools or a user answer, the model goes on.

    Only what the model wrote is trained. verl: rollout.multi_turn.
    """

    tools: Annotated[Items[ToolSpec], Field(max_length=64)] = ()
    """What the model may call. verl: multi_turn.tool_config_path."""

    retriever: RetrieverSpec | None = None
    """Has the tool `search` answered by the pods of `roles.retriever`; absent: by those of
    `roles.tools`, as its config says."""

    mcp_servers: Annotated[Items[McpServerSpec], Field(max_length=64)] = ()
    """Servers of tools. What the model is told of their tools stands in `tools`, and is compared
    when the job starts."""

    egress: Annotated[Items[EgressSpec], Field(max_length=64)] = ()
    """What tools pods may connect to on a cluster, and to DNS with it; empty: nothing, which their
    NetworkPolicy says. Without effect on one machine."""

    interactions: Annotated[Items[InteractionSpec], Field(max_length=64)] = ()
    """Simulated users; each row names the one that it speaks with.
    verl: multi_turn.interaction_config_path."""

    agents: Annotated[Items[NamedAgentSpec], Field(max_length=64)] = ()
    """Agents for rows that name them, beside those that are built in.
    verl: agent.agent_loop_config_path."""

    default: ToolName = "tool_agent"
    """The agent of rows that name none. verl: agent.default_agent_loop, single_turn_agent."""

    format: ToolFormat = "hermes"
    """How the model writes a call. verl: multi_turn.format, hermes."""

    max_assistant_turns: Turns | None = None
    """Turns of the model in a row; absent: as many as fit.
    verl: max_assistant_turns, null."""

    max_user_turns: Turns | None = None
    """Answers to the model in a row; absent: as many as fit. verl: max_user_turns, null."""

    max_parallel_calls: Annotated[int, Field(ge=1, le=64)] = 1
    """Calls of one turn that are made; further ones are left out.
    verl: max_parallel_calls, 1."""

    max_tool_response_characters: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Of an answer; longer ones are cut. verl: max_tool_response_length, 256."""

    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """Where a long answer is cut: left leaves its end, right its beginning, middle both ends.
    verl: tool_response_truncate_side, middle."""

    turn_tokens: Tokens | None = None
    """Tokens of one turn of the model; absent: what the row has left."""

    cut_turns: Literal["end", "go_on"] = "end"
    """What becomes of a turn that turnTokens cuts: it ends the row, and its calls are not made; or
    it is read and answered as any other, as in Search-R1."""

    tool_steps: Annotated[int, Field(ge=-1, le=1_000_000)] = 32
    """Steps that the engine takes for other rows while a call is made. Whether an answer comes
    early or late within them changes no bit. 0: it waits at once; -1: a turn begins when all rows
    have ended theirs."""

    tool_failure: Literal["answer", "mask", "fail"] = "answer"
    """What becomes of a row whose tool or user fails: the model is told and goes on, the row is not
    trained on, or the job fails."""

    tool_rewards: Literal["tell", "add"] = "tell"
    """What becomes of rewards that tools give, and of scores of users: reward functions are told of
    them in extra_info, or they are also added to the row, each on the last token of its turn."""
