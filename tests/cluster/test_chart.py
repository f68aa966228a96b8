"""The chart on a real API server: what it makes is accepted, and the policy holds controllers."""

import itertools
import json
from collections.abc import Iterator

import pytest
from chart import ROOT
from chart_programs import helm_on
from cluster_access import Cluster, eventually
from cluster_jobs import bound_role
from ruamel.yaml import YAML

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

JOB = "sums"


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[str]:
    """The chart, without a running operator: its replicas have no image, and are not waited for."""
    install = ("--set=image.repository=localhost/none", "--set=image.pullPolicy=Never")
    helm_on(cluster, "upgrade", "--install", "--take-ownership", *install)
    yield "ppojob-operator"
    helm_on(cluster, "uninstall")


@pytest.fixture(scope="module")
def job(cluster: Cluster, release: str) -> str:
    """A job, and accounts that RBAC lets do more than it should: only the policy holds them."""
    manifest = YAML(typ="safe").load(ROOT / "examples" / "addition-grpo.yaml")
    resources = ["ppojobs", "ppojobs/status"]
    rule = {"apiGroups": ["ppojob.dev"], "resources": resources, "verbs": ["get", "patch"]}
    subjects = [
        {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}
        for name in (f"{JOB}-controller", "ppojob-operator")
    ]
    rights = bound_role("controllers", [rule], *subjects)
    cluster.apply({**manifest, "metadata": {"name": JOB}}, *rights)
    status = {"status": {"phase": "Running", "training": {"attempt": 2, "step": 5}}}
    cluster.kubectl(*patch(status))
    # The policy takes a moment to reach the API server's admission. What it let through until then
    # must not be sent again: it forbids changes.
    images = map(str, itertools.count())
    eventually(lambda: "denied" in as_controller(cluster, {"status": {"image": next(images)}}))
    return JOB


def patch(change: dict[str, object], subresource: str = "status") -> tuple[str, ...]:
    place = (f"--subresource={subresource}",) if subresource else ()
    return ("patch", "ppojob", JOB, "--type=merge", *place, f"--patch={json.dumps(change)}")


def as_controller(
    cluster: Cluster, change: dict[str, object], *, subresource: str = "status"
) -> str:
    account = f"system:serviceaccount:{cluster.namespace}:{JOB}-controller"
    return cluster.outcome(*patch(change, subresource), f"--as={account}")


def test_a_new_controller_takes_over_and_the_old_one_is_silenced(cluster: Cluster, job: str):
    assert "patched" in as_controller(cluster, {"status": {"training": {"attempt": 3, "step": 6}}})
    said = as_controller(cluster, {"status": {"training": {"attempt": 2, "step": 9}}})
    assert "status.training.attempt: got 2: a controller of attempt 3 has taken over" in said
    assert "attempt 0" not in said
    assert "got 0" in as_controller(cluster, {"status": {"training": None}})
    assert cluster.read("ppojob", job, "{.status.training.step}") == "6"


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Succeeded"},
        {"phase": None},
        {"restarts": 0, "observedGeneration": 7},
        {"training": {"step": 7}, "phase": "Succeeded"},
        {
            "conditions": [
                {
                    "type": "Complete",
                    "status": "True",
                    "reason": "Done",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
        },
    ],
)
def test_a_controller_changes_nothing_else_of_its_status(cluster: Cluster, job: str, change):
    said = as_controller(cluster, {"status": change})
    assert "status: a controller changes status.training only" in said
    assert cluster.read("ppojob", job, "{.status.phase}") == "Running"


def test_a_controller_changes_no_spec(cluster: Cluster, job: str):
    change = {"spec": {"lifecycle": {"suspend": True}}}
    said = as_controller(cluster, change, subresource="")
    assert "spec: a controller changes status.training only" in said


def test_people_and_the_operator_are_not_held(cluster: Cluster, job: str):
    cluster.kubectl(*patch({"status": {"message": "by hand"}}))
    account = f"system:serviceaccount:{cluster.namespace}:ppojob-operator"
    cluster.kubectl(*patch({"status": {"message": "by the operator"}}), f"--as={account}")


@pytest.mark.parametrize(
    ("role", "verb", "may"),
    [
        ("view", "get", "yes"),
        ("view", "update", "no"),
        ("edit", "watch", "yes"),
        ("edit", "create", "yes"),
        ("admin", "delete", "yes"),
    ],
)
def test_who_may_edit_a_namespace_may_edit_its_jobs(cluster, release, role, verb, may):
    cluster.apply(*bindings(cluster))
    account = f"--as=system:serviceaccount:{cluster.namespace}:of-{role}"
    eventually(lambda: cluster.outcome("auth", "can-i", verb, "ppojobs", account).strip() == may)
    status = ("auth", "can-i", "patch", "ppojobs", "--subresource=status", account)
    assert cluster.outcome(*status).strip() == "no"


def bindings(cluster: Cluster) -> list[dict[str, object]]:
    """Accounts that have the roles of Kubernetes for people."""
    group = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"of-{role}"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [
                {"kind": "ServiceAccount", "name": f"of-{role}", "namespace": cluster.namespace}
            ],
        }
        for role in ("view", "edit", "admin")
    ]


def test_the_policy_was_type_checked_without_a_warning(cluster: Cluster, job: str):
    name = f"{cluster.namespace}-ppojob-operator-controllers"
    kind = "validatingadmissionpolicy"
    eventually(lambda: cluster.read(kind, name, "{.status.observedGeneration}") == "1")
    assert cluster.read(kind, name, "{.status.typeChecking.expressionWarnings}") == ""


def test_an_upgrade_upgrades_the_resource_and_uninstall_keeps_it(cluster: Cluster, release: str):
    crd = "ppojobs.ppojob.dev"
    # Something that no test asks for: others run beside this one.
    names = '[{"op":"remove","path":"/spec/names/shortNames"}]'
    cluster.kubectl("patch", "crd", crd, "--type=json", f"--patch={names}")
    cluster.kubectl("annotate", "crd", crd, "ppojob.dev/edited=by-hand")
    helm_on(cluster, "upgrade", "--force-conflicts", "--set=image.pullPolicy=Always")
    assert cluster.read("crd", crd, "{.spec.names.shortNames[0]}") == "ppo"
    helm_on(cluster, "uninstall")
    assert cluster.read("crd", crd, "{.metadata.name}") == crd
    helm_on(cluster, "upgrade", "--install", "--set=image.pullPolicy=Never")
