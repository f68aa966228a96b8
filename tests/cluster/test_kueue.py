"""Kueue itself admits, evicts and admits again: its controllers, its webhooks, our operator."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import says, wait_for_pods
from gangs_on_cluster import SMALL, admitted, fake_nodes, gang, nodes, operator_of, placed
from placing_controllers import Kueue

pytestmark = [pytest.mark.cluster, pytest.mark.placing, pytest.mark.timeout(3600)]

WORKLOAD = "workloads.kueue.x-k8s.io"
POOL = "example.com/pool"
"""Label and taint of the nodes of a flavor."""
TAINT = {"key": POOL, "value": "plain", "effect": "NoSchedule"}
TOLERATION = {"key": POOL, "operator": "Exists"}
KUEUE_PREFIX = "kueue.x-k8s.io/"
HEAD = {"apiVersion": "kueue.x-k8s.io/v1beta2"}


@pytest.fixture(scope="module")
def kueue(cluster, crd, tmp_path_factory) -> Iterator[Kueue]:
    with Kueue(cluster, tmp_path_factory.mktemp("kueue")) as one:
        one.start()
        plain = {"nodeLabels": {POOL: "plain"}, "nodeTaints": [TAINT], "tolerations": [TOLERATION]}
        cluster.apply(
            {**HEAD, "kind": "ResourceFlavor", "metadata": {"name": "plain"}, "spec": plain},
            {**HEAD, "kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}, "value": 7},
        )
        name = cluster.get("nodes")["items"][0]["metadata"]["name"]
        cluster.kubectl("label", "nodes", name, f"{POOL}=plain", "--overwrite")
        cluster.kubectl("taint", "nodes", name, f"{POOL}=plain:NoSchedule", "--overwrite")
        yield one
        cluster.kubectl("taint", "nodes", name, f"{POOL}-")
        cluster.kubectl("label", "nodes", name, f"{POOL}-")
        cluster.kubectl("delete", "ppojobs", "--all")


@pytest.fixture(scope="module")
def operator(cluster, kueue, tmp_path_factory) -> Iterator[None]:
    with operator_of(cluster, tmp_path_factory.mktemp("operators"), "kueue"):
        yield


def queue(cluster: Cluster, name: str, cpu: str, *, flavor: str = "plain", **spec: Any) -> None:
    """A LocalQueue, and behind it a ClusterQueue of one flavor that gives so much."""
    quota = {"name": flavor, "resources": [{"name": "cpu", "nominalQuota": cpu}]}
    group = {"coveredResources": ["cpu"], "flavors": [quota]}
    given = {"namespaceSelector": {}, "resourceGroups": [group], **spec}
    metadata = {"metadata": {"name": name}}
    cluster.apply(
        {**HEAD, "kind": "ClusterQueue", **metadata, "spec": given},
        {**HEAD, "kind": "LocalQueue", **metadata, "spec": {"clusterQueue": name}},
    )


def queued(name: str, where: str, priority: str | None = None, **spec: Any) -> dict[str, Any]:
    """A job of four pods that ask for 40m."""
    told = {"queueName": where} | ({"priorityClassName": priority} if priority else {})
    return gang(name, {"type": "kueue", "kueue": told}, **spec)


def patch(cluster: Cluster, kind: str, name: str, *how: str, **change: Any) -> None:
    cluster.kubectl("patch", kind, name, "--type=merge", f"--patch={json.dumps(change)}", *how)


def reserved(cluster: Cluster, name: str) -> str:
    """What a ClusterQueue has given."""
    path = "{.status.flavorsReservation[0].resources[0].total}"
    return cluster.read("clusterqueue", name, path)


def conditions(cluster: Cluster, name: str) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition of a job's Workload."""
    found = cluster.get(WORKLOAD, f"ppojob-{name}").get("status", {}).get("conditions", ())
    return {one["type"]: (one["status"], one["reason"]) for one in found}


def is_gone(cluster: Cluster, name: str) -> bool:
    return "NotFound" in cluster.outcome("get", WORKLOAD, f"ppojob-{name}")


def test_a_job_waits_for_quota_and_is_placed_on_the_nodes_of_its_flavor(cluster, operator):
    cluster.apply(queued("early", "small"))
    says(cluster, "early", "Inadmissible")
    queue(cluster, "small", "30m")
    says(cluster, "early", "Pending")
    assert "insufficient" in cluster.read("ppojob", "early", "{.status.message}")
    assert nodes(cluster, "early") == []
    queue(cluster, "small", "40m")
    placed(cluster, "early")
    assert admitted(cluster, "early")["message"] == "admitted by ClusterQueue small"
    assert reserved(cluster, "small") == "40m"
    cluster.kubectl("delete", "ppojob", "early")
    eventually(lambda: is_gone(cluster, "early") and reserved(cluster, "small") == "0")


def test_an_urgent_job_takes_the_place_of_another_which_comes_back(cluster, operator):
    queue(cluster, "narrow", "70m", preemption={"withinClusterQueue": "LowerPriority"})
    cluster.apply(queued("low", "narrow"))
    placed(cluster, "low")
    uid = cluster.get(WORKLOAD, "ppojob-low")["metadata"]["uid"]
    for again in range(2):
        cluster.apply(queued("high", "narrow", "urgent"))
        says(cluster, "low", "Preempted")
        wait_for_pods(cluster, "low", 0)
        placed(cluster, "high")
        assert cluster.read("ppojob", "low", "{.status.phase}") == "Pending"
        assert conditions(cluster, "low")["Requeued"] == ("True", "Preempted")
        cluster.kubectl("delete", "ppojob", "high")
        placed(cluster, "low")
        assert conditions(cluster, "low")["Evicted"][0] == "False", again
    assert cluster.get(WORKLOAD, "ppojob-low")["metadata"]["uid"] == uid
    cluster.kubectl("delete", "ppojob", "low")


def test_a_suspended_job_leaves_its_place_and_asks_anew(cluster, operator):
    queue(cluster, "paused", "70m")
    cluster.apply(queued("first", "paused"))
    placed(cluster, "first")
    cluster.apply(queued("second", "paused"))
    says(cluster, "second", "Pending")
    patch(cluster, "ppojob", "first", spec={"lifecycle": {"suspend": True}})
    says(cluster, "first", "JobSuspended")
    eventually(lambda: is_gone(cluster, "first"))
    placed(cluster, "second")
    bigger = {"lifecycle": {"suspend": False}, "roles": {"reward": {"replicas": 5}}}
    patch(cluster, "ppojob", "first", spec=bigger)
    says(cluster, "first", "Pending")
    patch(cluster, "ppojob", "second", spec={"lifecycle": {"activeDeadlineSeconds": 1}})
    # The end of the other is told to Kueue, whose record of it stays.
    says(cluster, "second", "DeadlineExceeded")
    placed(cluster, "first", 7)
    assert conditions(cluster, "second")["Finished"] == ("True", "Failed")
    assert reserved(cluster, "paused") == "70m"
    cluster.kubectl("delete", "ppojob", "first", "second")
    eventually(lambda: is_gone(cluster, "second"))


def answer_check(cluster: Cluster, state: str, **more: Any) -> None:
    """Say what the controller of the check `budget` says of the job `asked`."""
    (check,) = cluster.get(WORKLOAD, "ppojob-asked")["status"]["admissionChecks"]
    time = "2026-01-02T03:04:05Z"
    told = {**check, "state": state, "message": f"it is {state}", "lastTransitionTime": time}
    status = {"admissionChecks": [{**told, **more}]}
    patch(cluster, WORKLOAD, "ppojob-asked", "--subresource=status", status=status)


def test_a_job_waits_for_admission_checks_and_takes_what_they_add(cluster, operator):
    check = {"metadata": {"name": "budget"}, "spec": {"controllerName": "example.com/budget"}}
    cluster.apply({**HEAD, "kind": "AdmissionCheck", **check})
    active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
    time = {"lastTransitionTime": "2026-01-02T03:04:05Z"}
    status = {"conditions": [{**active, **time}]}
    patch(cluster, "admissioncheck", "budget", "--subresource=status", status=status)
    strategy = {"admissionChecks": [{"name": "budget"}]}
    queue(cluster, "checked", "70m", admissionChecksStrategy=strategy)
    cluster.apply(queued("asked", "checked"))
    says(cluster, "asked", "AdmissionChecks")
    assert cluster.read("ppojob", "asked", "{.status.message}").startswith("budget: Pending")
    assert nodes(cluster, "asked") == []
    update = {"name": "reward", "labels": {"team": "a"}, "annotations": {"ticket": "7"}}
    answer_check(cluster, "Ready", podSetUpdates=[update])
    placed(cluster, "asked")
    metadata = cluster.get("pod", "asked-reward-1")["metadata"]
    assert (metadata["labels"]["team"], metadata["annotations"]["ticket"]) == ("a", "7")
    # Kueue has the job back in the queue, and the check asked anew.
    answer_check(cluster, "Retry")
    wait_for_pods(cluster, "asked", 0)
    says(cluster, "asked", "AdmissionChecks")
    answer_check(cluster, "Ready")
    placed(cluster, "asked")
    answer_check(cluster, "Rejected")
    wait_for_pods(cluster, "asked", 0)
    eventually(lambda: reserved(cluster, "checked") == "0")
    assert admitted(cluster, "asked")["reason"].startswith("Deactivated")
    patch(cluster, WORKLOAD, "ppojob-asked", spec={"active": True})
    says(cluster, "asked", "AdmissionChecks")
    answer_check(cluster, "Ready")
    placed(cluster, "asked")
    cluster.kubectl("delete", "ppojob", "asked")
    eventually(lambda: is_gone(cluster, "asked"))


@pytest.mark.parametrize("kind", ["clusterqueue", "localqueue"])
def test_a_queue_that_is_stopped_and_let_go_again(cluster, operator, kind):
    queue(cluster, "stopped", "70m")
    cluster.apply(queued("held", "stopped"))
    placed(cluster, "held")
    patch(cluster, kind, "stopped", spec={"stopPolicy": "HoldAndDrain"})
    wait_for_pods(cluster, "held", 0)
    eventually(lambda: reserved(cluster, "stopped") == "0")
    assert "stopped" in admitted(cluster, "held")["message"].lower()
    patch(cluster, kind, "stopped", spec={"stopPolicy": "None"})
    placed(cluster, "held")
    cluster.kubectl("delete", "ppojob", "held")
    eventually(lambda: is_gone(cluster, "held"))


RACK, HOST = "example.com/rack", "kubernetes.io/hostname"


@contextmanager
def racks(cluster: Cluster) -> Iterator[None]:
    """Two racks, with one and with two nodes of room for two pods of 10m."""
    places = {"rack-a-0": "a", "rack-b-0": "b", "rack-b-1": "b"}
    labels = {name: {POOL: "racks", RACK: rack, HOST: name} for name, rack in places.items()}
    levels = {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]}
    flavor = {"nodeLabels": {POOL: "racks"}, "tolerations": [TOLERATION], "topologyName": "racks"}
    metadata = {"metadata": {"name": "racks"}}
    with fake_nodes(cluster, labels, {"cpu": "25m"}, taints=[TAINT]):
        cluster.apply(
            {**HEAD, "kind": "Topology", **metadata, "spec": levels},
            {**HEAD, "kind": "ResourceFlavor", **metadata, "spec": flavor},
        )
        yield


def where(cluster: Cluster, name: str) -> dict[str, str]:
    """The node of each pod of a job."""
    found = cluster.get("pods", f"--selector=ppojob.dev/job={name}")["items"]
    return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in found}


def test_the_pods_of_a_role_are_placed_in_one_rack(cluster, operator):
    """Node by node in the order of ranks, and at their place again when they come back."""
    annotation = {f"{KUEUE_PREFIX}podset-required-topology": RACK}
    together = {"metadata": {"annotations": annotation}}
    pods = [SMALL, {"roles": ["reward"], "podOverrides": together}]
    with racks(cluster):
        queue(cluster, "racks", "1", flavor="racks")
        cluster.apply(queued("wide", "racks", pods=pods, roles={"reward": {"replicas": 5}}))
        says(cluster, "wide", "Pending")
        assert "topology" in admitted(cluster, "wide")["message"]
        cluster.kubectl("delete", "ppojob", "wide")
        cluster.apply(queued("near", "racks", pods=pods, roles={"reward": {"replicas": 4}}))
        placed(cluster, "near", 6)
        first = where(cluster, "near")
        rewards = [first[f"near-reward-{number}"] for number in range(4)]
        assert sorted(set(rewards)) == ["rack-b-0", "rack-b-1"]
        assert rewards == sorted(rewards)
        assert {first["near-actor-rollout-0"], first["near-controller-0"]} == {"rack-a-0"}
        # The nodes have no kubelet that would end them.
        cluster.kubectl("delete", "pod", "near-reward-1", "near-reward-2", "--force")
        eventually(lambda: where(cluster, "near") == first)
        placed(cluster, "near", 6)
        cluster.kubectl("delete", "ppojob", "near")
        eventually(lambda: is_gone(cluster, "near"))


def test_a_job_whose_pods_are_not_ready_in_time_gives_its_quota_back_and_tries_again(
    cluster, kueue, operator
):
    again = {"timestamp": "Eviction", "backoffBaseSeconds": 1, "backoffMaxSeconds": 2}
    kueue.start(waitForPodsReady={"timeout": "4s", "requeuingStrategy": again})
    queue(cluster, "late", "70m")
    nowhere = [{**SMALL, "nodeSelector": {"example.com/nowhere": "yes"}}]
    cluster.apply(queued("late", "late", pods=nowhere))
    for times in (1, 2):
        wait_for_pods(cluster, "late", 4)
        says(cluster, "late", "PodsReadyTimeout")
        wait_for_pods(cluster, "late", 0)
        count = cluster.read(WORKLOAD, "ppojob-late", "{.status.requeueState.count}")
        assert int(count) >= times
    cluster.kubectl("delete", "ppojob", "late")
    eventually(lambda: is_gone(cluster, "late"))


def test_kueue_manages_every_job_and_leaves_ours_to_our_operator(cluster, kueue, operator):
    given = kueue.configuration()["integrations"]
    ours = {"externalFrameworks": ["PPOJob.v1alpha1.ppojob.dev"]}
    kueue.start(manageJobsWithoutQueueName=True, integrations={**given, **ours})
    queue(cluster, "all", "70m")
    # As docs/installing.md has it.
    reads = ("--verb=get,list,watch", "--resource=ppojobs.ppojob.dev")
    cluster.kubectl("create", "clusterrole", "kueue-ppojobs", *reads)
    account = "--serviceaccount=kueue-system:kueue-controller-manager"
    bound = ("kueue-ppojobs", "--clusterrole=kueue-ppojobs", account)
    cluster.kubectl("create", "clusterrolebinding", *bound)
    cluster.apply(queued("managed", "all"))
    placed(cluster, "managed")
    patch(cluster, "ppojob", "managed", spec={"lifecycle": {"suspend": True}})
    wait_for_pods(cluster, "managed", 0)
    patch(cluster, "ppojob", "managed", spec={"lifecycle": {"suspend": False}})
    placed(cluster, "managed")
    cluster.kubectl("delete", "ppojob", "managed")
    eventually(lambda: is_gone(cluster, "managed"))
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", "kueue-ppojobs")
