"""Who answers the model in a row: what the job has, and what the row asks for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ppojob_api.problem import shown
from ppojob_trainer.data.columns import EXTRA_COLUMN, INTERACTION, BadCell, Cells
from ppojob_trainer.data.problems import DataReason
from ppojob_trainer.json_value import Json

UserProblem = Callable[[Mapping[str, Json]], tuple[str, str] | None]
"""What is wrong with what a row tells its user: the entry, and what is allowed."""
_COLUMN = f"{EXTRA_COLUMN}.{INTERACTION}"


@dataclass(frozen=True)
class RowAgents:
    """Of a job whose rows are conversations.

    Attributes:
        users: of `spec.agent.interactions` by name; where there are some, each row has one.
    """

    users: Mapping[str, UserProblem]

    def problem(self, cells: Cells) -> BadCell | None:
        """Say why nobody answers in a row as it asks for."""
        if not self.users:
            return None
        told = cells.extra_info.get(INTERACTION)
        name = told.get("name") if isinstance(told, dict) else None
        if not isinstance(told, dict) or not isinstance(name, str) or name not in self.users:
            return BadCell(
                f"{_COLUMN}.name",
                "nothing" if name is None else shown(name),
                "no interaction of spec.agent has this name",
                f"one of {', '.join(self.users)}",
                DataReason.INTERACTION,
            )
        wrong = self.users[name](told)
        if wrong is None:
            return None
        entry, allowed = wrong
        got = told.get(entry)
        return BadCell(
            f"{_COLUMN}.{entry}",
            "nothing" if got is None else shown(got),
            f"the interaction {name} needs it",
            allowed,
            DataReason.INTERACTION,
        )
