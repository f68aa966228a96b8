"""What the operator makes for a job, word for word, and by the rules of Pod Security."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from operator_jobs import make_job

from ppojob_api.manifest import to_yaml
from ppojob_api.v1alpha1.pod_settings import PodSettings
from ppojob_operator.build.objects import bindings, key_templates, stateful_sets, surroundings
from ppojob_operator.build.pod_template import Defaults, pod_template
from ppojob_operator.situation import pod_config
from ppojob_operator.state import Job

GOLDEN = Path(__file__).with_name("rendered_objects.yaml")
DEFAULTS = Defaults("trainer:1", "IfNotPresent", "nvidia.com/gpu")
PULLED = ("image", "imagePullPolicy")
GPU_ROLE = {"actorRollout": {"replicas": 1, "gpusPerReplica": 1}}


def rendered(job: Job) -> list[dict[str, Any]]:
    assert job.manifest is not None
    config = pod_config(job, job.manifest)
    keys = [dict(one) for one in key_templates(job, config).values()]
    sets = stateful_sets(
        job, config, config.run.topology.with_own_pods, job.manifest.spec.pods, DEFAULTS
    )
    return [*surroundings(job, config), *bindings(job), *keys, *sets]


def templates(job: Job) -> list[dict[str, Any]]:
    return [one["spec"]["template"] for one in rendered(job) if one["kind"] == "StatefulSet"]


def template_with(settings: dict[str, Any], job: Job | None = None) -> dict[str, Any]:
    job = job or make_job()
    assert job.manifest is not None
    config = pod_config(job, job.manifest)
    role = config.run.topology.role("actorRollout")
    return pod_template(job, config, role, PodSettings.model_validate(settings), DEFAULTS)


def test_objects_of_a_job_word_for_word() -> None:
    """The run configuration aside, which has tests of its own."""
    text = "---\n".join(to_yaml(one) for one in rendered(make_job()))
    text = re.sub(r"run.json: .*", "run.json: CONFIGURATION", text)
    text = re.sub(r"\b[0-9a-f]{64}\b|(?<=sum-config-)[0-9a-f]{10}", "DIGEST", text)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_every_object_has_its_owner_and_labels() -> None:
    job = make_job()
    for one in rendered(job):
        metadata = one["metadata"]
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == [job.uid]
        assert metadata["labels"]["ppojob.dev/job-uid"] == job.uid
        assert len(metadata["name"]) <= 63


def test_selectors_go_by_the_uid() -> None:
    for one in rendered(make_job()):
        if one["kind"] in {"Service", "NetworkPolicy", "PodDisruptionBudget", "StatefulSet"}:
            spec = one["spec"]
            found = spec.get("podSelector") or spec["selector"]
            assert found.get("matchLabels", found)["ppojob.dev/job-uid"] == make_job().uid


def test_pods_are_restricted() -> None:
    """The rules of Pod Security `restricted` that say anything about such a pod."""
    for template in templates(make_job()):
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in spec["volumes"]:
            assert len(set(volume) - {"name"}) == 1
            assert set(volume) - {"name"} <= {
                "configMap",
                "emptyDir",
                "persistentVolumeClaim",
                "secret",
            }
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert all("hostPort" not in port for port in container["ports"])


def test_only_the_controller_has_a_token() -> None:
    tokens = {
        template["metadata"]["labels"]["ppojob.dev/role"]: (
            template["spec"]["automountServiceAccountToken"],
            template["spec"].get("serviceAccountName"),
        )
        for template in templates(make_job())
    }
    assert tokens.pop("controller") == (True, "sum-controller")
    assert set(tokens.values()) == {(False, None)}


def test_a_pod_mounts_its_own_keys_alone() -> None:
    for template in templates(make_job()):
        role = template["metadata"]["labels"]["ppojob.dev/role"]
        keys = [one for one in template["spec"]["volumes"] if "secret" in one]
        assert [one["secret"]["secretName"] for one in keys] == [f"sum-{role}"]
        assert [item["path"] for item in keys[0]["secret"]["items"]] == ["role.key", "public.json"]


def test_gpus_are_asked_for_by_name() -> None:
    job = make_job(roles=GPU_ROLE)
    resources = template_with({}, job)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "1"}
    named = template_with({"gpuResource": "amd.com/gpu", "memory": "64Gi"}, job)
    resources = named["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"amd.com/gpu": "1", "memory": "64Gi"}


def test_cores_are_asked_for_and_not_capped() -> None:
    """A throttled rank would stall all others; on a small node a job may ask for less."""
    asked = template_with({})["spec"]["containers"][0]["resources"]
    assert asked == {"requests": {"cpu": "1"}}
    less = template_with({"resources": {"cpu": "100m", "rdma/hca": "1"}})
    resources = less["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "100m", "rdma/hca": "1"}
    assert resources["limits"] == {"rdma/hca": "1"}


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
            "image": "mine:2",
            "sharedMemory": "4Gi",
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "priorityClassName": "high",
            "topologySpread": [{"topologyKey": "zone"}],
            "env": [{"name": "HF_TOKEN", "secret": {"name": "hub", "key": "token"}}],
            "volumes": [{"claimName": "data", "mountPath": "/data"}],
        }
    )
    spec = template["spec"]
    container = spec["containers"][0]
    assert (container["image"], spec["nodeSelector"]) == ("mine:2", {"pool": "gpu"})
    assert spec["priorityClassName"] == "high"
    assert {"key": "gpu", "operator": "Exists"} in spec["tolerations"]
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "zone"
    secret = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": secret} in container["env"]
    shm = next(one for one in spec["volumes"] if one["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    mount = next(one for one in container["volumeMounts"] if one["mountPath"] == "/data")
    assert mount["readOnly"] is True


def test_the_pull_policy_of_the_operator_is_for_its_own_image() -> None:
    """What Kubernetes does with `:latest` is right for a job's; `Never` may not fit it at all."""
    image = {name: template_with({})["spec"]["containers"][0][name] for name in PULLED}
    assert image == {"image": "trainer:1", "imagePullPolicy": "IfNotPresent"}
    for text in ("mine:latest", DEFAULTS.image):
        own = template_with({"image": text})["spec"]["containers"][0]
        assert {name: own[name] for name in PULLED if name in own} == {"image": text}


def test_overrides_never_replace_our_labels() -> None:
    spoofed = {"metadata": {"labels": {"team": "a", "ppojob.dev/job-uid": "another"}}}
    template = template_with({"podOverrides": {**spoofed, "spec": {"schedulerName": "mine"}}})
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["labels"]["ppojob.dev/job-uid"] == make_job().uid
    assert template["spec"]["schedulerName"] == "mine"


@pytest.mark.parametrize("field", ["suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"])
def test_the_lifecycle_gives_pods_nothing_new_to_read(field: str) -> None:
    value = True if field == "suspend" else 60
    job = make_job()
    assert job.manifest is not None
    spec = job.manifest.spec
    names = {"suspend": "suspend", "activeDeadlineSeconds": "active_deadline_seconds"}
    name = names.get(field, "ttl_seconds_after_finished")
    lifecycle = spec.lifecycle.model_copy(update={name: value})
    changed = job.manifest.model_copy(
        update={"spec": spec.model_copy(update={"lifecycle": lifecycle})}
    )
    assert pod_config(job, changed).digest == pod_config(job, job.manifest).digest
