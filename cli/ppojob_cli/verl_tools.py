"""Conversion of verl's YAML files of tools, interactions and agent loops to `spec.agent`."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ppojob_api import manifest
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_cli.input_error import InputError

_BUILT_IN: Final = {
    "verl.tools.gsm8k_tool.Gsm8kTool": "calc_gsm8k_reward",
    "verl.tools.geo3k_tool.Geo3kTool": "calc_geo3k_reward",
    "verl.tools.image_zoom_in_tool.ImageZoomInTool": "image_zoom_in_tool",
}
"""Built-in tools by verl's classes, which it had until May 2026."""
_USERS: Final = {"verl.interactions.gsm8k_interaction.Gsm8kInteraction": "gsm8k"}
"""Built-in interactions by verl's classes, which it had until April 2026."""
_SEARCH: Final = "verl.tools.search_tool.SearchTool"
_INSTEAD: Final = {
    _SEARCH: "the built-in tool search, by this name",
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool": "the built-in tool python",
}
"""Replacements of classes that cannot be converted."""
_FORM: Final = {
    "tools": "a list of {class_name, config, tool_schema}",
    "interaction": "a list of {name, class_name, config}",
    "agent_loops": "a list of {name, _target_, ...}",
}
_NAMES: Final = {
    "tools": "tools",
    "interaction": "interactions",
    "agent_loops": "interactions",
}
"""Names of verl's lists in `spec.agent`."""
_PROPERTY: Final = ("type", "description", "enum")
"""Keys of an argument that verl passes to the model."""


def read_verl_agent(path: str) -> dict[str, list[dict[str, Any]]]:
    """Convert the tools and interactions of a file to parts of `spec.agent`.

    A file that is a list holds agent loops.
    """
    read = manifest.read_file(path)
    problems = list(read.problems)
    value = read.value if isinstance(read.value, dict) else {}
    if isinstance(read.value, list):
        value = {"agent_loops": read.value}
    lists = {key: value[key] for key in _FORM if key in value} or {"tools": value.get("tools")}
    found: dict[str, list[dict[str, Any]]] = {}
    for key, items in lists.items():
        if not problems and not isinstance(items, list):
            why = f"these are no {_NAMES[key]} of verl"
            place = f"{read.name}: {key}"
            problems.append(Problem(place, shown(items), why, _FORM[key], ReasonCode.BAD_FORM))
        own = found.setdefault(_NAMES[key], [])
        for index, item in enumerate(items if isinstance(items, list) else ()):
            one = _Item(f"{read.name}: {key}[{index}]", item, Path(path).parent)
            own.append(_READERS[key](one))
            problems += one.problems
    if problems:
        raise InputError("\n".join(map(str, problems)))
    return found


class _Item:
    def __init__(self, where: str, item: Any, folder: Path) -> None:
        self._where = where
        self._item = item if isinstance(item, dict) else {}
        self._folder = folder
        self.problems: list[Problem] = []

    def tool(self) -> dict[str, Any]:
        """Convert to an item of `spec.agent.tools`; incomplete if there are problems."""
        config = self._item.get("config") or {}
        kind = config.get("type", "native") if isinstance(config, dict) else "native"
        if kind != "native":
            why = "the server describes the tool"
            self._wrong("config.type", kind, why, "native, or ppojob tools --mcp URL")
        schema = self._item.get("tool_schema")
        function = schema.get("function") if isinstance(schema, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            why = "the model gets it as the tool's description"
            self._wrong("tool_schema", schema, why, "{type: function, function: {name, ...}}")
            function = {}
        tool = {"name": function.get("name", "")}
        tool |= {key: function[key] for key in ("description", "parameters") if key in function}
        if "parameters" in tool:
            tool["parameters"] = _parameters(tool["parameters"])
        name = str(self._item.get("class_name", ""))
        if _BUILT_IN.get(name) == tool["name"]:
            return tool
        if name == _SEARCH and tool["name"] == "search":
            url = config.get("retrieval_service_url")
            top = {"topk": config["topk"]} if "topk" in config else {}
            return {**tool, "config": {"url": url, **top}}
        source = self._source(name)
        return {**tool, "source": source, **({"config": config} if config else {})}

    def interaction(self) -> dict[str, Any]:
        """Convert to an item of `spec.agent.interactions`; the default name is verl's."""
        kind = str(self._item.get("class_name", ""))
        own = kind.rpartition(":")[2].rpartition(".")[2]
        name = self._item.get("name") or own.removesuffix("Interaction").lower()
        built_in = _USERS.get(kind, name)
        if built_in != name:
            why, allowed = f"this class is built in as {built_in}", f"{built_in}, in the rows too"
            self._wrong("name", name, why, allowed)
        if kind in _USERS:
            return {"name": name}
        config = self._item.get("config")
        return {
            "name": name,
            "source": self._source(kind),
            **({"config": config} if config else {}),
        }

    def agent_loop(self) -> dict[str, Any]:
        """Convert to an agent loop; what else stands there goes to its constructor."""
        config = {key: one for key, one in self._item.items() if key not in ("name", "_target_")}
        return {
            "name": self._item.get("name") or "",
            "interface": "agent_loop",
            "source": self._source(str(self._item.get("_target_", "")), "_target_"),
            **({"config": config} if config else {}),
        }

    def _source(self, name: str, field: str = "class_name") -> dict[str, str]:
        if ".py:" in name:
            file, _, kind = name.rpartition(":")
            places = [Path(file), self._folder / file]
        else:
            module, _, kind = name.rpartition(".")
            file = f"{module.replace('.', '/')}.py"
            places = [Path(folder) / file for folder in ("", str(self._folder), *sys.path)]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            self._wrong(
                field,
                name or None,
                "no such file in the folder of this one, here, or in an installed package",
                _INSTEAD.get(name, "package.module.Class, or FILE.py:Class"),
            )
            return {}
        return {"path": os.path.relpath(found) if found.is_relative_to("") else str(found)} | {
            "function": kind
        }

    def _wrong(self, field: str, value: object, why: str, allowed: str) -> None:
        got = ABSENT if value is None else shown(value)
        where = f"{self._where}.{field}"
        self.problems.append(Problem(where, got, why, allowed, ReasonCode.BAD_FORM))


_READERS: Final = {
    "tools": _Item.tool,
    "interaction": _Item.interaction,
    "agent_loops": _Item.agent_loop,
}


def _parameters(parameters: Any) -> Any:
    """Reduce the parameters of a function to the keys that verl's schema model keeps."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return parameters
    kept = {
        name: {key: one[key] for key in _PROPERTY if key in one} if isinstance(one, dict) else one
        for name, one in properties.items()
    }
    return {**parameters, "properties": kept}


def wrong_agent(agent: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of a job with this `spec.agent`."""
    from ppojob_api import shape, validation
    from ppojob_api.v1alpha1.job import PPOJob

    job: Any = shape.placeholder(shape.Shape("object", model=PPOJob))
    judged = validation.validate({**job, "spec": {**job["spec"], "agent": agent}})
    for problem in judged if isinstance(judged, list) else ():
        if problem.where.startswith("spec.agent"):
            yield problem
