"""Tool schemas for the model, read without running users' code."""

from typing import TYPE_CHECKING

from ppojob_trainer.json_value import Json
from ppojob_trainer.tools.built_in import TOOLS
from ppojob_trainer.tools.wire import ToolCode

if TYPE_CHECKING:  # the child imports this module too, and these would slow its start
    from ppojob_api.v1alpha1.agent import AgentSpec, ToolSpec


def tool_schemas(agent: "AgentSpec | None") -> list[dict[str, Json]]:
    """Return the schemas of a job's tools in OpenAI's form, for chat templates."""
    return [tool_schema(tool) for tool in agent.tools] if agent is not None else []


def tool_schema(tool: "ToolSpec | ToolCode") -> dict[str, Json]:
    """Return the schema of a tool in OpenAI's form."""
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
    """Return the JSON schema of a tool's arguments."""
    if tool.parameters or tool.source is not None:
        return dict(tool.parameters)
    return dict(TOOLS[tool.name].parameters)
