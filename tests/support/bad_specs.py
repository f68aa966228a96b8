"""The table of wrong jobs, tests/unit/api/bad_specs.txt, for whoever must refuse them."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppojob_api import manifest

TABLE = Path(__file__).parents[1] / "unit" / "api" / "bad_specs.txt"

GOOD_JOB: dict[str, Any] = {
    "apiVersion": "ppojob.dev/v1alpha1",
    "kind": "PPOJob",
    "metadata": {"name": "sum"},
    "spec": {
        "model": {"path": "/models/m"},
        "data": {"train": [{"path": "/data/a.parquet"}], "validation": [{"path": "/data/b.jsonl"}]},
        "algorithm": {"type": "grpo", "promptsPerStep": 16, "samplesPerPrompt": 8},
        "steps": {"total": 20},
    },
}


@dataclass(frozen=True)
class Case:
    """A wrong job: changes to the good one (`PATH: YAML`), code and line of each problem."""

    name: str
    changes: tuple[str, ...]
    expected: tuple[str, ...]


def read_table() -> list[Case]:
    cases = []
    for block in TABLE.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            name, *rest = lines
            changes = tuple(line for line in rest if not line.startswith("=> "))
            expected = tuple(line.removeprefix("=> ") for line in rest if line.startswith("=> "))
            cases.append(Case(name, changes, expected))
    return cases


def changed_job(changes: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """The good job with these changes."""
    job = copy.deepcopy(GOOD_JOB)
    for change in changes:
        path, _, text = change.partition(": ")
        *above, last = path.split(".")
        section = job
        for key in above:
            section = section.setdefault(key, {})
        if text == "!remove":
            del section[last]
        else:
            _merge(section, {last: _value_of(text)})
    return job


def _value_of(text: str) -> Any:
    read = manifest.read_bytes(f"value: {text}".encode(), "case")
    assert not read.problems, read.problems
    assert isinstance(read.value, dict)
    return read.value["value"]


def _merge(section: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and value and isinstance(section.get(key), dict):
            _merge(section[key], value)
        else:
            section[key] = value
