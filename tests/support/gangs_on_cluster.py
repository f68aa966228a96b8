"""Jobs whose pods are placed together on a test cluster, and an operator with the rights for it."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import node_gpus
import operator_rights
from cluster_access import Cluster, eventually
from cluster_jobs import claim, job, says, wait_for_pods
from operator_replica import Operator

SMALL = {"image": "localhost/ppojob/no-such-image:1", "resources": {"cpu": "10m"}}


@contextmanager
def operator_of(cluster: Cluster, folder: Path, *gangs: str) -> Iterator[Operator]:
    """An operator with no more rights than the chart grants for the gangs that are turned on."""
    volume, wanted = claim(cluster, "missing")
    cluster.apply(volume, wanted)
    rights = operator_rights.granting(cluster, *(f"gangs.{name}=true" for name in gangs))
    cluster.apply(*rights)
    kubeconfig = operator_rights.kubeconfig(cluster, folder)
    one = Operator(cluster, folder, "gangs", kubeconfig=kubeconfig, GANGS=",".join(gangs))
    yield one
    one.end()
    for each in (*rights, volume):
        cluster.kubectl("delete", each["kind"], each["metadata"]["name"], "--wait=false")
    # What was refused would be asked for again and again, and seen nowhere else.
    assert "is forbidden: User" not in (folder / "gangs.log").read_text()


def gang(name: str, scheduling: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return job(name, scheduling=scheduling, **{"pods": [SMALL], **spec})


@contextmanager
def fake_nodes(
    cluster: Cluster, labels: Mapping[str, Mapping[str, str]], room: Mapping[str, str], **spec: Any
) -> Iterator[None]:
    """More nodes with so much room, which stay ready."""
    real = cluster.get("nodes")["items"][0]["metadata"]["name"]
    size = {"cpu": "1", "memory": "4Gi", "pods": "20", **room}
    ready = [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]
    for name, own in labels.items():
        metadata = {"name": name, "labels": own, "annotations": {"kwok.x-k8s.io/node": real}}
        status = {"allocatable": size, "capacity": size, "conditions": ready}
        head = {"apiVersion": "v1", "kind": "Node"}
        cluster.apply({**head, "metadata": metadata, "spec": spec, "status": status})
    is_over = threading.Event()
    renewal = threading.Thread(target=_renew, args=(cluster, tuple(labels), is_over))
    renewal.start()
    try:
        yield
    finally:
        is_over.set()
        renewal.join()
        cluster.kubectl("delete", "node", *labels)


def _renew(cluster: Cluster, nodes: Sequence[str], is_over: threading.Event) -> None:
    """Renew the leases of nodes, which are not ready 40 s later; kwok refuses where it does so."""
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    where = ("--server-side", "--namespace=kube-node-lease", "--filename=-")
    while not is_over.wait(5.0):
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"leaseDurationSeconds": 40, "renewTime": now}
        leases = [
            {**head, "metadata": {"name": node}, "spec": {**spec, "holderIdentity": node}}
            for node in nodes
        ]
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": leases})
        cluster.outcome("apply", *where, stdin=listed)


def nodes(cluster: Cluster, name: str) -> list[str]:
    """Where the pods of a job are; empty for those that wait."""
    selector = f"--selector=ppojob.dev/job={name}"
    return [item["spec"].get("nodeName", "") for item in cluster.get("pods", selector)["items"]]


def admitted(cluster: Cluster, name: str) -> dict[str, str]:
    conditions = cluster.get("ppojob", name).get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "Admitted"), {})


def placed(cluster: Cluster, name: str, number: int = 4) -> None:
    """Wait until all pods of a job are on a node, and its status says so."""
    eventually(lambda: len(nodes(cluster, name)) == number and all(nodes(cluster, name)))
    eventually(lambda: admitted(cluster, name).get("status") == "True")


def never_hold_halves(
    cluster: Cluster,
    scheduling: dict[str, Any],
    gpu: str,
    look_again: Callable[[Cluster, str], None] = lambda *_: None,
) -> None:
    """Apply two jobs that fit one by one: one waits without a node until the other has gone."""
    roles = {"actorRollout": {"replicas": 2, "gpusPerReplica": 1}}
    pods = [{**SMALL, "gpuResource": gpu}]
    both = [gang(name, scheduling, roles=roles, pods=pods) for name in ("one", "two")]
    with node_gpus.offered(cluster, 3, resource=gpu):
        cluster.apply(*both)
        eventually(lambda: any(any(nodes(cluster, name)) for name in ("one", "two")))
        first = next(name for name in ("one", "two") if any(nodes(cluster, name)))
        second = "two" if first == "one" else "one"
        placed(cluster, first)
        says(cluster, second, "GangPending")
        assert nodes(cluster, second) == [""] * 4
        cluster.kubectl("delete", "ppojob", first)
        eventually(lambda: not nodes(cluster, first))
        look_again(cluster, second)
        placed(cluster, second)
        cluster.kubectl("delete", "ppojob", second)


def place_as_a_whole(
    cluster: Cluster,
    scheduling: dict[str, Any],
    gpu: str,
    group: str,
    *,
    why: str,
    look_again: Callable[[Cluster, str], None] = lambda *_: None,
) -> None:
    """A job that lacks one GPU has no pod on a node, and says why; then all have one."""
    roles = {"actorRollout": {"replicas": 2, "gpusPerReplica": 1}, "reward": {"replicas": 2}}
    whole = gang("whole", scheduling, roles=roles, pods=[{**SMALL, "gpuResource": gpu}])
    with node_gpus.offered(cluster, 1, resource=gpu):
        cluster.apply(whole)
        wait_for_pods(cluster, "whole", 5)
        says(cluster, "whole", "GangPending")
        eventually(lambda: why in admitted(cluster, "whole")["message"])
        # One of the two actors would find a place, and so would all other roles.
        assert nodes(cluster, "whole") == [""] * 5
    with node_gpus.offered(cluster, 2, resource=gpu):
        look_again(cluster, "whole")
        placed(cluster, "whole", 5)
        # The group is for those that come back as well.
        cluster.kubectl("delete", "pod", "whole-reward-0", "--wait=false")
        placed(cluster, "whole", 5)
        cluster.apply({**whole, "spec": {**whole["spec"], "lifecycle": {"suspend": True}}})
        wait_for_pods(cluster, "whole", 0)
        eventually(lambda: "NotFound" in cluster.outcome("get", group, "ppojob-whole"))
        cluster.apply({**whole, "spec": {**whole["spec"], "lifecycle": {"suspend": False}}})
        placed(cluster, "whole", 5)
    cluster.kubectl("delete", "ppojob", "whole")
    eventually(lambda: "NotFound" in cluster.outcome("get", group, "ppojob-whole"))
