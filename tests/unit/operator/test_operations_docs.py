import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from prometheus_client import REGISTRY

import ppojob_operator
import ppojob_operator.metrics  # noqa: F401
from ppojob_api.v1alpha1.status import Condition, Phase, PPOJobStatus
from ppojob_api.well_known import GROUP, KIND
from ppojob_operator.conditions import ConditionType

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
            elif isinstance(node, ast.Yield) and source.name == "pods_ready.py":
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


def test_the_health_check_for_argo_cd_asks_for_what_there_is() -> None:
    page = (Path(__file__).parents[3] / "docs/installing.md").read_text()
    name, _, script = page.partition("resource.customizations.health.")[2].partition(": |")
    assert name == f"{GROUP}_{KIND}"
    script = script.partition("return health")[0]
    phases = re.findall(r"(\w+) = \"", script.partition("known = ")[2].partition("}")[0])
    assert len(phases) == 3
    assert set(phases) <= set(get_args(Phase))
    asked = re.findall(r"one\.type == \"(\w+)\"", script)
    assert asked
    assert set(asked) <= set(get_args(ConditionType))
    for model, prefix in ((PPOJobStatus, "status"), (Condition, "one")):
        names = {field.alias or key for key, field in model.model_fields.items()}
        assert set(re.findall(rf"\b{prefix}\.(\w+)", script)) <= names
