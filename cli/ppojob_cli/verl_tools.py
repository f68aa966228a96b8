"""verl's YAML files of tools, as items of `spec.agent.tools`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ppojob_api import manifest
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_cli.input_error import InputError

_BUILT_IN: Final = {"verl.tools.gsm8k_tool.Gsm8kTool": "calc_gsm8k_reward"}
"""verl's own classes that are tools here; it had them until May 2026."""

_FORM = "a list of {class_name, config, tool_schema}"


def read_verl_tools(path: str) -> list[dict[str, Any]]:
    """The tools of a file.

    Raises:
        InputError: it is no such file; every problem, one line each.
    """
    read = manifest.read_file(path)
    problems = list(read.problems)
    tools = read.value.get("tools") if isinstance(read.value, dict) else None
    if not problems and not isinstance(tools, list):
        why = "these are no tools of verl"
        place = f"{read.name}: tools"
        problems.append(Problem(place, shown(tools), why, _FORM, ReasonCode.BAD_FORM))
    found = []
    for index, item in enumerate(tools if isinstance(tools, list) else ()):
        one = _Item(f"{read.name}: tools[{index}]", item, Path(path).parent)
        found.append(one.tool())
        problems += one.problems
    if problems:
        raise InputError("\n".join(map(str, problems)))
    return found


class _Item:
    """One item of such a file.

    Args:
        where: its place, for messages.
        item: as it was read.
        folder: of the file.
    """

    def __init__(self, where: str, item: Any, folder: Path) -> None:
        self._where = where
        self._item = item if isinstance(item, dict) else {}
        self._folder = folder
        self.problems: list[Problem] = []

    def tool(self) -> dict[str, Any]:
        """The same as an item of `spec.agent.tools`, as far as nothing is wrong."""
        config = self._item.get("config") or {}
        kind = config.get("type", "native") if isinstance(config, dict) else "native"
        if kind != "native":
            why = "what the model is told of it is the server's to say"
            self._wrong("config.type", kind, why, "native, or ppojob tools --mcp URL")
        schema = self._item.get("tool_schema")
        function = schema.get("function") if isinstance(schema, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            why = "the model is told of the tool by it"
            self._wrong("tool_schema", schema, why, "{type: function, function: {name, ...}}")
            function = {}
        told = {key: function[key] for key in ("description", "parameters") if key in function}
        tool = {"name": function.get("name", ""), **told}
        name = str(self._item.get("class_name", ""))
        if _BUILT_IN.get(name) == tool["name"]:
            return tool
        source = self._source(name)
        return {**tool, "source": source, **({"config": config} if config else {})}

    def _source(self, name: str) -> dict[str, str]:
        """Where a class is: `package.module.Class`, or `FILE.py:Class`."""
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
                "class_name",
                name or None,
                "no such file is beside this one, here, or among the installed packages",
                "package.module.Class, or FILE.py:Class",
            )
            return {}
        return {"path": os.path.relpath(found) if found.is_relative_to("") else str(found)} | {
            "function": kind
        }

    def _wrong(self, field: str, value: object, why: str, allowed: str) -> None:
        got = ABSENT if value is None else shown(value)
        where = f"{self._where}.{field}"
        self.problems.append(Problem(where, got, why, allowed, ReasonCode.BAD_FORM))


def wrong_tools(agent: dict[str, Any]) -> Iterator[Problem]:
    """What a job with these tools would be told of them."""
    from ppojob_api import validation

    judged = validation.validate({**_JOB, "spec": {**_SPEC, "agent": agent}})
    for problem in judged if isinstance(judged, list) else ():
        if problem.where.startswith("spec.agent"):
            yield problem


_SPEC: Final[dict[str, Any]] = {
    "model": {"path": "model"},
    "data": {"train": [{"path": "train.parquet"}]},
    "algorithm": {"type": "grpo", "promptsPerStep": 1, "samplesPerPrompt": 2},
    "steps": {"total": 1},
}
_JOB: Final[dict[str, Any]] = {
    "apiVersion": "ppojob.dev/v1alpha1",
    "kind": "PPOJob",
    "metadata": {"name": "tools"},
}
