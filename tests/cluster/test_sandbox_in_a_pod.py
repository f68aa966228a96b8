"""The programs of `hostile_programs.txt` in a reward pod, whose node makes it `restricted`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_table
import pytest
from cluster_access import REPOSITORY, Cluster
from operator_jobs import make_job
from operator_plans import look, made

pytestmark = [
    *(pytest.mark.cluster, pytest.mark.containers, pytest.mark.images),
    *(pytest.mark.slow, pytest.mark.timeout(3600)),
]

FILES = (
    Path(hostile_table.__file__),
    Path(hostile_table.__file__).with_name("hostile_programs.txt"),
    REPOSITORY / "benchmarks" / "sandbox_cost.py",
)
POD = "reward"
OWN_FOLDERS = ("scratch", "shm", "tmp")
"""Volumes that are no other object's."""
MOST_ADDED_MS = 50.0
"""What the sandbox may add to the median time of an empty program."""


def reward_pod(image: str) -> dict[str, Any]:
    """A reward pod as the operator makes it, with the files instead of a job's objects."""
    found = made(look(make_job(roles={"reward": {}})), "StatefulSet")
    (planned,) = (one for one in found if one["metadata"]["name"] == "sum-reward")
    spec = planned["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    def own(named: list[dict[str, Any]], **files: Any) -> list[dict[str, Any]]:
        return [*(one for one in named if one["name"] in OWN_FOLDERS), {"name": "files", **files}]

    asleep = {
        "name": container["name"],
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "securityContext": container["securityContext"],
        "resources": container["resources"],
        "volumeMounts": own(container["volumeMounts"], mountPath="/files"),
    }
    here = {
        "containers": [asleep],
        "volumes": own(spec["volumes"], configMap={"name": "files"}),
        "terminationGracePeriodSeconds": 0,
    }
    metadata = {"name": POD, "labels": planned["spec"]["template"]["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, **here}}


@pytest.fixture(scope="module")
def pod(cluster: Cluster, image_of: Any) -> Iterator[str]:
    image = image_of("trainer")
    content = {path.name: path.read_text(encoding="utf-8") for path in FILES}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}}
    cluster.apply({**files, "data": content}, reward_pod(image))
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=600s")
    yield POD
    cluster.kubectl("delete", "pod", POD, "--timeout=60s")


def test_a_hostile_program_gets_nothing(cluster: Cluster, pod: str) -> None:
    tried = "python -B /files/hostile_table.py || true"
    told = json.loads(cluster.execute(pod, "sh", "-c", tried))
    assert told.pop("level").startswith("sandbox level restricted (")
    table = hostile_table.read_table()
    assert told == {"tried": len(table), "user": 1000, "problems": {}}


def test_what_it_costs(cluster: Cluster, pod: str) -> None:
    told = json.loads(cluster.execute(pod, "python", "-B", "/files/sandbox_cost.py"))
    assert told["restricted_added_p50_ms"] <= MOST_ADDED_MS, told
