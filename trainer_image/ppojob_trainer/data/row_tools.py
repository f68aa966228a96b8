"""What a row says of the tools of its job, in its `extra_info` and by verl's names.

`tools_kwargs.NAME.create_kwargs` is what a tool is made with. `tool_selection` is a list of names:
the row shows the model these tools, in this order, and no other can be called; where it is absent
or empty, all can.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.data.chat import Tools, tool_name
from ppojob_trainer.data.columns import EXTRA_COLUMN
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.json_value import Json

_KWARGS: Final = "tools_kwargs"
_SELECTION: Final = "tool_selection"
_NO_TOOL: Final = "the row's agent has no such tool"


def created_tools(extra_info: Mapping[str, Json]) -> dict[str, bytes]:
    """What a row's tools are made with, JSON by tool.

    Whatever has another form is nobody's, as in verl.
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
    """Tell of data for a tool that the row's agent does not have: no tool is made with it.

    Names are those of the tools of the row's agent. Where it has none, nothing is told.
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
