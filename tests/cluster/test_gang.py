"""Pods that are placed together: by the real scheduler, and by stand-ins of Kueue and Volcano."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_gpus
import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import says, wait_for_pods
from gangs_on_cluster import SMALL, admitted, gang, nodes, operator_of
from operator_replica import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STAND_INS = Path(__file__).parent / "stand_ins"
WORKLOAD = "workloads.v1alpha2.scheduling.k8s.io"
POD_GROUP = "podgroups.v1alpha2.scheduling.k8s.io"
KUEUE = "workloads.kueue.x-k8s.io"
VOLCANO = "podgroups.scheduling.volcano.sh"
GPU = "example.com/gpu-of-test-gang"
"""A device that no other test of the node asks for."""
GANGS = ("kueue", "volcano", "workload")


@pytest.fixture(scope="module")
def operator(cluster, crd, tmp_path_factory) -> Iterator[Operator]:
    with operator_of(cluster, tmp_path_factory.mktemp("operators"), *GANGS) as one:
        yield one


def write_status(cluster: Cluster, kind: str, name: str, **status: Any) -> None:
    """Write what the queue would; conditions by type, others as they are."""
    there = cluster.get(kind, name).get("status", {})
    conditions = {one["type"]: one for one in there.get("conditions", ())}
    for one in status.pop("conditions", ()):
        time = {"lastTransitionTime": "2026-01-02T03:04:05Z"}
        conditions[one["type"]] = {"reason": "Test", "message": "", **one, **time}
    patch = {"status": {**status, "conditions": list(conditions.values())}}
    where = ("--subresource=status",) if kind == KUEUE else ()
    cluster.kubectl("patch", kind, name, *where, "--type=merge", f"--patch={json.dumps(patch)}")


def test_a_gang_that_does_not_fit_binds_no_pod_and_all_when_it_does(cluster, operator):
    roles = {"actorRollout": {"replicas": 2, "gpusPerReplica": 1}, "reward": {"replicas": 2}}
    pods = [{**SMALL, "gpuResource": GPU}]
    whole = gang("whole", {"type": "workload"}, roles=roles, pods=pods)
    with node_gpus.offered(cluster, 1, resource=GPU):
        cluster.apply(whole)
        wait_for_pods(cluster, "whole", 5)
        says(cluster, "whole", "GangPending")
        eventually(lambda: "unschedulable" in admitted(cluster, "whole")["message"].lower())
        # One of the two actors would find a place, and so would all other roles.
        assert nodes(cluster, "whole") == [""] * 5
        assert cluster.read("ppojob", "whole", "{.status.phase}") == "Starting"
    with node_gpus.offered(cluster, 2, resource=GPU):
        eventually(lambda: all(nodes(cluster, "whole")))
        eventually(lambda: admitted(cluster, "whole")["status"] == "True")
        assert admitted(cluster, "whole")["reason"] == "Placed"
        # The group is for those that come back as well.
        cluster.kubectl("delete", "pod", "whole-reward-0", "--wait=false")
        eventually(lambda: len(nodes(cluster, "whole")) == 5 and all(nodes(cluster, "whole")))
        cluster.apply({**whole, "spec": {**whole["spec"], "lifecycle": {"suspend": True}}})
        wait_for_pods(cluster, "whole", 0)
    eventually(lambda: "NotFound" in cluster.outcome("get", POD_GROUP, "ppojob-whole"))
    eventually(lambda: "NotFound" in cluster.outcome("get", WORKLOAD, "ppojob-whole"))
    cluster.kubectl("delete", "ppojob", "whole")


def test_two_gangs_that_fit_one_by_one_never_hold_halves(cluster: Cluster, operator: Operator):
    roles = {"actorRollout": {"replicas": 2, "gpusPerReplica": 1}}
    pods = [{**SMALL, "gpuResource": GPU}]
    both = [gang(name, {"type": "workload"}, roles=roles, pods=pods) for name in ("one", "two")]
    with node_gpus.offered(cluster, 3, resource=GPU):
        cluster.apply(*both)
        for name in ("one", "two"):
            wait_for_pods(cluster, name, 4)
        eventually(lambda: any(all(nodes(cluster, name)) for name in ("one", "two")))
        first = next(name for name in ("one", "two") if all(nodes(cluster, name)))
        second = "two" if first == "one" else "one"
        says(cluster, second, "GangPending")
        assert nodes(cluster, second) == [""] * 4
        cluster.kubectl("delete", "ppojob", first)
        eventually(lambda: all(nodes(cluster, second)))
        cluster.kubectl("delete", "ppojob", second)
        eventually(lambda: not nodes(cluster, second))


def test_who_places_a_job_never_changes(cluster: Cluster, operator: Operator):
    cluster.apply(gang("steady", {"type": "workload"}))
    changed = json.dumps(gang("steady", {"type": "none"}))
    why = cluster.refused("apply", "--server-side", "--filename=-", stdin=changed)
    assert "spec.scheduling.type" in why
    cluster.kubectl("delete", "ppojob", "steady")


def test_a_gang_that_was_suspended_is_placed_in_its_new_size(cluster: Cluster, operator: Operator):
    """Of the role that it has no more the Service goes, by what the chart grants."""

    def size() -> int:
        policy = cluster.get(POD_GROUP, "ppojob-sized")["spec"]["schedulingPolicy"]
        number: int = policy["gang"]["minCount"]
        return number

    def edit(**spec: Any) -> None:
        change = f"--patch={json.dumps({'spec': spec})}"
        cluster.kubectl("patch", "ppojob", "sized", "--type=merge", change)

    cluster.apply(gang("sized", {"type": "workload"}, roles={"rollout": {"replicas": 2}}))
    eventually(lambda: len(nodes(cluster, "sized")) == 5 and all(nodes(cluster, "sized")))
    assert size() == 5
    edit(lifecycle={"suspend": True})
    says(cluster, "sized", "JobSuspended")
    edit(lifecycle={"suspend": False}, roles={"rollout": None, "reward": {"replicas": 4}})
    eventually(lambda: len(nodes(cluster, "sized")) == 6 and all(nodes(cluster, "sized")))
    assert size() == 6
    eventually(lambda: "NotFound" in cluster.outcome("get", "service", "sized-rollout"))
    cluster.kubectl("delete", "ppojob", "sized")
    eventually(lambda: not nodes(cluster, "sized"))


@pytest.fixture
def kueue(cluster: Cluster, operator: Operator) -> Iterator[None]:
    """Kueue is installed while the operator runs, which a job of it waits for."""
    priority = {"queueName": "team-a", "priorityClassName": f"urgent-{cluster.namespace}"}
    cluster.apply(gang("queued", {"type": "kueue", "kueue": priority}))
    says(cluster, "queued", "GangUnavailable")
    cluster.kubectl("apply", f"--filename={STAND_INS / 'kueue.yaml'}")
    cluster.establish(KUEUE)
    yield
    cluster.kubectl("delete", f"--filename={STAND_INS / 'kueue.yaml'}")


def finished(cluster: Cluster) -> dict[str, str]:
    """What the queue is told of the end."""
    conditions = cluster.get(KUEUE, "ppojob-queued")["status"]["conditions"]
    return next((one for one in conditions if one["type"] == "Finished"), {})


def test_a_queue_of_kueue_admits_and_evicts(cluster: Cluster, kueue: None):
    flavor, urgent = f"flavor-{cluster.namespace}", f"urgent-{cluster.namespace}"
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    taint = {"key": "queue", "operator": "Exists"}
    says(cluster, "queued", "PriorityClassMissing")
    cluster.apply(
        {**head, "kind": "WorkloadPriorityClass", "metadata": {"name": urgent}, "value": 7},
        {
            **head,
            "kind": "ResourceFlavor",
            "metadata": {"name": flavor},
            "spec": {"nodeLabels": {"queue": "a"}, "tolerations": [taint]},
        },
    )
    says(cluster, "queued", "Queued")
    workload = cluster.get(KUEUE, "ppojob-queued")
    assert workload["spec"]["priority"] == 7
    assert workload["metadata"]["ownerReferences"][0]["kind"] == "PPOJob"
    counts = {one["name"]: one["count"] for one in workload["spec"]["podSets"]}
    assert counts == {"actor-rollout": 1, "controller": 1, "reward": 2}
    assert not nodes(cluster, "queued")

    reserved = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "full"}
    write_status(cluster, KUEUE, "ppojob-queued", conditions=[reserved])
    says(cluster, "queued", "Pending")
    assert cluster.read("ppojob", "queued", "{.status.message}") == "full"

    flavors = [{"name": name, "flavors": {"cpu": flavor}} for name in counts]
    admission = {"clusterQueue": "everybody", "podSetAssignments": flavors}
    yes = [{"type": name, "status": "True"} for name in ("QuotaReserved", "Admitted")]
    write_status(cluster, KUEUE, "ppojob-queued", conditions=yes, admission=admission)
    wait_for_pods(cluster, "queued", 4)
    pod = cluster.get("pod", "queued-reward-1")
    assert pod["spec"]["nodeSelector"] == {"queue": "a"}
    assert taint in pod["spec"]["tolerations"]
    eventually(lambda: admitted(cluster, "queued")["status"] == "True")

    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "for two"}
    write_status(cluster, KUEUE, "ppojob-queued", conditions=[evicted])
    wait_for_pods(cluster, "queued", 0)
    eventually(lambda: "admission" not in cluster.get(KUEUE, "ppojob-queued")["status"])
    after = cluster.get(KUEUE, "ppojob-queued")
    said = {one["type"]: one["status"] for one in after["status"]["conditions"]}
    assert after["metadata"]["uid"] == workload["metadata"]["uid"], "its place in the queue stays"
    assert (said["QuotaReserved"], said["Admitted"], said["Requeued"]) == ("False", "False", "True")
    assert admitted(cluster, "queued")["reason"] == "Preempted"
    assert cluster.read("ppojob", "queued", "{.status.phase}") == "Pending"

    no = {"type": "Evicted", "status": "False", "reason": "QuotaReserved"}
    write_status(cluster, KUEUE, "ppojob-queued", conditions=[no, *yes], admission=admission)
    wait_for_pods(cluster, "queued", 4)
    limit = json.dumps({"spec": {"lifecycle": {"activeDeadlineSeconds": 1}}})
    cluster.kubectl("patch", "ppojob", "queued", "--type=merge", f"--patch={limit}")
    says(cluster, "queued", "DeadlineExceeded")

    eventually(lambda: finished(cluster).get("reason") == "Failed")
    assert finished(cluster)["message"].startswith("DeadlineExceeded: ")
    cluster.kubectl("delete", "ppojob", "queued")
    eventually(lambda: "NotFound" in cluster.outcome("get", KUEUE, "ppojob-queued"))


def test_a_group_of_volcano_is_told_of_by_every_pod(cluster: Cluster, operator: Operator):
    cluster.kubectl("apply", f"--filename={STAND_INS / 'volcano.yaml'}")
    try:
        cluster.establish(VOLCANO)
        cluster.apply(gang("lava", {"type": "volcano", "volcano": {"queue": "research"}}))
        wait_for_pods(cluster, "lava", 4)
        group = cluster.get(VOLCANO, "ppojob-lava")
        assert group["spec"]["minMember"] == 4
        assert group["spec"]["queue"] == "research"
        assert group["spec"]["minResources"] == {"cpu": "40m"}
        pod = cluster.get("pod", "lava-controller-0")
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "ppojob-lava"
        words = {"reason": "NotEnoughResources", "message": "4/4 tasks in gang unschedulable"}
        short = {"type": "Unschedulable", "status": "True", **words}
        write_status(cluster, VOLCANO, "ppojob-lava", conditions=[short])
        eventually(lambda: words["message"] in admitted(cluster, "lava")["message"])
        assert admitted(cluster, "lava")["reason"] == "GangPending"
        cluster.kubectl("delete", "ppojob", "lava")
        eventually(lambda: "NotFound" in cluster.outcome("get", VOLCANO, "ppojob-lava"))
    finally:
        cluster.kubectl("delete", f"--filename={STAND_INS / 'volcano.yaml'}")
