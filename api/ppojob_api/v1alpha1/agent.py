"""How a row becomes a conversation: turns, tools, and their limits."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.pod_settings import ImageName
from ppojob_api.v1alpha1.section import (
    PRINTABLE,
    Arguments,
    CodeSource,
    EnvironmentName,
    Items,
    ObjectName,
    Path,
    Quantity,
    Seconds,
    Section,
    Tokens,
    Url,
)
from ppojob_api.well_known import BASH_TOOL

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
    """Where the code of a user simulator (interaction) comes from; one of path and configMap."""

    function: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Function, or class with verl's `generate_response`, in that file; absent: the interaction's
    name. A generator function is a loop around the model; with `interface: openai` the function is
    a program, with `interface: agent_loop` it is a subclass of verl's `AgentLoopBase`."""


class ToolSource(CodeSource):
    """Where the calls of a tool go; one of path, configMap, url and mcpServer."""

    function: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Function, class in verl's form, or `CLASS.METHOD` of an environment in that file; absent: the
    name of the tool. Each row has an environment of its own, which its tools share."""

    url: Url | None = None
    """HTTP service: each call POSTs the arguments as a JSON object to http://HOST:PORT/PATH."""

    key_variable: EnvironmentName | None = None
    """Environment variable of the tools pods with the key of `url`, sent as a bearer token; absent:
    no key."""

    mcp_server: ToolName | None = None
    """Name of an item of `mcpServers`."""

    tool: Annotated[str, Field(min_length=1, max_length=253, pattern=PRINTABLE)] | None = None
    """Name of the tool on the server; absent: the tool's name."""


class ToolSpec(Section):
    """A tool that the model may call. What the model reads about it stands here, as data."""

    name: ToolName
    """Name by which the model calls it. verl: tool_schema.function.name."""

    source: ToolSource | None = None
    """Its code, or a service; absent: the built-in tool of that name. verl: class_name."""

    description: Annotated[str, Field(max_length=16_384)] | None = None
    """Description for the model; may be absent only for a built-in tool. verl:
    tool_schema.function.description."""

    parameters: Arguments = Field(default_factory=dict)
    """JSON schema of its arguments: `type: object`, `properties`, `required`; empty: those of the
    built-in tool. verl: tool_schema.function.parameters."""

    config: Arguments = Field(default_factory=dict)
    """Settings for constructing the tool. verl: config."""

    time_limit_seconds: Seconds = 30.0
    """Time limit of a call; a longer call is killed."""


class RetrieverSpec(Section):
    """The corpus of the built-in tool `search`, in pods that load it once for all calls."""

    index: Path
    """Folder that `ppojob index` made."""

    encoder: Path | None = None
    """Folder of the sentence encoder of a dense index; absent: the folder with which the index was
    built."""


class McpServerSpec(Section):
    """A server of the Model Context Protocol; one of url and command."""

    name: ToolName
    """Name by which tools refer to it."""

    url: Url | None = None
    """Its Streamable HTTP address: http://HOST:PORT/mcp."""

    key_variable: EnvironmentName | None = None
    """Environment variable of the tools pods with its key, sent as a bearer token; absent:
    no key."""

    command: Annotated[Items[Path], Field(max_length=64)] = ()
    """Program and arguments. Each session starts it in the tools pods and speaks to it over stdin
    and stdout."""

    session: Literal["call", "row"] = "call"
    """call: each call has a session of its own; row: all calls of a row share one, as a browser
    needs it."""


class EgressSpec(Section):
    """Addresses and TCP ports that tools pods may connect to."""

    cidr: Annotated[str, Field(min_length=1, max_length=64, pattern=PRINTABLE)] | None = None
    """Address range, such as 10.1.0.0/16; absent: all addresses."""

    ports: Annotated[Items[Port], Field(max_length=64)] = ()
    """Ports; empty: all ports."""


class ContainersSpec(Section):
    """A container of its own for each row, in which the tool `bash` runs.

    On a cluster it is a pod, for `ppojob run` a container of docker or podman. It has no network
    and no token. Pods are placed like the tools pods: by their node selector, tolerations and pull
    secrets.
    """

    image: ImageName | None = None
    """Image of rows that name none in `create_kwargs.image`; it has sh. Absent: each row names
    one."""

    cpu: Quantity = "1"
    """Request and limit of CPUs."""

    memory: Quantity = "2Gi"
    """Request and limit of memory."""

    storage: Quantity = "10Gi"
    """Request and limit of what it writes. No effect on one machine."""

    user: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """User id of commands; absent: the image's, which on a cluster must not be root. 0, root, needs
    a namespace that admits it."""

    start_seconds: Seconds = 600.0
    """Time limit of a start, in which the image is pulled and a node is found."""

    runtime_class_name: ObjectName | None = None
    """RuntimeClass, such as one of gVisor or Kata Containers; docker and podman: the name of a
    runtime."""


class InteractionSpec(Section):
    """A user simulator. It answers the turns of the model that call no tool."""

    name: ToolName
    """Name by which rows select it: `extra_info.interaction_kwargs.name`; of an agent loop
    `agent_name`. verl: interaction[].name."""

    source: UserSource | None = None
    """Its code; absent: the built-in interaction of that name. verl: interaction[].class_name."""

    interface: Literal["messages", "openai", "agent_loop"] = "messages"
    """messages: it gets the messages and returns an answer. openai: it is a program that calls the
    model itself, with OpenAI's chat completions at OPENAI_BASE_URL. agent_loop: it is one of verl's
    agent loops, whose `run` asks for tokens behind tokens; rows select it by `agent_name`."""

    config: Arguments = Field(default_factory=dict)
    """Settings for constructing a class; of an agent loop its further arguments. verl:
    interaction[].config, agent_loop_config_path."""

    time_limit_seconds: Seconds = 30.0
    """Time limit of an answer; a longer one is killed."""


class NamedAgentSpec(Section):
    """An agent for the rows that name it: `agent`, with the settings here replacing its own."""

    name: ToolName
    """Name by which rows select it: the column `agent_name`."""

    tools: Annotated[Items[ToolName], Field(max_length=64)] | None = None
    """The tools of `agent.tools` that the model is shown and may call; absent: all."""

    format: ToolFormat | None = None
    """Format of the model's tool calls; absent: that of `agent`."""

    max_assistant_turns: Turns | None = None
    """Largest number of model turns in a row; absent: that of `agent`."""

    max_user_turns: Turns | None = None
    """Largest number of answers to the model in a row; absent: that of `agent`."""


class AgentSpec(Section):
    """Multi-turn rollouts with tools or a user simulator.

    The model generates, they answer, the model continues; only generated tokens are trained. verl:
    rollout.multi_turn.
    """

    tools: Annotated[Items[ToolSpec], Field(max_length=64)] = ()
    """Tools that the model may call. verl: multi_turn.tool_config_path."""

    retriever: RetrieverSpec | None = None
    """Pods of `roles.retriever` answer the tool `search`; absent: pods of `roles.tools` answer it,
    as its config says."""

    mcp_servers: Annotated[Items[McpServerSpec], Field(max_length=64)] = ()
    """MCP servers of tools. The descriptions for the model stand in `tools`, and are compared with
    the servers when the job starts."""

    egress: Annotated[Items[EgressSpec], Field(max_length=64)] = ()
    """Addresses that tools pods may connect to on a cluster, and DNS with them; empty: none
    (enforced by their NetworkPolicy). No effect on one machine."""

    containers: ContainersSpec | None = None
    """A container of its own for each row, for the tool `bash`; absent: a folder in a tools pod."""

    interactions: Annotated[Items[InteractionSpec], Field(max_length=64)] = ()
    """User simulators; each row names the one that answers it. verl:
    multi_turn.interaction_config_path, agent.agent_loop_config_path."""

    agents: Annotated[Items[NamedAgentSpec], Field(max_length=64)] = ()
    """Agents for rows that name them, in addition to the built-in ones and the agent loops of
    `interactions`."""

    default: ToolName = "tool_agent"
    """Agent of rows that name none. verl: agent.default_agent_loop, single_turn_agent."""

    format: ToolFormat = "hermes"
    """Format of the model's tool calls. verl: multi_turn.format, hermes."""

    max_assistant_turns: Turns | None = None
    """Largest number of model turns in a row; absent: as many as fit. verl: max_assistant_turns,
    null."""

    max_user_turns: Turns | None = None
    """Largest number of answers to the model in a row; absent: as many as fit. verl:
    max_user_turns, null."""

    max_parallel_calls: Annotated[int, Field(ge=1, le=64)] = 1
    """Calls of one turn that are made; further ones are dropped. verl: max_parallel_calls, 1."""

    max_tool_response_characters: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Longest answer of a tool; longer ones are cut. verl: max_tool_response_length, 256."""

    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """Side at which a long answer is cut: left keeps its end, right its beginning, middle both
    ends. verl: tool_response_truncate_side, middle."""

    turn_tokens: Tokens | None = None
    """Tokens of one turn of the model; absent: all tokens that the row has left."""

    cut_turns: Literal["end", "go_on"] = "end"
    """What happens to a turn that turnTokens truncates. end: it ends the row, and its calls are not
    made. go_on: it is answered like any other turn, as in Search-R1."""

    tool_steps: Annotated[int, Field(ge=-1, le=1_000_000)] = 32
    """Engine steps for other rows while a tool call runs. The duration of the call changes no bit.
    0: the engine waits at once. -1: a barrier; a turn begins when all rows have ended theirs."""

    tool_failure: Literal["answer", "mask", "fail"] = "answer"
    """What happens to a row whose tool or user fails. answer: the model reads the error and
    continues, but a custom loop or program ends its row, which is trained on with its score;
    mask: the row is not trained on; fail: the job fails."""

    tool_rewards: Literal["tell", "add"] = "tell"
    """What happens to rewards of tools and scores of users. tell: reward functions get them in
    extra_info. add: they are also added to the row, on the last token of their turn."""

    @property
    def environments(self) -> dict[str, str]:
        """The environment of each tool that has one: `bash`, a class, or a server with sessions."""
        with_session = {one.name for one in self.mcp_servers if one.session == "row"}
        found = {}
        for tool in self.tools:
            source = tool.source or ToolSource()
            if tool.source is None and tool.name == BASH_TOOL:
                found[tool.name] = tool.name
            elif source.mcp_server in with_session:
                found[tool.name] = source.mcp_server
            elif source.function and "." in source.function:
                found[tool.name] = source.function.partition(".")[0]
        return found

    @property
    def agent_loops(self) -> tuple[InteractionSpec, ...]:
        """The interactions that are agent loops of verl."""
        return tuple(one for one in self.interactions if one.interface == "agent_loop")
