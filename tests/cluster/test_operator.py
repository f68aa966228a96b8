"""The operator against a real API server, scheduler and kubelet; its pods pass `restricted`."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster, eventually
from cluster_jobs import claim, job, says, wait_for_pods
from gangs_on_cluster import nodes
from operator_replica import Operator
from pod_faults import evict

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

KINDS = "statefulsets,services,configmaps,secrets,serviceaccounts,roles,rolebindings"
KINDS += ",networkpolicies,poddisruptionbudgets"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operators")


@pytest.fixture
def operator(cluster: Cluster, crd: None, logs: Path) -> Iterator[Operator]:
    one = Operator(cluster, logs, "first")
    yield one
    if one.process.poll() is None:
        one.end()


def children(cluster: Cluster, name: str) -> dict[tuple[str, str], Any]:
    """The objects of a job by kind and name, without what the API server numbers."""
    listed = cluster.get(KINDS, f"--selector=ppojob.dev/job={name}")
    return {
        (item["kind"], item["metadata"]["name"]): {
            key: value for key, value in item.items() if key not in {"metadata", "status"}
        }
        for item in listed["items"]
    }


@pytest.mark.containers
def test_the_words_of_scheduler_and_kubelet_reach_the_status(cluster, operator) -> None:
    cluster.apply(job("words"))
    wait_for_pods(cluster, "words", 4)
    says(cluster, "words", "Unschedulable")
    assert 'persistentvolumeclaim "missing" not found' in cluster.read(
        "ppojob", "words", "{.status.message}"
    )
    cluster.apply(*claim(cluster, "missing"))
    says(cluster, "words", "ImageUnavailable")
    assert "no-such-image" in cluster.read("ppojob", "words", "{.status.message}")
    told = cluster.kubectl("get", "events", "--field-selector=involvedObject.kind=PPOJob")
    assert "Unschedulable" in told
    assert "ImageUnavailable" in told
    cluster.kubectl("delete", "ppojob", "words")
    eventually(lambda: not children(cluster, "words"))


def test_who_denies_pods_is_told(cluster, operator) -> None:
    # That of the namespace's quota; Kubernetes itself tells it of the StatefulSet alone.
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}}
    cluster.apply({**quota, "spec": {"hard": {"pods": "0"}}})
    cluster.apply(job("denied"))
    says(cluster, "denied", "PodsDenied")
    assert "exceeded quota: small" in cluster.read("ppojob", "denied", "{.status.message}")
    cluster.kubectl("delete", "resourcequota", "small")
    cluster.kubectl("delete", "ppojob", "denied")
    eventually(lambda: not children(cluster, "denied"))


def test_a_drain_that_leaves_no_place_takes_every_pod(cluster, operator) -> None:
    # As on a node that is cordoned, but for the pods of other tests.
    (node,) = (one["metadata"]["name"] for one in cluster.get("nodes")["items"])
    place = cluster.namespace
    cluster.kubectl("label", "node", node, f"{place}=here")
    small = {"image": "localhost/none:1", "resources": {"cpu": "10m"}}
    pods = [{**small, "nodeSelector": {place: "here"}}]
    cluster.apply(*claim(cluster, "drained"), job("drained", "drained", pods=pods))
    eventually(lambda: nodes(cluster, "drained") == [node] * 4)
    cluster.kubectl("label", "node", node, f"{place}-")
    for pod in ("controller-0", "actor-rollout-0", "reward-0", "reward-1"):
        evict(cluster, f"drained-{pod}")
    says(cluster, "drained", "Unschedulable")
    cluster.kubectl("delete", "ppojob", "drained")
    eventually(lambda: not children(cluster, "drained"))


def test_a_claim_that_is_made_outlives_its_job(cluster, operator) -> None:
    kept = job("kept", checkpoint={"volume": {"size": "1Mi", "accessMode": "ReadWriteOnce"}})
    gone = job("gone", checkpoint={"volume": {"size": "1Mi", "whenDeleted": "Delete"}})
    cluster.apply(kept, gone)
    for name in ("kept", "gone"):
        wait_for_pods(cluster, name, 4)
    (claim,) = cluster.get("pvc", "--selector=ppojob.dev/job=kept")["items"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    cluster.kubectl("delete", "ppojob", "kept", "gone")
    eventually(lambda: not (children(cluster, "kept") or children(cluster, "gone")))
    eventually(lambda: not cluster.get("pvc", "--selector=ppojob.dev/job=gone")["items"])
    cluster.apply(kept)
    says(cluster, "kept", "ObjectRefused")
    cluster.kubectl("delete", "pvc", "kept-run")
    wait_for_pods(cluster, "kept", 4)
    cluster.kubectl("delete", "ppojob", "kept")
    eventually(lambda: not children(cluster, "kept"))


def test_what_is_deleted_or_edited_by_hand_is_put_right(cluster, operator) -> None:
    cluster.apply(job("restored"))
    wait_for_pods(cluster, "restored", 4)
    before = children(cluster, "restored")
    assert len(before) == 3 * 3 + 6
    for kind, name in before:
        if kind not in {"Secret", "StatefulSet"}:
            cluster.kubectl("delete", kind, name, "--wait=false")
    cluster.kubectl("scale", "statefulset", "restored-reward", "--replicas=0")
    cluster.kubectl("delete", "statefulset", "restored-actor-rollout")
    eventually(lambda: children(cluster, "restored") == before)
    wait_for_pods(cluster, "restored", 4)
    cluster.kubectl("delete", "ppojob", "restored")


def test_a_job_is_deleted_while_no_operator_runs(cluster: Cluster, operator: Operator) -> None:
    cluster.apply(job("alone"))
    wait_for_pods(cluster, "alone", 4)
    operator.end(signal.SIGKILL)
    cluster.kubectl("delete", "ppojob", "alone", "--timeout=20s")
    eventually(lambda: not children(cluster, "alone"))
    wait_for_pods(cluster, "alone", 0)
