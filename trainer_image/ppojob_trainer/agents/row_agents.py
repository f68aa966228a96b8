"""Who answers the model in the rows of a job, as the reader of data asks for it."""

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.named import agents_of
from ppojob_trainer.data.row_agents import RowAgent, RowAgents
from ppojob_trainer.tools.built_in import USERS
from ppojob_trainer.tools.schemas import tool_schemas


def row_agents(agent: AgentSpec | None) -> RowAgents | None:
    """What `PromptDataset.open` and `check_files` take; None where rows are no conversations."""
    if agent is None:
        return None
    return RowAgents(
        agents={
            name: RowAgent(tool_schemas(one), bool(one.interactions))
            for name, one in agents_of(agent).items()
        },
        default=agent.default,
        users={
            one.name: USERS[one.name].problem if one.source is None else lambda _told: None
            for one in agent.interactions
        },
    )
