"""Jobs on a test cluster that are made and looked at, but train nothing."""

from pathlib import Path
from typing import Any

from cluster_access import Cluster, eventually
from operator_jobs import job_manifest


def job(name: str, claim: str = "missing", **spec: Any) -> dict[str, Any]:
    """A job of three roles and four pods, whose image is nowhere."""
    given = {
        "checkpoint": {"every": 2, "volume": {"claimName": claim}},
        "pods": [{"image": "localhost/ppojob/no-such-image:1"}],
        **spec,
    }
    return {**job_manifest(**given), "metadata": {"name": name}}


def volume_name(cluster: Cluster, claim_name: str) -> str:
    return f"{cluster.namespace}-{claim_name}"


def claim(
    cluster: Cluster, name: str, folder: Path | None = None, storage: str = "1Gi"
) -> list[dict[str, Any]]:
    """A volume of the node, which is this folder or any, and the claim that it is for."""
    own = volume_name(cluster, name)
    size = {"storage": storage}
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
        "spec": {**access, "resources": {"requests": size}, "volumeName": own},
    }
    return [volume, wanted]


def fake_pod(cluster: Cluster, image: str, name: str, slug: str, program: str) -> dict[str, Any]:
    """A pod that the command line takes for one of a job's, and that runs a Python program."""
    uid = cluster.read("ppojob", name, "{.metadata.uid}")
    labels = {"ppojob.dev/job": name, "ppojob.dev/job-uid": uid, "ppojob.dev/role": slug}
    container = restricted_container("trainer", image, "python3", "-u", "-c", program)
    return restricted_pod(f"{name}-{slug}-0", container, labels, terminationGracePeriodSeconds=0)


def restricted_container(name: str, image: str, *argv: str, **more: Any) -> dict[str, Any]:
    """A container that passes Pod Security `restricted`."""
    limits = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "command": list(argv),
        "securityContext": {**limits, "capabilities": {"drop": ["ALL"]}},
        **more,
    }


def restricted_pod(
    name: str, container: dict[str, Any], labels: dict[str, str], **spec: Any
) -> dict[str, Any]:
    """A pod that passes it."""
    user = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"securityContext": user, "containers": [container], **spec},
    }


def bound_role(
    name: str, rules: list[dict[str, Any]], *subjects: dict[str, str]
) -> list[dict[str, Any]]:
    """A Role, and the RoleBinding that gives it to these."""
    group = "rbac.authorization.k8s.io"
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    given = {"roleRef": {"apiGroup": group, "kind": "Role", "name": name}, "subjects": [*subjects]}
    return [{**head, "kind": "Role", "rules": rules}, {**head, "kind": "RoleBinding", **given}]


def pods(cluster: Cluster, name: str) -> list[str]:
    """The pods of a job, as `pod/NAME`."""
    selector = f"--selector=ppojob.dev/job={name}"
    return cluster.kubectl("get", "pods", selector, "--output=name").split()


def wait_for_pods(cluster: Cluster, name: str, number: int) -> None:
    eventually(lambda: len(pods(cluster, name)) == number)


def says(cluster: Cluster, name: str, word: str) -> None:
    eventually(lambda: cluster.read("ppojob", name, "{.status.reason}") == word)
