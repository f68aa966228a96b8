"""docs/operations.md and reasons.md have a line for every reason of a status, and every metric."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import REGISTRY

import ppojob_operator
import ppojob_operator.metrics  # noqa: F401

PAGES = ("docs/operations.md", "cli/ppojob_cli/cluster/reasons.md")
DOCS = "".join((Path(__file__).parents[3] / page).read_text() for page in PAGES)
SOURCES = sorted(Path(ppojob_operator.__file__).parent.rglob("*.py"))
TELLING = {"ObservedCondition", "Ending", "_not_admitted"}
CAMEL = re.compile(r"([A-Z][a-z]+){1,4}")


def reasons() -> Iterator[str]:
    """CamelCase words that claims, endings and verdicts are made of, types aside."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in TELLING:
                words = [one for argument in node.args for one in ast.walk(argument)]
            elif isinstance(node, ast.Yield) and source.name == "startup.py":
                words = list(ast.walk(node))
            else:
                continue
            for word in words:
                text = word.value if isinstance(word, ast.Constant) else None
                if isinstance(text, str) and CAMEL.fullmatch(text):
                    yield text


def test_every_reason_is_explained() -> None:
    found = set(reasons())
    assert {"Unschedulable", "TrainingDone", "RepeatedFailure", "PodsReady"} <= found
    assert [word for word in sorted(found) if word not in DOCS] == []


def test_every_metric_is_explained() -> None:
    families = {one.name for one in REGISTRY.collect() if one.name.startswith("ppojob_operator_")}
    assert len(families) > 10
    assert [name for name in sorted(families) if f"`{name}" not in DOCS] == []


def test_no_metric_is_explained_that_is_not_there() -> None:
    families = {one.name for one in REGISTRY.collect()}
    named = re.findall(r"`(ppojob_operator_\w+)", DOCS)
    assert [name for name in named if name.removesuffix("_total") not in families] == []
