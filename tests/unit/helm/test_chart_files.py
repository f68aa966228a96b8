import json
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import combinations
from typing import get_args

import jsonschema
import pytest
from chart import CHART, DASHBOARDS, ROOT, known_names, queries, series_names, variable_queries
from ruamel.yaml import YAML

from ppojob_api import contract, well_known
from ppojob_api.v1alpha1.scheduling import SchedulingType
from ppojob_operator.settings import Settings

KNOWN = known_names()
BOARDS = {path.name: json.loads(path.read_text()) for path in DASHBOARDS}
VALUES = YAML(typ="safe").load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def template(name: str) -> str:
    return (CHART / "templates" / name).read_text()


def asked_for() -> Iterator[tuple[str, str]]:
    assert sorted(BOARDS) == ["fleet.json", "job.json"]
    for path in DASHBOARDS:
        yield from ((one.where, one.text) for one in queries(path))
        yield from ((path.name, one) for one in variable_queries(BOARDS[path.name]))
    yield "alerts", re.sub(r"^ *#.*$", "", template("alerts.yaml"), flags=re.MULTILINE)


def test_only_series_that_exist_are_asked_for():
    for where, text in asked_for():
        asked = series_names(text)
        assert len(asked) >= (8 if where == "alerts" else 1), f"{where}: series of ours in {text}"
        assert asked <= KNOWN, f"{where}: no such series: {asked - KNOWN}"


def test_a_name_that_nobody_shows_is_found():
    assert series_names('rate(ppojob_nothing_total{job="ppojob_text_is_none"}[5m])') == {
        "ppojob_nothing_total"
    }
    assert "ppojob_nothing_total" not in KNOWN
    assert {"ppojob_stage_duration_seconds_bucket", "ppojob_operator_reconciles_total"} <= KNOWN


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_dashboard_is_well_formed(name):
    board = BOARDS[name]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    sources = {"type": "prometheus", "uid": "${datasource}"}
    assert all(p["datasource"] == sources for p in panels if p["type"] != "row")
    declared = {one["name"] for one in board["templating"]["list"]}
    for target in (target for panel in panels for target in panel.get("targets", ())):
        used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
        assert used <= declared, target["expr"]


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_panels_do_not_overlap(name):
    places = [(panel["title"], panel["gridPos"]) for panel in BOARDS[name]["panels"]]
    for (one, a), (other, b) in combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, f"{one} lies on {other}"
    assert all(place["x"] + place["w"] <= 24 for _, place in places)


def test_the_default_values_fit_their_schema_and_it_knows_each():
    jsonschema.validate(VALUES, SCHEMA)
    assert VALUES.keys() == SCHEMA["properties"].keys() - {"global"}
    for name in ("settings", "alerts", "networkPolicy", "rbac", "gangs"):
        assert VALUES[name].keys() == SCHEMA["properties"][name]["properties"].keys()


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica": 2},
        {"replicas": 0},
        {"settings": {"workers": "many"}},
        {"watchNamespaces": ["Team_A"]},
        {"gangs": {"slurm": True}},
        {"image": {"repository": "x", "digest": "sha256:short"}},
        {"alerts": {"rewardCollapse": {"share": 2}}},
    ],
)
def test_wrong_values_are_refused(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_every_setting_of_the_operator_is_given_and_no_other():
    snake = {re.sub(r"([A-Z])", r"_\1", name).upper() for name in VALUES["settings"]}
    written = set(re.findall(r"PPOJOB_OPERATOR_([A-Z_]+)\n", template("deployment.yaml")))
    assert snake | written == {one.name.upper() for one in fields(Settings)}
    assert not snake & written


def test_the_gangs_are_the_resources():
    assert {"none", *VALUES["gangs"]} == set(get_args(SchedulingType))


def test_default_settings_are_the_operators_own():
    own = Settings()
    for name, value in VALUES["settings"].items():
        field = re.sub(r"([A-Z])", r"_\1", name).lower()
        assert getattr(own, field) == value, name


def test_the_chart_carries_the_generated_resource():
    linked = CHART / "files" / "ppojobs.yaml"
    assert linked.resolve() == ROOT / "crds" / "ppojobs.yaml"
    assert linked.read_text().count("\nmetadata:\n") == 1, "where the chart marks it to be kept"


def test_ports_and_names_are_the_contracts():
    policy = template("networkpolicy.yaml")
    assert f"port: {contract.PORT_HEALTH}}}" in policy
    assert well_known.LABEL_JOB in policy
    assert well_known.LABEL_JOB in template("monitoring.yaml")
    assert well_known.workload_name("x", "controller") == "x-controller", "the admission policy's"


def test_no_right_is_granted_by_a_star():
    for name in ("_rules.tpl", "rbac.yaml"):
        assert "*]" not in template(name)
        assert '"*"' not in re.sub(r"\{\{/\*.*?\*/\}\}", "", template(name), flags=re.DOTALL)


def test_every_verb_says_why():
    verbs = re.findall(r"^ +- [a-z]+(?: .*)?$", template("_rules.tpl"), flags=re.MULTILINE)
    assert len(verbs) > 20
    assert [line for line in verbs if "#" not in line] == []
