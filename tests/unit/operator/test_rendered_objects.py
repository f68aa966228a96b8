"""What the operator makes for a job, word for word, and what its settings make of pods.

That the golden pods pass Pod Security `restricted` is for the API server to say: tests/cluster.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from bad_specs import changed_job
from operator_jobs import CONFIG_DIGEST, UID, config_digest, make_job

from ppojob_api import validation
from ppojob_api.manifest import to_yaml
from ppojob_api.problem import ReasonCode
from ppojob_api.v1alpha1.pod_settings import PodSettings, PodVolume
from ppojob_operator.build.objects import bindings, key_templates, stateful_sets, surroundings
from ppojob_operator.build.pod_template import pod_template
from ppojob_operator.reconcile_context import pod_config
from ppojob_operator.settings import Settings
from ppojob_operator.state import Job

GOLDEN = Path(__file__).with_name("rendered_objects.yaml")
DEFAULTS = Settings(trainer_image="trainer:1")
PULLED = ("image", "imagePullPolicy")


def rendered(job: Job) -> list[dict[str, Any]]:
    assert job.manifest is not None, job.problems
    config = pod_config(job, job.manifest)
    keys = [dict(one) for one in key_templates(job, config).values()]
    roles = config.run.topology.with_own_pods
    sets = stateful_sets(job, config, roles, job.manifest.spec.pods, DEFAULTS, {})
    return [*surroundings(job, config), *bindings(job), *keys, *sets]


def pod_specs(*items: dict[str, Any], **sections: Any) -> dict[str, dict[str, Any]]:
    """The pod specs of a job with these settings, by role."""
    job = make_job(pods=list(items), **sections)
    sets = [one for one in rendered(job) if one["kind"] == "StatefulSet"]
    return {
        one["metadata"]["labels"]["ppojob.dev/role"]: one["spec"]["template"]["spec"]
        for one in sets
    }


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


def policies(**agent: Any) -> dict[str, dict[str, Any]]:
    found = [one for one in rendered(make_job(**agent)) if one["kind"] == "NetworkPolicy"]
    return {one["metadata"]["name"]: one["spec"] for one in found}


def test_tools_pods_connect_to_nothing_and_to_nobody_of_their_job() -> None:
    assert "sum-tools" not in policies()
    found = policies(agent={"tools": [{"name": "calculator"}]})
    uid = {"ppojob.dev/job-uid": UID}
    assert found["sum-tools"] == {
        "podSelector": {"matchLabels": {**uid, "ppojob.dev/role": "tools"}},
        "policyTypes": ["Egress"],
        "egress": [],
    }
    assert found["sum-pods"]["ingress"][0]["from"] == [
        {
            "podSelector": {
                "matchLabels": uid,
                "matchExpressions": [
                    {"key": "ppojob.dev/role", "operator": "NotIn", "values": ["tools"]}
                ],
            }
        }
    ]


def test_retriever_pods_connect_to_nothing_even_where_tools_do() -> None:
    agent = {"tools": [{"name": "search"}, {"name": "calculator"}], "egress": [{"ports": [443]}]}
    found = policies(agent={**agent, "retriever": {"index": "/data/index"}})
    assert found["sum-retriever"]["egress"] == []
    assert found["sum-retriever"]["policyTypes"] == ["Egress"]
    expressions = found["sum-pods"]["ingress"][0]["from"][0]["podSelector"]["matchExpressions"]
    assert expressions[0]["values"] == ["tools", "retriever"]


def test_tools_pods_connect_to_what_the_job_names() -> None:
    named = [{"ports": [443, 8000]}, {"cidr": "10.1.0.0/16"}, {"cidr": "::/0", "ports": [80]}]
    found = policies(agent={"tools": [{"name": "calculator"}], "egress": named})
    tcp = {"protocol": "TCP"}
    assert found["sum-tools"]["egress"] == [
        {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, **tcp}]},
        {"ports": [{"port": 443, **tcp}, {"port": 8000, **tcp}]},
        {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]},
        {"to": [{"ipBlock": {"cidr": "::/0"}}], "ports": [{"port": 80, **tcp}]},
    ]


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
    for text in ("mine:latest", DEFAULTS.trainer_image):
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


# What several items of `spec.pods` make of one pod: a later item stands over an earlier one.


def variables(spec: dict[str, Any]) -> dict[str, Any]:
    """The environment; each name once, or an API server takes no change of the object."""
    environment = spec["containers"][0]["env"]
    names = [one["name"] for one in environment]
    assert len(names) == len(set(names))
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in environment}


def test_a_variable_of_a_role_stands_over_that_of_all() -> None:
    level, token = {"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "TOKEN", "value": "a"}
    secret = {"name": "TOKEN", "secret": {"name": "hub", "key": "token"}}
    specs = pod_specs(
        {"env": [level, token]}, {"roles": ["reward"], "env": [{**level, "value": "INFO"}, secret]}
    )
    assert variables(specs["controller"])["NCCL_DEBUG"] == "WARN"
    assert variables(specs["reward"])["NCCL_DEBUG"] == "INFO"
    assert variables(specs["reward"])["TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}


def test_pods_alone_that_run_code_mount_its_config_maps() -> None:
    def sources(name: str) -> list[dict[str, Any]]:
        return [{"configMap": {"name": name, "key": f"{key}.py"}} for key in ("a", "b")]

    rewards = [
        {"function": "score", "source": source}
        for source in (*sources("scores"), {"path": "/c.py"})
    ]
    told = {"description": "a", "parameters": {"type": "object"}}
    tool, user = sources("towns")
    agent = {
        "tools": [{"name": "f", **told, "source": tool}],
        "interactions": [{"name": "g", "source": user}],
    }
    mounted = {}
    for role, spec in pod_specs(rewards=rewards, agent=agent).items():
        maps = {
            one["name"]: one["configMap"]["name"]
            for one in spec["volumes"]
            if one["name"].startswith("code-")
        }
        mounts = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] in maps]
        assert all(one["readOnly"] for one in mounts)
        mounted[role] = {one["mountPath"]: maps[one["name"]] for one in mounts}
    assert mounted.pop("reward") == {"/ppojob/code/scores": "scores"}
    assert mounted.pop("tools") == {"/ppojob/code/towns": "towns"}
    assert not any(mounted.values())


def test_reward_functions_see_the_variables_of_their_pods_and_no_other() -> None:
    level, token = {"name": "LEVEL", "value": "1"}, {"name": "TOKEN", "value": "a"}
    specs = pod_specs({"env": [level]}, {"roles": ["reward"], "env": [token]})
    assert variables(specs["reward"])["PPOJOB_REWARD_VARIABLES"] == "LEVEL TOKEN"
    assert "PPOJOB_REWARD_VARIABLES" not in variables(specs["controller"])
    assert "PPOJOB_REWARD_VARIABLES" not in variables(pod_specs()["reward"])


def test_tools_see_the_variables_of_their_pods_and_no_other() -> None:
    agent = {"tools": [{"name": "calculator"}]}
    specs = pod_specs(
        {"roles": ["tools"], "env": [{"name": "LEVEL", "value": "1"}]},
        {"roles": ["reward"], "env": [{"name": "TOKEN", "value": "a"}]},
        agent=agent,
    )
    assert variables(specs["tools"])["PPOJOB_TOOL_VARIABLES"] == "LEVEL"
    assert "PPOJOB_REWARD_VARIABLES" not in variables(specs["tools"])
    assert variables(specs["reward"])["PPOJOB_REWARD_VARIABLES"] == "TOKEN"
    assert "PPOJOB_TOOL_VARIABLES" not in variables(specs["reward"])


def test_pods_of_tools_are_like_those_that_score() -> None:
    """No token, no right, the same volumes; but for names and their key they are the same."""
    specs = pod_specs(agent={"tools": [{"name": "calculator"}]})
    assert str(specs["tools"]).replace("tools", "reward") == str(specs["reward"])


def test_a_home_of_ones_own_stands_over_ours() -> None:
    ours = variables(pod_specs()["reward"])["HOME"]
    specs = pod_specs({"roles": ["reward"], "env": [{"name": "HOME", "value": "/home/me"}]})
    assert variables(specs["reward"])["HOME"] == "/home/me"
    assert variables(specs["controller"])["HOME"] == ours


def test_a_volume_of_a_role_stands_over_that_of_all() -> None:
    specs = pod_specs(
        {"volumes": [{"claimName": "a", "mountPath": "/data"}]},
        {"roles": ["reward"], "volumes": [{"claimName": "b", "mountPath": "/data/"}]},
    )

    def claims(spec: dict[str, Any]) -> list[str]:
        sources = {one["name"]: one.get("persistentVolumeClaim") for one in spec["volumes"]}
        mounts = spec["containers"][0]["volumeMounts"]
        at = [one["name"] for one in mounts if one["mountPath"].startswith("/data")]
        return [sources[name]["claimName"] for name in at]

    assert claims(specs["controller"]) == ["a"]
    assert claims(specs["reward"]) == ["b"]


def test_a_spread_of_a_role_stands_over_that_of_all() -> None:
    zone = {"topologyKey": "zone", "maxSkew": 1}
    soft = {**zone, "whenUnsatisfiable": "ScheduleAnyway"}
    specs = pod_specs(
        {"topologySpread": [zone, {"topologyKey": "host"}]},
        {"roles": ["reward"], "topologySpread": [{**zone, "maxSkew": 3}, soft]},
    )

    def spread(role: str) -> list[tuple[str, int, str]]:
        found = specs[role]["topologySpreadConstraints"]
        return [(one["topologyKey"], one["maxSkew"], one["whenUnsatisfiable"]) for one in found]

    hosts = ("host", 1, "DoNotSchedule")
    assert spread("controller") == [("zone", 1, "DoNotSchedule"), hosts]
    assert spread("reward") == [hosts, ("zone", 3, "DoNotSchedule"), ("zone", 1, "ScheduleAnyway")]


def test_what_is_said_twice_alike_stands_once() -> None:
    item = {
        "imagePullSecrets": ["hub", "hub"],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    spec = pod_specs(item, item)["reward"]
    assert spec["imagePullSecrets"] == [{"name": "hub"}]
    assert [one["key"] for one in spec["tolerations"]].count("gpu") == 1


def test_one_item_may_spread_over_a_topology_in_both_ways_and_in_none_twice() -> None:
    soft = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    item: dict[str, Any] = {"topologySpread": [{"topologyKey": "zone"}, soft]}
    job = changed_job([])
    job["spec"]["pods"] = [item]
    assert not isinstance(validation.validate(job), list)
    item["topologySpread"].append({**soft, "maxSkew": 2})
    problems = validation.validate(job)
    assert isinstance(problems, list)
    assert [(one.where, one.reason_code) for one in problems] == [
        (f"spec.pods[0].topologySpread[{index}]", ReasonCode.DUPLICATE) for index in (1, 2)
    ]


def test_overrides_of_a_role_are_laid_over_those_of_all() -> None:
    dns = {"nameservers": ["10.0.0.1"], "searches": ["a.example"]}
    specs = pod_specs(
        {"podOverrides": {"metadata": {"labels": {"team": "a"}}, "spec": {"dnsConfig": dns}}},
        {
            "roles": ["reward"],
            "podOverrides": {
                "metadata": {"annotations": {"note": "b"}},
                "spec": {"schedulerName": "mine", "dnsConfig": {"searches": ["b.example"]}},
            },
        },
    )
    assert specs["controller"]["dnsConfig"] == dns
    assert "schedulerName" not in specs["controller"]
    assert specs["reward"]["dnsConfig"] == {**dns, "searches": ["b.example"]}
    assert specs["reward"]["schedulerName"] == "mine"


def test_a_volume_has_one_place_however_its_path_is_written() -> None:
    written = ("/data", "/data/", "//data", "/other/../data")
    folders = {PodVolume(claim_name="a", mount_path=path).folder for path in written}
    assert folders == {"/data"}
