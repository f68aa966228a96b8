"""The chart's queries, and the names they may use."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from ppojob_operator import metrics
from ppojob_trainer.metrics import names

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "ppojob-operator"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
Instrument = Counter | Gauge | Histogram
_NAME = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b")


@dataclass(frozen=True)
class Query:
    """One query of a dashboard's panel, as Grafana has it, with its variables."""

    where: str
    text: str

    @property
    def promql(self) -> str:
        """What Prometheus would be asked."""
        text = re.sub(r"\[\$(window|__rate_interval)\]", "[5m]", self.text)
        return re.sub(r"\$(namespace|job)\b", "x", text)


def series_names(text: str) -> set[str]:
    bare = re.sub(r'"[^"]*"', '""', text)
    return {name for name in _NAME.findall(bare) if name.startswith("ppojob_")}


def queries(path: Path) -> Iterator[Query]:
    board = json.loads(path.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"{path.name}: {panel['title']}", target["expr"])


def variable_queries(board: dict[str, Any]) -> list[str]:
    """What fills the choices of a dashboard."""
    return [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]


def known_names() -> set[str]:
    trainer = {name for series in all_series() for name in selectors(series)}
    return trainer | {name for one in _instruments() for name in _selectors(one)}


def all_series() -> list[names.Series]:
    """Everything that the pods of a job tell Prometheus."""
    of_steps = [metric.series for metric in names.METRICS]
    return [*of_steps, *names.CONTROLLER_SERIES, *names.POD_SERIES]


def selectors(series: names.Series) -> set[str]:
    suffixes = ("_bucket", "_count", "_sum") if series.kind == "histogram" else ("",)
    return {series.name + suffix for suffix in suffixes}


def _instruments() -> Iterator[Instrument]:
    return (one for one in vars(metrics).values() if isinstance(one, Instrument))


def _selectors(instrument: Instrument) -> Iterator[str]:
    for family in instrument.describe():
        suffixes = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",)}
        for suffix in suffixes.get(family.type, ("",)):
            yield family.name + suffix
