"""Who answers the model in a row: what the job has, and what the row asks for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ppojob_api.problem import shown
from ppojob_trainer.data.chat import Tools
from ppojob_trainer.data.columns import AGENT_COLUMN, EXTRA_COLUMN, INTERACTION, Cells
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.json_value import Json

UserProblem = Callable[[Mapping[str, Json]], tuple[str, str] | None]
"""What is wrong with what a row tells its user: the entry, and what is allowed."""
_COLUMN = f"{EXTRA_COLUMN}.{INTERACTION}"


@dataclass(frozen=True)
class RowAgent:
    """One agent: what the model is shown, and whether a user speaks with it, whom rows name."""

    tools: Tools
    has_users: bool


@dataclass(frozen=True)
class RowAgents:
    """Of a job whose rows are conversations.

    Attributes:
        agents: by the name that rows have for them.
        default: that of rows which name none.
        users: of `spec.agent.interactions` by name.
    """

    agents: Mapping[str, RowAgent]
    default: str
    users: Mapping[str, UserProblem]

    def name(self, cells: Cells) -> str:
        """The agent of a row."""
        return cells.agent or self.default

    def tools(self, cells: Cells) -> Tools:
        """What the model is shown in a row; of an unknown agent nothing."""
        agent = self.agents.get(self.name(cells))
        return agent.tools if agent is not None else ()

    def problem(self, cells: Cells) -> DataProblem | None:
        """Say why nobody answers in a row as it asks for."""
        agent = self.agents.get(self.name(cells))
        if agent is None:
            return DataProblem(
                AGENT_COLUMN,
                shown(self.name(cells)),
                "the job has no agent of this name",
                f"one of {', '.join(sorted(self.agents))}, or a name in spec.agent.agents",
            )
        return self._user_problem(cells) if agent.has_users else None

    def _user_problem(self, cells: Cells) -> DataProblem | None:
        told = cells.extra_info.get(INTERACTION)
        name = told.get("name") if isinstance(told, dict) else None
        if not isinstance(told, dict) or not isinstance(name, str) or name not in self.users:
            return DataProblem(
                f"{_COLUMN}.name",
                "nothing" if name is None else shown(name),
                "no interaction of spec.agent has this name",
                f"one of {', '.join(self.users)}",
            )
        wrong = self.users[name](told)
        if wrong is None:
            return None
        entry, allowed = wrong
        got = told.get(entry)
        return DataProblem(
            f"{_COLUMN}.{entry}",
            "nothing" if got is None else shown(got),
            f"the interaction {name} needs it",
            allowed,
        )
