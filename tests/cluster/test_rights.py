"""What the chart grants the operator is what its work needs, by the API server's audit log."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import job

pytestmark = [pytest.mark.cluster, pytest.mark.images, pytest.mark.timeout(2400)]

Right = tuple[str, str]
"""Resource and verb."""

MADE = "statefulsets,configmaps,services,serviceaccounts,roles,rolebindings,networkpolicies"
MADE += ",poddisruptionbudgets"
RARE: frozenset[Right] = frozenset(
    {
        ("clusterroles", "bind"),  # no request, but what a RoleBinding to a job's tools pods needs
        ("pods", "delete"),  # an edited job's controller, a pod in back-off or of a dead node
        ("ppojobs", "delete"),  # lifecycle.ttlSecondsAfterFinished is over
        ("services", "delete"),  # a job that was edited has no pods of a role any more
        ("configmaps", "delete"),  # no pod mounts the old one of an edited job any more
        ("events", "list"),  # pods are not made for 15 s
        ("configmaps", "get"),  # its name has a digest of the job's uid: it is hardly ever taken
    }
)
"""Granted, and not used in this test; tests of the reconciler have each of them."""

CONTROLLER = (
    ("patch", "ppojobs/whole", "--subresource=status", "yes"),
    ("patch", "ppojobs/other", "--subresource=status", "no"),
    ("get", "ppojobs/whole", "--subresource=status", "no"),
    ("patch", "ppojobs/whole", "", "no"),
    ("get", "ppojobs", "", "no"),
    ("get", "secrets", "", "no"),
    ("list", "pods", "", "no"),
    ("create", "pods", "", "no"),
)
"""Verb, object, subresource, and whether a job's controller may."""


def foreign(kind: str, name: str, **content: Any) -> dict[str, Any]:
    """An object of somebody else that has the name a job would give its own."""
    group = {
        "NetworkPolicy": "networking.k8s.io/v1",
        "PodDisruptionBudget": "policy/v1",
        "Role": "rbac.authorization.k8s.io/v1",
        "RoleBinding": "rbac.authorization.k8s.io/v1",
        "StatefulSet": "apps/v1",
    }
    version = group.get(kind, "v1")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}


def names_taken() -> list[dict[str, Any]]:
    """What two jobs, `early` and `late`, find instead of their own objects."""
    none = {"matchLabels": {"none": "none"}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "none"}
    container = {"name": "none", "image": "localhost/none"}
    pods = {"metadata": {"labels": {"none": "none"}}, "spec": {"containers": [container]}}
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    sets = {"serviceName": "none", "replicas": 0, "selector": none, "template": pods}
    return [
        foreign("ServiceAccount", "early-controller"),
        foreign("Secret", "early-controller"),
        foreign("Service", "early-controller", spec={"clusterIP": "None"}),
        foreign("Role", "early-controller", rules=[]),
        foreign("NetworkPolicy", "early-pods", spec={"podSelector": none}),
        foreign("PodDisruptionBudget", "early-pods", spec={"selector": none}),
        foreign("PersistentVolumeClaim", "early-run", spec=claim),
        foreign("RoleBinding", "late-controller", roleRef=reference),
        foreign("StatefulSet", "late-controller", spec=sets),
    ]


@pytest.fixture(scope="module")
def worked(cluster: Cluster, release: str) -> Cluster:
    """A namespace where a job came and went and was edited, and others found their names taken."""
    if not cluster.is_ours:
        pytest.skip("the audit log is in kind's container")
    cluster.apply(job("whole"))
    of_job, uid = "--selector=ppojob.dev/job=whole", "ppojob.dev/job-uid"
    eventually(lambda: len(cluster.kubectl("get", MADE, of_job, "--output=name").split()) == 12)
    cluster.kubectl("label", MADE, of_job, "--overwrite", f"{uid}=edited")
    edited = ("get", MADE, f"{of_job},{uid}=edited", "--output=name")
    eventually(lambda: not cluster.kubectl(*edited))
    cluster.apply(job("whole", lifecycle={"suspend": True}))
    eventually(lambda: not cluster.kubectl("get", "statefulsets", of_job, "--output=name"))
    cluster.apply(*names_taken())
    cluster.apply(job("early", checkpoint={"volume": {"size": "1Gi"}}), job("late"))
    for name in ("early", "late"):
        told = ("ppojob", name, "{.status.reason}")
        eventually(lambda told=told: cluster.read(*told) == "ObjectRefused")
    return cluster


def granted(cluster: Cluster) -> set[Right]:
    """What Roles of the namespace give to the operator's account."""
    subject = "ppojob-operator"
    bound = {
        one["roleRef"]["name"]
        for one in cluster.get("rolebindings")["items"]
        if any(each["name"] == subject for each in one.get("subjects", ()))
    }
    return {
        (resource, verb)
        for role in cluster.get("roles")["items"]
        if role["metadata"]["name"] in bound
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def requests(cluster: Cluster) -> Iterator[tuple[Right, int]]:
    """What the operator's account asked for, and how that was answered."""
    account = f"system:serviceaccount:{cluster.namespace}:ppojob-operator"
    for log in (cluster.folder / "logs").glob("audit*.log"):
        with log.open() as lines:
            for line in lines:
                if f'"{account}"' in line and (event := whole(line)):
                    what = event["objectRef"]
                    parts = (what["resource"], what.get("subresource"))
                    resource = "/".join(part for part in parts if part)
                    yield (resource, event["verb"]), event["responseStatus"]["code"]


def whole(line: str) -> dict[str, Any] | None:
    """An entry about an object; None for one that is being written."""
    if not line.endswith("\n"):
        return None
    event: dict[str, Any] = json.loads(line)
    return event if "objectRef" in event else None


def test_what_is_granted_is_used(worked: Cluster):
    used = {right for right, _ in requests(worked)}
    assert granted(worked) - used == RARE


def test_nothing_is_asked_for_in_vain(worked: Cluster):
    assert {right for right, code in requests(worked) if code == 403} == set()


@pytest.mark.parametrize(("verb", "what", "subresource", "may"), CONTROLLER)
def test_a_controller_may_tell_of_its_own_job_and_nothing_else(
    worked: Cluster, verb: str, what: str, subresource: str, may: str
):
    account = f"--as=system:serviceaccount:{worked.namespace}:whole-controller"
    question = [verb, what, *([subresource] if subresource else []), account]
    assert worked.outcome("auth", "can-i", *question).split()[0] == may
