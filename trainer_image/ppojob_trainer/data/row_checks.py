"""Row checks against the job's rewards, agents and tools.

A row refers to tools in its `extra_info`, by verl's names: `tools_kwargs.NAME.create_kwargs` are
the arguments of a tool's constructor. `tool_selection` is a list of names: the row shows the model
these tools, in this order, and no other can be called; if absent or empty, all can.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ppojob_api.problem import ABSENT, shown
from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.chat import Tools, tool_name
from ppojob_trainer.data.columns import AGENT_COLUMN, EXTRA_COLUMN, GROUND_TRUTH, INTERACTION
from ppojob_trainer.data.media import pictures, sounds, videos
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.data.prompt_store import Prompt, PromptRow
from ppojob_trainer.json_value import Json

UserProblem = Callable[[Mapping[str, Json]], tuple[str, str] | None]
"""Returns the problem of a row's user simulator arguments: the entry, and what is allowed."""
_INTERACTION_COLUMN = f"{EXTRA_COLUMN}.{INTERACTION}"
_KWARGS = "tools_kwargs"
_SELECTION = "tool_selection"
_NO_TOOL = "the row's agent has no such tool"


class RewardChecks(Protocol):
    """What the reward side can check of rows: which ones it can score."""

    def data_source_problem(self, data_source: str) -> str | None:
        """Say what is allowed, where no scorer knows the data source."""
        ...

    def ground_truth_problem(self, data_source: str, ground_truth: Json) -> str | None:
        """Say what is allowed, where the ground truth is not of the scorer's form."""
        ...


@dataclass(frozen=True)
class RowAgent:
    """One agent: the model's tools, and whether rows name a user simulator."""

    tools: Tools
    has_users: bool


@dataclass(frozen=True)
class RowAgents:
    """The agents and user simulators of a job, for the checks of its rows.

    Attributes:
        agents: by the name that rows use.
        default: agent of rows that name none.
        users: of `spec.agent.interactions` by name.
    """

    agents: Mapping[str, RowAgent]
    default: str
    users: Mapping[str, UserProblem]

    def name(self, row: PromptRow) -> str:
        """The agent of a row."""
        return row.agent or self.default

    def tools(self, row: PromptRow) -> Tools:
        """Return the tools of a row's agent; none for an unknown agent."""
        agent = self.agents.get(self.name(row))
        return agent.tools if agent is not None else ()

    def problem(self, row: PromptRow) -> DataProblem | None:
        """Return why the job lacks the agent or user simulator of a row; None if it has both."""
        agent = self.agents.get(self.name(row))
        if agent is None:
            return DataProblem(
                AGENT_COLUMN,
                shown(self.name(row)),
                "the job has no agent of this name",
                f"one of {', '.join(sorted(self.agents))}, or a name in spec.agent.agents",
            )
        return self._user_problem(row) if agent.has_users else None

    def _user_problem(self, row: PromptRow) -> DataProblem | None:
        told = row.extra_info.get(INTERACTION)
        name = told.get("name") if isinstance(told, dict) else None
        if not isinstance(told, dict) or not isinstance(name, str) or name not in self.users:
            got = ABSENT if name is None else shown(name)
            why = "no interaction of spec.agent has this name"
            allowed = f"one of {', '.join(self.users)}"
            return DataProblem(f"{_INTERACTION_COLUMN}.name", got, why, allowed)
        wrong = self.users[name](told)
        if wrong is None:
            return None
        entry, allowed = wrong
        got = ABSENT if told.get(entry) is None else shown(told[entry])
        why = f"the interaction {name} needs it"
        return DataProblem(f"{_INTERACTION_COLUMN}.{entry}", got, why, allowed)


def unrewarded(row: PromptRow, rewards: RewardChecks | None, spec: DataSpec) -> DataProblem | None:
    """Return why nothing can score a row; None if something can, or that is unknown."""
    if rewards is None:
        return None
    allowed = rewards.data_source_problem(row.data_source)
    if allowed is not None:
        got, why = repr(row.data_source), "no scorer knows it"
        return DataProblem(spec.data_source_key, got, why, allowed)
    truth = row.ground_truth
    allowed = rewards.ground_truth_problem(row.data_source, truth)
    if allowed is None:
        return None
    got = ABSENT if truth is None else shown(truth)
    why = f"the reward of {row.data_source} needs it"
    return DataProblem(spec.answer_key or GROUND_TRUTH, got, why, allowed)


def unread(row: PromptRow, sources: Collection[str] | None, spec: DataSpec) -> DataProblem | None:
    """Return the problem of a row that no reference model reads; `sources` None means all."""
    if sources is None or row.data_source in sources:
        return None
    got, why = repr(row.data_source), "none of spec.reference.teachers has it in its dataSources"
    allowed = f"one of {', '.join(sorted(sources))}, or spec.reference.path for all others"
    return DataProblem(spec.data_source_key, got, why, allowed)


def truthless(row: PromptRow, spec: DataSpec) -> DataProblem | None:
    """Warn of a row without ground truth, which a custom function may not need."""
    if row.ground_truth is not None:
        return None
    why, allowed = "reward functions are given None", "fine where they need no ground truth"
    return DataProblem(spec.answer_key or GROUND_TRUTH, ABSENT, why, allowed)


def with_control_token(
    prompt: Prompt, control: tuple[str, ...], spec: DataSpec
) -> DataProblem | None:
    """Warn of a message that holds a control token; prompts that are text bring their own."""
    contents = [] if isinstance(prompt, str) else [str(message["content"]) for message in prompt]
    found = (token for content in contents for token in control if token in content)
    token = next(found, None)
    if token is None:
        return None
    why = "a special token in a message is tokenized as one"
    return DataProblem(spec.prompt_key, repr(token), why, "fine where it is meant")


def with_unseen_media(
    prompt: Prompt, columns: Collection[str], spec: DataSpec, because: str
) -> DataProblem | None:
    """Warn of a prompt with marks for media of a column that the model does not see.

    `because` says of a model with a tower why it sees no pictures, or no sounds.
    """
    media = {pictures.MARK: pictures.COLUMN, videos.MARK: videos.COLUMN}
    media[sounds.MARK] = spec.audio_key
    contents = [prompt] if isinstance(prompt, str) else [str(one["content"]) for one in prompt]
    for mark, column in media.items():
        if column in columns and any(mark in content for content in contents):
            why = f"the model gets the placeholder only, and nothing from the column {column}"
            why += f" ({because})" if because and column != videos.COLUMN else ""
            return DataProblem(spec.prompt_key, mark, why, "fine where it is meant")
    return None


def created_tools(extra_info: Mapping[str, Json]) -> dict[str, bytes]:
    """Return the constructor arguments of a row's tools, JSON by tool.

    Data of another form is ignored, as in verl.
    """
    told = extra_info.get(_KWARGS)
    if not isinstance(told, dict):
        return {}
    return {
        tool: msgspec.json.encode(own["create_kwargs"])
        for tool, own in told.items()
        if isinstance(own, dict) and isinstance(own.get("create_kwargs"), dict)
    }


def selected_tools(extra_info: Mapping[str, Json]) -> list[str]:
    """Names of a row's tools, in its order; empty for all that there are."""
    told = extra_info.get(_SELECTION)
    return list(dict.fromkeys(map(str, told))) if isinstance(told, list) else []


def shown_tools(extra_info: Mapping[str, Json], tools: Tools) -> Tools:
    """Of what a row's agent has, what the row shows the model."""
    by_name = {tool_name(tool): tool for tool in tools}
    names = selected_tools(extra_info)
    return [by_name[name] for name in names if name in by_name] if names else tools


def untaken_kwargs(extra_info: Mapping[str, Json], names: Collection[str]) -> DataProblem | None:
    """Warn of data for a tool that the row's agent does not have: it is never constructed.

    Names are those of the tools of the row's agent. Without tools there is no warning.
    """
    told = extra_info.get(_KWARGS)
    if not names or not isinstance(told, dict):
        return None
    # In a parquet file each row has the names of all, most of them null.
    name = next((name for name, own in told.items() if own and name not in names), None)
    if name is None:
        return None
    allowed = f"one of {', '.join(names)}"
    return DataProblem(f"{EXTRA_COLUMN}.{_KWARGS}", shown(name), _NO_TOOL, allowed)


def wrong_selection(extra_info: Mapping[str, Json], names: Collection[str]) -> DataProblem | None:
    """Say why a row's tools cannot be shown, where its agent has some of these names.

    Departs from verl, which leaves out names that it does not know.
    """
    told = extra_info.get(_SELECTION)
    if not names or told is None:
        return None
    column, allowed = f"{EXTRA_COLUMN}.{_SELECTION}", f"a list of {', '.join(names)}"
    if not isinstance(told, list):
        return DataProblem(column, shown(told), "no list of tools", allowed)
    unknown = [name for name in told if name not in names]
    return DataProblem(column, shown(unknown[0]), _NO_TOOL, allowed) if unknown else None
