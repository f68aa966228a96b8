"""Named agents of a job, which a row selects by its column `agent_name`."""

from functools import partial
from typing import Any

from ppojob_api.v1alpha1.agent import AgentSpec, NamedAgentSpec
from ppojob_api.well_known import SEARCH_TOOL
from ppojob_trainer.data.row_checks import RowAgent, RowAgents
from ppojob_trainer.tools.built_in import USERS
from ppojob_trainer.tools.row_calls import RowCalls, call_problem
from ppojob_trainer.tools.schemas import tool_schemas

_SINGLE: dict[str, Any] = {
    "tools": (),
    "interactions": (),
    "format": "hermes",  # without further end tokens, as in a job without agents
    "max_assistant_turns": 1,
    "turn_tokens": None,
}


def agents_of(agent: AgentSpec) -> dict[str, AgentSpec]:
    """Return each agent as a `spec.agent` with its own tools, format, limits and users.

    Built in, by verl's names: `tool_agent` has all settings of the job, `single_turn_agent` one
    turn without tools, `react_agent` no user, and `search_r1` only the tool `search`, if there is
    one. A job may define agents of these names itself. Rows name an agent loop as an agent, whose
    only user it is.
    """
    loops = agent.agent_loops
    users = tuple(one for one in agent.interactions if one not in loops)
    agent = agent.model_copy(update={"interactions": users})
    found = {
        "tool_agent": agent,
        "single_turn_agent": agent.model_copy(update=_SINGLE),
        "react_agent": agent.model_copy(update={"interactions": ()}),
    }
    search = tuple(tool for tool in agent.tools if tool.name == SEARCH_TOOL)
    if search:
        own = {"tools": search, "interactions": (), "format": "search_r1"}
        found["search_r1"] = agent.model_copy(update=own)
    found |= {own.name: _named(agent, own) for own in agent.agents}
    own_names = {own.name for own in agent.agents}
    for loop in loops:
        limits = found[loop.name] if loop.name in own_names else agent
        found[loop.name] = limits.model_copy(update={"interactions": (loop,), "tools": ()})
    return found


def row_agents(agent: AgentSpec | None, calls: RowCalls | None = None) -> RowAgents | None:
    """Return the agents for `PromptDataset.open` and `check_files`; None without agents.

    `calls` are those of user simulators (`ToolPool.row_calls`), if their code is here.
    """
    if agent is None:
        return None
    return RowAgents(
        agents={
            name: RowAgent(tool_schemas(one), bool(one.interactions) and not one.agent_loops)
            for name, one in agents_of(agent).items()
        },
        default=agent.default,
        users={
            one.name: USERS[one.name].problem if one.source is None else lambda _arguments: None
            for one in agent.interactions
            if one not in agent.agent_loops
        },
        loops=frozenset(one.name for one in agent.agent_loops),
        calls={name: partial(call_problem, own) for name, own in (calls or {}).items()},
        names_images=agent.containers is not None and agent.containers.image is None,
    )


def _named(agent: AgentSpec, own: NamedAgentSpec) -> AgentSpec:
    tools = {tool.name: tool for tool in agent.tools}
    chosen = tools if own.tools is None else own.tools
    return agent.model_copy(
        update={
            "tools": tuple(tools[name] for name in chosen),
            "format": own.format or agent.format,
            "max_assistant_turns": own.max_assistant_turns or agent.max_assistant_turns,
            "max_user_turns": own.max_user_turns or agent.max_user_turns,
        }
    )
