"""The operator against a real API server, scheduler and kubelet; its pods pass `restricted`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

KINDS = "statefulsets,services,configmaps,secrets,serviceaccounts,roles,rolebindings"
KINDS += ",networkpolicies,poddisruptionbudgets"


class Operator:
    """A replica that runs on this machine, for the namespace of the test alone."""

    def __init__(self, cluster: Cluster, logs: Path, name: str, port: int) -> None:
        environment = {
            **os.environ,
            "KUBECONFIG": str(cluster.folder / "kubeconfig"),
            "PPOJOB_OPERATOR_NAMESPACE": cluster.namespace,
            "PPOJOB_OPERATOR_WATCH_NAMESPACES": cluster.namespace,
            "PPOJOB_OPERATOR_IDENTITY": name,
            "PPOJOB_OPERATOR_LEASE_SECONDS": "4",
            "PPOJOB_OPERATOR_METRICS_PORT": "0",
            "PPOJOB_OPERATOR_LIVENESS_PORT": str(port),
        }
        environment = {key: text for key, text in environment.items() if "proxy" not in key.lower()}
        with (logs / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ppojob_operator"],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operators")


@pytest.fixture(scope="module")
def crd(cluster: Cluster) -> None:
    file = Path(__file__).parents[2] / "crds" / "ppojobs.yaml"
    cluster.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={file}")
    cluster.kubectl("wait", "--for=condition=Established", "crd/ppojobs.ppojob.dev")


@pytest.fixture
def operator(cluster: Cluster, crd: None, logs: Path) -> Iterator[Operator]:
    one = Operator(cluster, logs, "first", 18191)
    yield one
    if one.process.poll() is None:
        one.end()


def job(name: str, claim: str = "missing", **spec: Any) -> dict[str, Any]:
    whole = {
        "model": {"path": "/models/tiny"},
        "data": {"train": [{"path": "/data/train.jsonl"}]},
        "algorithm": {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2},
        "steps": {"total": 8},
        "checkpoint": {"every": 2, "volume": {"claimName": claim}},
        "roles": {"reward": {"replicas": 2}},
        "pods": [{"image": "localhost/ppojob/no-such-image:1"}],
        **spec,
    }
    head = {"apiVersion": "ppojob.dev/v1alpha1", "kind": "PPOJob"}
    return {**head, "metadata": {"name": name}, "spec": whole}


def children(cluster: Cluster, name: str) -> dict[tuple[str, str], Any]:
    """The objects of a job by kind and name, without what the API server numbers."""
    listed = cluster.kubectl("get", KINDS, f"--selector=ppojob.dev/job={name}", "--output=json")
    return {
        (item["kind"], item["metadata"]["name"]): {
            key: value for key, value in item.items() if key not in {"metadata", "status"}
        }
        for item in json.loads(listed)["items"]
    }


def wait_for_pods(cluster: Cluster, name: str, number: int) -> None:
    def pods() -> bool:
        selector = f"--selector=ppojob.dev/job={name}"
        return len(cluster.kubectl("get", "pods", selector, "--output=name").split()) == number

    eventually(pods)


def says(cluster: Cluster, name: str, word: str) -> None:
    eventually(lambda: cluster.read("ppojob", name, "{.status.reason}") == word)


def test_the_words_of_scheduler_and_kubelet_reach_the_status(cluster: Cluster, operator: Operator):
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


def claim(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """A volume of the node, and the claim that it is for."""
    size = {"storage": "1Mi"}
    access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{cluster.namespace}-{name}"},
        "spec": {
            **access,
            "capacity": size,
            "hostPath": {"path": f"/tmp/{cluster.namespace}", "type": "DirectoryOrCreate"},
            "claimRef": {"namespace": cluster.namespace, "name": name},
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            **access,
            "resources": {"requests": size},
            "volumeName": volume["metadata"]["name"],
        },
    }
    return [volume, wanted]


def test_what_is_deleted_or_edited_by_hand_is_put_right(cluster: Cluster, operator: Operator):
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


def test_a_job_is_deleted_while_no_operator_runs(cluster: Cluster, operator: Operator):
    cluster.apply(job("alone"))
    wait_for_pods(cluster, "alone", 4)
    operator.end(signal.SIGKILL)
    cluster.kubectl("delete", "ppojob", "alone", "--timeout=20s")
    eventually(lambda: not children(cluster, "alone"))
    wait_for_pods(cluster, "alone", 0)


def test_suspended_and_resumed(cluster: Cluster, operator: Operator):
    cluster.apply(job("paused"))
    wait_for_pods(cluster, "paused", 4)
    keys = {key: one for key, one in children(cluster, "paused").items() if key[0] == "Secret"}
    cluster.apply(job("paused", lifecycle={"suspend": True}))
    says(cluster, "paused", "Asked")
    wait_for_pods(cluster, "paused", 0)
    assert cluster.read("ppojob", "paused", "{.status.phase}") == "Suspended"
    cluster.apply(job("paused"))
    wait_for_pods(cluster, "paused", 4)
    after = children(cluster, "paused")
    assert {key: after[key] for key in keys} == keys
    cluster.kubectl("delete", "ppojob", "paused")


def test_wrong_jobs_get_no_pods(cluster: Cluster, operator: Operator):
    refused = cluster.refused("apply", "--filename=-", stdin=json.dumps(job("Upper_Case")))
    assert "metadata.name" in refused
    cluster.apply(job("nowhere", checkpoint={"every": 2}))
    says(cluster, "nowhere", "InvalidSpec")
    assert cluster.read("ppojob", "nowhere", "{.status.message}").startswith(
        "spec.checkpoint.volume: got nothing"
    )
    overridden = [{"podOverrides": {"spec": {"hostNetwork": True}}}]
    cluster.apply(job("escape", pods=overridden))
    says(cluster, "escape", "InvalidSpec")
    assert not children(cluster, "escape")
    cluster.kubectl("delete", "ppojob", "nowhere", "escape")


def test_a_frozen_leader_is_replaced_and_harmless_when_it_thaws(
    cluster: Cluster, operator: Operator, logs: Path
):
    def holder() -> str:
        return cluster.read("lease", "ppojob-operator", "{.spec.holderIdentity}")

    cluster.apply(job("twice"))
    wait_for_pods(cluster, "twice", 4)
    before = children(cluster, "twice")
    second = Operator(cluster, logs, "second", 18192)
    try:
        assert holder() == "first"
        operator.process.send_signal(signal.SIGSTOP)
        eventually(lambda: holder() == "second")
        cluster.kubectl("delete", "service", "twice-reward", "--wait=false")
        eventually(lambda: children(cluster, "twice") == before)
        operator.process.send_signal(signal.SIGCONT)
        cluster.apply(job("after"))
        wait_for_pods(cluster, "after", 4)
        assert holder() == "second"
        assert children(cluster, "twice") == before
        cluster.kubectl("delete", "ppojob", "twice", "after")
    finally:
        operator.process.send_signal(signal.SIGCONT)
        second.end()
