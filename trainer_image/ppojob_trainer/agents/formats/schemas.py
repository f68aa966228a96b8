"""What the schema of a tool says of its arguments."""

from collections.abc import Mapping

from ppojob_trainer.agents.formats.calls import Tools
from ppojob_trainer.json_value import Json


def names_of(tools: Tools) -> list[str]:
    """Names of tools."""
    return [str(_function(tool).get("name")) for tool in tools]


def parameters_of(tools: Tools, name: str) -> dict[str, Mapping[str, Json]]:
    """Schemas of a tool's arguments by name; none where there is no such tool."""
    for tool in tools:
        if _function(tool).get("name") == name:
            properties = _object(_object(_function(tool).get("parameters")).get("properties"))
            return {key: _object(value) for key, value in properties.items()}
    return {}


def required_of(tools: Tools) -> dict[str, set[str]]:
    """Arguments that each tool needs, by its name."""
    found = {}
    for tool in tools:
        required = _object(_function(tool).get("parameters")).get("required")
        listed = required if isinstance(required, list) else []
        found[str(_function(tool).get("name"))] = {str(one) for one in listed}
    return found


def _function(tool: Mapping[str, Json]) -> Mapping[str, Json]:
    """The inner part of a schema; some leave the outer one out."""
    return _object(tool["function"]) if "function" in tool else tool


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}
