"""Checks of a row against the job's rewards, agents and tools.

A row refers to tools in its `extra_info`, by verl's names: `tools_kwargs.NAME.create_kwargs` are
the arguments of a tool's constructor. `tool_selection` is a list of names: only these tools can be
called, and the prompt shows them in this order; if absent or empty, all can.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ppojob_api.problem import ABSENT, shown
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.well_known import BASH_TOOL
from ppojob_trainer.data.chat import Tools, tool_name
from ppojob_trainer.data.columns import AGENT_COLUMN, EXTRA_COLUMN, GROUND_TRUTH, INTERACTION
from ppojob_trainer.data.media import images
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.data.prompt_store import Prompt, PromptRow
from ppojob_trainer.json_value import Json

UserProblem = Callable[[Mapping[str, Json]], tuple[str, str] | None]
"""Arguments of a row's user simulator -> the invalid entry and what is allowed, or None."""
CallProblem = Callable[[Mapping[str, Json]], str | None]
"""Arguments of a row's user simulator -> why its code cannot be called with them, or None."""
_INTERACTION_COLUMN = f"{EXTRA_COLUMN}.{INTERACTION}"
_KWARGS = "tools_kwargs"
_SELECTION = "tool_selection"
_IMAGE = f"{EXTRA_COLUMN}.{_KWARGS}.{BASH_TOOL}.create_kwargs.image"


class RewardChecks(Protocol):
    """Checks whether the rewards of a job can score a row."""

    def data_source_problem(self, data_source: str) -> str | None:
        """Return what is allowed, if no scorer supports the data source."""

    def ground_truth_problem(self, data_source: str, ground_truth: Json) -> str | None:
        """Return what is allowed, if the ground truth does not have the scorer's form."""


@dataclass(frozen=True)
class RowAgent:
    """An agent: its tools, and whether rows name a user simulator."""

    tools: Tools
    has_users: bool


@dataclass(frozen=True)
class RowAgents:
    """The agents of a job by the name in rows, and checks of its user simulators by name.

    `calls` checks those whose code is here.

    `default` is the agent of rows without a name. With `names_images` rows name the image of their
    container. Agents in `loops` are verl's agent loops.
    """

    agents: Mapping[str, RowAgent]
    default: str
    users: Mapping[str, UserProblem]
    names_images: bool = False
    calls: Mapping[str, CallProblem] = field(default_factory=dict)
    loops: Collection[str] = ()

    def name(self, row: PromptRow) -> str:
        return row.agent or self.default

    def tools(self, row: PromptRow) -> Tools:
        """Return the tools of a row's agent; none for an unknown agent."""
        agent = self.agents.get(self.name(row))
        return agent.tools if agent is not None else ()

    def problem(self, row: PromptRow) -> DataProblem | None:
        """Return the problem of a row whose agent or user simulator the job does not have."""
        agent = self.agents.get(self.name(row))
        if agent is None:
            return DataProblem(
                AGENT_COLUMN,
                shown(self.name(row)),
                "the job has no agent of this name",
                f"one of {', '.join(sorted(self.agents))}, or a name in spec.agent.agents",
            )
        if self.names_images and BASH_TOOL in map(
            tool_name, shown_tools(row.extra_info, agent.tools)
        ):
            created = created_tools(row.extra_info).get(BASH_TOOL, b"{}")
            if not msgspec.json.decode(created).get("image"):
                why, allowed = "spec.agent.containers names no image", "the image of its container"
                return DataProblem(_IMAGE, ABSENT, why, allowed)
        return self._user_problem(row) if agent.has_users else None

    def _user_problem(self, row: PromptRow) -> DataProblem | None:
        given = row.extra_info.get(INTERACTION)
        name = given.get("name") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(name, str) or name not in self.users:
            got = ABSENT if name is None else shown(name)
            why = "no interaction of spec.agent has this name"
            allowed = f"one of {', '.join(self.users)}"
            return DataProblem(f"{_INTERACTION_COLUMN}.name", got, why, allowed)
        if name in self.calls and (misfit := self.calls[name](given)) is not None:
            allowed = "its arguments and no other, or **others in it: parquet has null for these"
            got = shown([key for key in given if key != "name"])
            return DataProblem(_INTERACTION_COLUMN, got, misfit, allowed)
        wrong = self.users[name](given)
        if wrong is None:
            return None
        entry, allowed = wrong
        got = ABSENT if given.get(entry) is None else shown(given[entry])
        why = f"the interaction {name} requires it"
        return DataProblem(f"{_INTERACTION_COLUMN}.{entry}", got, why, allowed)


def no_scorer(row: PromptRow, rewards: RewardChecks | None, spec: DataSpec) -> DataProblem | None:
    """Return the problem of a row that no reward can score; `rewards` None means no check."""
    if rewards is None:
        return None
    allowed = rewards.data_source_problem(row.data_source)
    if allowed is not None:
        got, why = repr(row.data_source), "no scorer supports it"
        return DataProblem(spec.data_source_key, got, why, allowed)
    truth = row.ground_truth
    allowed = rewards.ground_truth_problem(row.data_source, truth)
    if allowed is None:
        return None
    got = ABSENT if truth is None else shown(truth)
    why = f"the reward of {row.data_source} requires it"
    return DataProblem(spec.answer_key or GROUND_TRUTH, got, why, allowed)


def no_reference(
    row: PromptRow, sources: Collection[str] | None, spec: DataSpec
) -> DataProblem | None:
    """Return the problem of a row that no reference model reads; `sources` None means all."""
    if sources is None or row.data_source in sources:
        return None
    got, why = repr(row.data_source), "none of spec.reference.teachers has it in its dataSources"
    allowed = f"one of {', '.join(sorted(sources))}, or spec.reference.path for all others"
    return DataProblem(spec.data_source_key, got, why, allowed)


def no_ground_truth(row: PromptRow, spec: DataSpec) -> DataProblem | None:
    """Warn of a row without ground truth, which a custom function may not need."""
    if row.ground_truth is not None:
        return None
    why, allowed = "reward functions get None", "fine if they need no ground truth"
    return DataProblem(spec.answer_key or GROUND_TRUTH, ABSENT, why, allowed)


def special_token(prompt: Prompt, special: tuple[str, ...], spec: DataSpec) -> DataProblem | None:
    """Warn of a message with the text of a special token; prompts that are text may have some."""
    contents = [] if isinstance(prompt, str) else [str(message["content"]) for message in prompt]
    found = (token for content in contents for token in special if token in content)
    token = next(found, None)
    if token is None:
        return None
    why = "a special token in a message is tokenized as one"
    return DataProblem(spec.prompt_key, repr(token), why, "fine if intended")


def mark_without_media(
    prompt: Prompt, columns: Collection[str], spec: DataSpec, because: str
) -> DataProblem | None:
    """Warn of a prompt with marks for media in `columns`, which the model does not get.

    `because` is why a model with a tower gets no media; else empty.
    """
    media = {images.MARK: images.COLUMN, images.VIDEO_MARK: images.VIDEO_COLUMN}
    media[images.AUDIO_MARK] = spec.audio_key
    contents = [prompt] if isinstance(prompt, str) else [str(one["content"]) for one in prompt]
    for mark, column in media.items():
        if column in columns and any(mark in content for content in contents):
            why = f"the model gets the placeholder only, and nothing from the column {column}"
            why += f" ({because})" if because and column != images.VIDEO_COLUMN else ""
            return DataProblem(spec.prompt_key, mark, why, "fine if intended")
    return None


def created_tools(extra_info: Mapping[str, Json]) -> dict[str, bytes]:
    """Return the constructor arguments of a row's tools, as JSON by the name of the tool.

    Data of another form is ignored, as in verl.
    """
    given = extra_info.get(_KWARGS)
    if not isinstance(given, dict):
        return {}
    return {
        tool: msgspec.json.encode(own["create_kwargs"])
        for tool, own in given.items()
        if isinstance(own, dict) and isinstance(own.get("create_kwargs"), dict)
    }


def selected_tools(extra_info: Mapping[str, Json]) -> list[str]:
    """Return the names of a row's selected tools, in order; empty for all tools."""
    given = extra_info.get(_SELECTION)
    return list(dict.fromkeys(map(str, given))) if isinstance(given, list) else []


def shown_tools(extra_info: Mapping[str, Json], tools: Tools) -> Tools:
    """Return the tools of a row's agent that the row selects."""
    by_name = {tool_name(tool): tool for tool in tools}
    names = selected_tools(extra_info)
    return [by_name[name] for name in names if name in by_name] if names else tools


def wrong_selection(extra_info: Mapping[str, Json], names: Collection[str]) -> DataProblem | None:
    """Return the problem of a selection of tools that the row's agent does not have.

    Departs from verl, which ignores unknown names.
    """
    given = extra_info.get(_SELECTION)
    if not names or given is None:
        return None
    column, allowed = f"{EXTRA_COLUMN}.{_SELECTION}", f"a list of {', '.join(names)}"
    if not isinstance(given, list):
        return DataProblem(column, shown(given), "not a list of tools", allowed)
    unknown = [name for name in given if name not in names]
    if not unknown:
        return None
    return DataProblem(column, shown(unknown[0]), "the row's agent has no such tool", allowed)
