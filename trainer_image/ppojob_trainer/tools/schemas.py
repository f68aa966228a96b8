"""Tool schemas for the model: data, read without running users' code."""

from typing import TYPE_CHECKING

from ppojob_trainer.json_value import Json
from ppojob_trainer.tools.built_in import TOOLS
from ppojob_trainer.tools.wire import ToolCode

if TYPE_CHECKING:  # the child loads this module too, and has no time for these
    from ppojob_api.v1alpha1.agent import AgentSpec, ToolSpec


def tool_schemas(agent: "AgentSpec | None") -> list[dict[str, Json]]:
    """The tools of a job in OpenAI's form, as chat templates take them; empty without tools."""
    return [tool_schema(tool) for tool in agent.tools] if agent is not None else []


def tool_schema(tool: "ToolSpec | ToolCode") -> dict[str, Json]:
    """One tool in that form."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description
            or (TOOLS[tool.name].description if tool.source is None else ""),
            "parameters": parameters_of(tool),
        },
    }


def parameters_of(tool: "ToolSpec | ToolCode") -> dict[str, Json]:
    """The JSON schema of a tool's arguments."""
    if tool.parameters or tool.source is not None:
        return dict(tool.parameters)
    return dict(TOOLS[tool.name].parameters)
