"""Jobs on a test cluster that are made and looked at, but train nothing."""

from pathlib import Path
from typing import Any

from cluster_access import Cluster, eventually


def job(name: str, claim: str = "missing", **spec: Any) -> dict[str, Any]:
    """A job of three roles and four pods, whose image is nowhere."""
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


def volume_name(cluster: Cluster, claim_name: str) -> str:
    """The PersistentVolume of a claim of the namespace."""
    return f"{cluster.namespace}-{claim_name}"


def claim(cluster: Cluster, name: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """A volume of the node, and the claim that it is for.

    Args:
        cluster: with the namespace of the claim.
        name: of the claim.
        folder: that is the volume; None: any, and empty.
    """
    own = volume_name(cluster, name)
    size = {"storage": "1Gi"}
    host = {"path": f"/tmp/{cluster.namespace}", "type": "DirectoryOrCreate"}
    if folder is not None:
        host = {"path": str(folder), "type": "Directory"}
    access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": own},
        "spec": {
            **access,
            "capacity": size,
            "hostPath": host,
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
            "volumeName": own,
        },
    }
    return [volume, wanted]


def stand_in(cluster: Cluster, image: str, name: str, slug: str, program: str) -> dict[str, Any]:
    """A pod that the command line takes for one of a job's, and that runs a Python program."""
    uid = cluster.read("ppojob", name, "{.metadata.uid}")
    labels = {"ppojob.dev/job": name, "ppojob.dev/job-uid": uid, "ppojob.dev/role": slug}
    limits = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    security = {"runAsNonRoot": True, "runAsUser": 1000}
    container = {
        "name": "trainer",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python3", "-u", "-c", program],
        "securityContext": {**limits, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-{slug}-0", "labels": labels},
        "spec": {
            "securityContext": {**security, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def wait_for_pods(cluster: Cluster, name: str, number: int) -> None:
    """Wait until a job has so many pods."""

    def pods() -> bool:
        selector = f"--selector=ppojob.dev/job={name}"
        return len(cluster.kubectl("get", "pods", selector, "--output=name").split()) == number

    eventually(pods)


def says(cluster: Cluster, name: str, word: str) -> None:
    """Wait until the status of a job has a reason."""
    eventually(lambda: cluster.read("ppojob", name, "{.status.reason}") == word)
