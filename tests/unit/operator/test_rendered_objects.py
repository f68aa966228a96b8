"""What the operator makes for a job, word for word, and what its settings make of pods.

That the golden pods pass Pod Security `restricted` is for the API server to say: tests/cluster.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from operator_jobs import CONFIG_DIGEST, config_digest, make_job
from rendered_pods import DEFAULTS, rendered

from ppojob_api.manifest import to_yaml
from ppojob_api.v1alpha1.pod_settings import PodSettings
from ppojob_operator.build.pod_template import pod_template
from ppojob_operator.situation import pod_config
from ppojob_operator.state import Job

GOLDEN = Path(__file__).with_name("rendered_objects.yaml")
PULLED = ("image", "imagePullPolicy")


def template_with(settings: dict[str, Any], job: Job | None = None) -> dict[str, Any]:
    job = job or make_job()
    config = pod_config(job, job.manifest)
    role = config.run.topology.role("actorRollout")
    return pod_template(job, config, role, PodSettings.model_validate(settings), DEFAULTS)


def container_with(settings: dict[str, Any], job: Job | None = None) -> dict[str, Any]:
    return template_with(settings, job)["spec"]["containers"][0]


def test_objects_of_a_job_word_for_word() -> None:
    """The run configuration aside, which has tests of its own.

    Among it: each object is the job's by its uid, a pod mounts its own role's keys and no others,
    and only the controller's has a token.
    """
    text = "---\n".join(to_yaml(one) for one in rendered(make_job()))
    text = re.sub(r"run.json: .*", "run.json: CONFIGURATION", text)
    text = re.sub(r"\b[0-9a-f]{64}\b|(?<=sum-config-)[0-9a-f]{10}", "DIGEST", text)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("settings", "resources"),
    [
        # A throttled rank would stall all others: cores are asked for and not capped.
        ({}, {"requests": {"cpu": "1"}}),
        (
            {"resources": {"cpu": "100m", "rdma/hca": "1"}},
            {"requests": {"cpu": "100m", "rdma/hca": "1"}, "limits": {"rdma/hca": "1"}},
        ),
    ],
)
def test_resources_of_a_pod(settings: dict[str, Any], resources: dict[str, Any]) -> None:
    assert container_with(settings)["resources"] == resources


def test_gpus_are_asked_for_by_name() -> None:
    job = make_job(roles={"actorRollout": {"replicas": 1, "gpusPerReplica": 1}})
    assert container_with({}, job)["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    named = container_with({"gpuResource": "amd.com/gpu", "memory": "64Gi"}, job)
    assert named["resources"]["limits"] == {"amd.com/gpu": "1", "memory": "64Gi"}


def test_the_claim_of_the_run_folder_is_mounted_a_second_time_from_one_volume() -> None:
    """As two volumes of one claim, one of them read-only, both would be read-only."""
    shared = [{"claimName": "runs", "mountPath": "/data"}, {"claimName": "o", "mountPath": "/o"}]
    spec = template_with({"volumes": shared})["spec"]
    claims = [one for one in spec["volumes"] if "persistentVolumeClaim" in one]
    assert [(one["name"], one["persistentVolumeClaim"]) for one in claims] == [
        ("run", {"claimName": "runs"}),
        ("user-1", {"claimName": "o", "readOnly": True}),
    ]
    mounts = {one["mountPath"]: one for one in spec["containers"][0]["volumeMounts"]}
    assert mounts["/data"] == {"name": "run", "mountPath": "/data", "readOnly": True}
    assert "readOnly" not in mounts["/ppojob/run"]


def test_settings_of_pods_reach_the_template() -> None:
    template = template_with(
        {
            "sharedMemory": "4Gi",
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "priorityClassName": "high",
            "topologySpread": [{"topologyKey": "zone"}],
            "env": [{"name": "HF_TOKEN", "secret": {"name": "hub", "key": "token"}}],
        }
    )
    spec = template["spec"]
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"pool": "gpu"}, "high")
    assert {"key": "gpu", "operator": "Exists"} in spec["tolerations"]
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "zone"
    secret = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": secret} in spec["containers"][0]["env"]
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}
    assert shm in spec["volumes"]


def test_the_pull_policy_of_the_operator_is_for_its_own_image() -> None:
    """What Kubernetes does with `:latest` is right for a job's; `Never` may not fit it at all."""

    def pulled(settings: dict[str, Any]) -> dict[str, str]:
        container = container_with(settings)
        return {name: container[name] for name in PULLED if name in container}

    assert pulled({}) == {"image": "trainer:1", "imagePullPolicy": "IfNotPresent"}
    for text in ("mine:latest", DEFAULTS.image):
        assert pulled({"image": text}) == {"image": text}


def test_overrides_never_replace_our_labels() -> None:
    spoofed = {"metadata": {"labels": {"team": "a", "ppojob.dev/job-uid": "another"}}}
    template = template_with({"podOverrides": {**spoofed, "spec": {"schedulerName": "mine"}}})
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["labels"]["ppojob.dev/job-uid"] == make_job().uid
    assert template["spec"]["schedulerName"] == "mine"


@pytest.mark.parametrize(
    "lifecycle", [{"suspend": True}, {"activeDeadlineSeconds": 60}, {"ttlSecondsAfterFinished": 60}]
)
def test_the_lifecycle_gives_pods_nothing_new_to_read(lifecycle: dict[str, Any]) -> None:
    assert config_digest(make_job(lifecycle=lifecycle)) == CONFIG_DIGEST
