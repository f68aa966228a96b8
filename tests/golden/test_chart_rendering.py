"""The chart as helm renders it, and its queries as Prometheus reads them.

Write the golden files anew, after a look at what changed:

    PPOJOB_WRITE_GOLDEN=1 python -m pytest tests/golden/test_chart_rendering.py
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from chart import DASHBOARDS, ROOT, queries
from chart_programs import helm, promtool, template
from ruamel.yaml import YAML

pytestmark = pytest.mark.cluster

GOLDEN = Path(__file__).parent / "chart"
ALERT_CASES = Path(__file__).parent / "alert_cases.yaml"
# The resource and the dashboards are files of their own, which golden copies would only double.
BARE = ("--set=crds.install=false",)
WATCHED = tuple(f"--set={name}.enabled=true" for name in ("serviceMonitor", "podMonitor", "alerts"))
RENDERINGS = {
    "default": BARE,
    "monitored": (*BARE, *WATCHED, "--set=alerts.labels.release=prometheus"),
    "gangs": (
        *BARE,
        *(f"--set=gangs.{name}=true" for name in ("kueue", "volcano", "coscheduling", "workload")),
    ),
    "namespaced": (
        *BARE,
        *WATCHED,
        "--set=watchNamespaces={team-a,team-b}",
        "--set=rbac.readNodes=false",
        "--set=admissionPolicy.enabled=false",
        "--set=replicas=1",
    ),
}


def objects(*arguments: str) -> list[dict[str, Any]]:
    return [one for one in YAML(typ="safe").load_all(template(*arguments)) if one]


def named(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (one,) = (one for one in found if one["kind"] == kind)
    return one


@pytest.mark.parametrize("name", RENDERINGS)
def test_the_rendering_is_the_golden_one(name):
    rendered, golden = template(*RENDERINGS[name]), GOLDEN / f"{name}.yaml"
    if os.environ.get("PPOJOB_WRITE_GOLDEN"):
        golden.write_text(rendered)
    assert rendered == golden.read_text()


@pytest.mark.parametrize("needed", ["rowContainers", "admissionPolicy"])
def test_no_pod_may_create_pods_without_the_policy_or_if_it_is_switched_off(needed):
    assert "row-containers" not in template(*BARE, f"--set={needed}.enabled=false")


def test_lint_finds_nothing():
    done = helm("lint", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize(
    "wrong", ["replicas=0", "replica=2", "settings.workers=many", "affinity.nodeAffinity=x"]
)
def test_wrong_values_render_nothing(wrong):
    done = helm("template", "ppojob-operator", f"--set={wrong}")
    assert done.returncode != 0
    assert wrong.partition("=")[0].rpartition(".")[2] in done.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--api-versions=security.openshift.io/v1", "true"),
        ("--set=openshift=true", "true"),
        ("--set=openshift=false", "false"),
    ],
)
def test_on_openshift_pods_name_no_user(given, expected):
    pod = named(objects(*BARE, given), "Deployment")["spec"]["template"]["spec"]
    assert ("runAsUser" in pod["securityContext"]) == (expected == "false")
    variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert variables["PPOJOB_OPERATOR_OPENSHIFT"] == expected


def test_the_resource_is_the_generated_one_and_stays():
    rendered = named(objects(), "CustomResourceDefinition")
    assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert rendered == YAML(typ="safe").load(ROOT / "crds" / "ppojobs.yaml")


def dashboards(*arguments: str) -> list[dict[str, Any]]:
    found = objects(*BARE, "--set=dashboards.enabled=true", *arguments)
    return [one for one in found if one["kind"] == "ConfigMap"]


@pytest.mark.parametrize(
    ("part", "name"), [("labels", "grafana_dashboard"), ("annotations", "grafana_folder")]
)
def test_what_a_sidecar_reads_may_be_taken_away(part, name):
    assert all(name in one["metadata"][part] for one in dashboards())
    bare = dashboards(f"--set=dashboards.{part}=null")
    assert len(bare) == len(DASHBOARDS)
    assert all(name not in one["metadata"].get(part, {}) for one in bare)


def test_dashboards_are_found_by_the_sidecar():
    maps = dashboards()
    assert len(maps) == len(DASHBOARDS)
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in maps)
    boards = [json.loads(text) for one in maps for text in one["data"].values()]
    assert boards == [json.loads(path.read_text()) for path in DASHBOARDS]


def test_two_releases_share_no_name_across_the_cluster():
    def across(namespace: str) -> set[tuple[str, str]]:
        return {
            (one["kind"], one["metadata"]["name"])
            for one in objects(*BARE, f"--namespace={namespace}")
            if one["kind"].startswith(("Cluster", "Validating"))
        }

    assert not across("one") & across("two")


def test_a_release_keeps_a_lease_of_its_own_name():
    """Two in one namespace, each for others, would share it, and one would stand by for ever."""

    def lease(release: str) -> str:
        done = helm("template", release, *BARE)
        found = [one for one in YAML(typ="safe").load_all(done.stdout) if one]
        (container,) = named(found, "Deployment")["spec"]["template"]["spec"]["containers"]
        name = {one["name"]: one.get("value") for one in container["env"]}["PPOJOB_OPERATOR_LEASE"]
        roles = [one for one in found if one["kind"] == "Role"]
        named_in_rules = [rule.get("resourceNames") for one in roles for rule in one["rules"]]
        assert [name] in named_in_rules
        return str(name)

    assert lease("ppojob-operator") == "ppojob-operator"
    assert lease("team-a") == "team-a-ppojob-operator"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    rule = named(objects(*RENDERINGS["monitored"]), "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps(rule["spec"]))
    return file


def test_every_alert_is_read_by_prometheus(rules: Path):
    done = promtool("check", rules)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = json.loads(rules.read_text())["groups"]
    total = sum(len(group["rules"]) for group in listed)
    assert re.search(rf"\b{total} rules found", done.stdout), done.stdout


def test_alerts_fire_when_they_should_and_only_then(rules: Path):
    cases = rules.with_name("cases.yaml")
    cases.write_text(ALERT_CASES.read_text())
    done = promtool("test", cases)
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = {
        rule["alert"]
        for group in json.loads(rules.read_text())["groups"]
        for rule in group["rules"]
    }
    assert set(re.findall(r"alertname: (\w+)", cases.read_text())) == alerts


def test_every_query_of_a_dashboard_is_read_by_prometheus(tmp_path: Path):
    asked = [query for path in DASHBOARDS for query in queries(path)]
    rules = [{"record": f"q:{n}", "expr": query.promql} for n, query in enumerate(asked)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    done = promtool("check", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(asked)} rules found" in done.stdout
