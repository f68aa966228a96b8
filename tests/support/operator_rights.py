"""The operator's rights as the chart grants them, for an operator that runs beside the cluster."""

from pathlib import Path
from typing import Any

import pytest
from chart_programs import helm
from cluster_access import Cluster
from ruamel.yaml import YAML

ACCOUNT = "ppojob-operator"
_GRANTING = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def granting(cluster: Cluster, *values: str) -> list[dict[str, Any]]:
    """What of the chart grants rights in the namespace of the test alone, with these values."""
    names = [f"--namespace={cluster.namespace}", f"--set=watchNamespaces={{{cluster.namespace}}}"]
    done = helm("template", ACCOUNT, *names, *(f"--set={value}" for value in values))
    if done.returncode:
        pytest.fail(f"helm template: {done.stderr}")
    found = YAML(typ="safe").load_all(done.stdout)
    return [
        {**one, "metadata": {"namespace": cluster.namespace, **one["metadata"]}}
        for one in found
        if one and one["kind"] in _GRANTING
    ]


def kubeconfig(cluster: Cluster, folder: Path, account: str = ACCOUNT, namespace: str = "") -> Path:
    """The way to the API server with no rights but those of an account, the operator's or other."""
    yaml = YAML(typ="safe")
    config = yaml.load(cluster.folder / "kubeconfig")
    where = (f"--namespace={namespace}",) if namespace else ()
    token = cluster.kubectl("create", "token", account, "--duration=2h", *where).strip()
    (context,) = config["contexts"]
    config["users"] = [{"name": context["context"]["user"], "user": {"token": token}}]
    path = folder / f"{account}.kubeconfig"
    yaml.dump(config, path)
    return path
