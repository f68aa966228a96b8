import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest
from operator_jobs import CONFIG_DIGEST, UID, config_digest, make_job

from ppojob_api.manifest import to_yaml
from ppojob_operator.build.objects import base_objects, key_templates, role_bindings, stateful_sets
from ppojob_operator.build.pod_template import pod_template
from ppojob_operator.reconcile_context import pod_config
from ppojob_operator.settings import Settings
from ppojob_operator.state import Job

GOLDEN = Path(__file__).with_name("rendered_objects.yaml")
DEFAULTS = Settings(trainer_image="trainer:1")


def rendered(job: Job) -> list[dict[str, Any]]:
    assert job.validated is not None, job.problems
    config = pod_config(job, job.validated)
    keys = [dict(one) for one in key_templates(job, config).values()]
    roles = config.run.topology.with_own_pods
    sets = stateful_sets(job, config, roles, DEFAULTS, {})
    return [*base_objects(job, config), *role_bindings(job, config, DEFAULTS), *keys, *sets]


def pod_specs(*items: dict[str, Any], **sections: Any) -> dict[str, dict[str, Any]]:
    job = make_job(pods=list(items), **sections)
    sets = [one for one in rendered(job) if one["kind"] == "StatefulSet"]
    return {
        one["metadata"]["labels"]["ppojob.dev/role"]: one["spec"]["template"]["spec"]
        for one in sets
    }


def template_with(
    settings: dict[str, Any], defaults: Settings = DEFAULTS, **sections: Any
) -> dict[str, Any]:
    job = make_job(pods=[settings], **sections)
    config = pod_config(job, job.validated)
    return pod_template(job, config, config.run.topology.role("actorRollout"), defaults)


def test_on_openshift_a_pod_names_no_user() -> None:
    spec = template_with({}, Settings(openshift=True))["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


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


def test_retriever_pods_connect_to_nothing_and_tools_to_what_the_job_names() -> None:
    named = [{"ports": [443, 8000]}, {"cidr": "10.1.0.0/16"}, {"cidr": "::/0", "ports": [80]}]
    tools = [{"name": "search"}, {"name": "calculator"}]
    retriever = {"index": "/data/index"}
    found = policies(agent={"tools": tools, "egress": named, "retriever": retriever})
    assert found["sum-retriever"]["egress"] == []
    assert found["sum-retriever"]["policyTypes"] == ["Egress"]
    expressions = found["sum-pods"]["ingress"][0]["from"][0]["podSelector"]["matchExpressions"]
    assert expressions[0]["values"] == ["tools", "retriever"]
    tcp = {"protocol": "TCP"}
    assert found["sum-tools"]["egress"] == [
        {"ports": [{"port": n, "protocol": name} for n in (53, 5353) for name in ("UDP", "TCP")]},
        {"ports": [{"port": 443, **tcp}, {"port": 8000, **tcp}]},
        {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]},
        {"to": [{"ipBlock": {"cidr": "::/0"}}], "ports": [{"port": 80, **tcp}]},
    ]


def test_only_pods_that_score_reach_the_model_of_a_judge() -> None:
    judge = {"path": "/models/judge"}
    found = policies(judge=judge, rewards=[{"function": "judge"}])
    uid = {"ppojob.dev/job-uid": UID}
    of_all = {"key": "ppojob.dev/role", "operator": "NotIn", "values": ["judge"]}
    assert found["sum-pods"]["podSelector"]["matchExpressions"] == [of_all]
    reward = {"podSelector": {"matchLabels": {**uid, "ppojob.dev/role": "reward"}}}
    allowed = [
        (rule.get("from"), [one["port"] for one in rule["ports"]])
        for rule in found["sum-judge-pods"]["ingress"]
    ]
    assert ([reward], [7405]) == allowed[0]
    assert not [who for who, ports in allowed[1:] if 7405 in ports]
    assert found["sum-judge"]["egress"] == []


GPU = {"actorRollout": {"replicas": 1, "gpusPerReplica": 1}}


@pytest.mark.parametrize(
    ("settings", "roles", "resources"),
    [
        # A throttled rank would stall all others: cores are asked for and not capped.
        ({}, {}, {"requests": {"cpu": "1"}}),
        (
            {"resources": {"cpu": "100m", "rdma/hca": "1"}},
            {},
            {"requests": {"cpu": "100m", "rdma/hca": "1"}, "limits": {"rdma/hca": "1"}},
        ),
        (
            {},
            GPU,
            {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
        ),
        (
            {"gpuResource": "amd.com/gpu", "memory": "64Gi"},
            GPU,
            {
                "requests": {"cpu": "1", "memory": "64Gi", "amd.com/gpu": "1"},
                "limits": {"memory": "64Gi", "amd.com/gpu": "1"},
            },
        ),
    ],
)
def test_resources_of_a_pod(settings, roles, resources) -> None:
    (container,) = template_with(settings, roles=roles)["spec"]["containers"]
    assert container["resources"] == resources


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


def test_the_credentials_of_the_operator_are_for_its_own_image() -> None:
    defaults = dataclasses.replace(DEFAULTS, image_pull_secrets=("mirror",))

    def secrets(settings: dict[str, Any]) -> Any:
        job = make_job(pods=[settings])
        config = pod_config(job, job.validated)
        role = config.run.topology.role("controller")
        return pod_template(job, config, role, defaults)["spec"].get("imagePullSecrets")

    assert secrets({}) == [{"name": "mirror"}]
    assert secrets({"imagePullSecrets": ["own"]}) == [{"name": "own"}, {"name": "mirror"}]
    assert secrets({"image": "other:1"}) is None


def test_the_pull_policy_of_the_operator_is_for_its_own_image() -> None:
    """What Kubernetes does with `:latest` is right for a job's; `Never` may not fit it at all."""

    def pulled(settings: dict[str, Any]) -> tuple[str, str | None]:
        (container,) = template_with(settings)["spec"]["containers"]
        return container["image"], container.get("imagePullPolicy")

    assert pulled({}) == ("trainer:1", "IfNotPresent")
    for text in ("mine:latest", DEFAULTS.trainer_image):
        assert pulled({"image": text}) == (text, None)


def test_overrides_never_replace_our_labels() -> None:
    """Those of the prefix ppojob.dev/ are refused before."""
    theirs = {"team": "a", "app.kubernetes.io/managed-by": "another"}
    template = template_with({"podOverrides": {"metadata": {"labels": theirs}}})
    assert (
        template["metadata"]["labels"].items()
        >= {
            "team": "a",
            "app.kubernetes.io/managed-by": "ppojob-operator",
            "ppojob.dev/job-uid": UID,
        }.items()
    )


@pytest.mark.parametrize(
    "lifecycle", [{"suspend": True}, {"activeDeadlineSeconds": 60}, {"ttlSecondsAfterFinished": 60}]
)
def test_the_lifecycle_gives_pods_nothing_new_to_read(lifecycle: dict[str, Any]) -> None:
    assert config_digest(make_job(lifecycle=lifecycle)) == CONFIG_DIGEST


def variables(spec: dict[str, Any]) -> dict[str, Any]:
    """The environment; each name once, or an API server takes no change of the object."""
    environment = spec["containers"][0]["env"]
    names = [one["name"] for one in environment]
    assert len(names) == len(set(names))
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in environment}


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
    sampler = {"function": "choose", "source": sources("orders")[0]}
    data = {"train": [{"path": "/data/a.parquet"}], "sampler": sampler}
    mounted = {}
    for role, spec in pod_specs(rewards=rewards, agent=agent, data=data).items():
        maps = {
            one["name"]: one["configMap"]["name"]
            for one in spec["volumes"]
            if one["name"].startswith("code-")
        }
        mounts = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] in maps]
        assert all(one["readOnly"] for one in mounts)
        mounted[role] = {one["mountPath"]: maps[one["name"]] for one in mounts}
    assert mounted.pop("reward") == {"/ppojob/code/scores": "scores"}
    assert mounted.pop("controller") == {"/ppojob/code/orders": "orders"}
    assert mounted.pop("tools") == {"/ppojob/code/towns": "towns"}
    assert not any(mounted.values())


def test_code_sees_the_variables_of_its_pods_and_no_other() -> None:
    level, token = {"name": "LEVEL", "value": "1"}, {"name": "TOKEN", "value": "a"}
    agent = {"tools": [{"name": "calculator"}]}
    specs = pod_specs({"env": [level]}, {"roles": ["reward"], "env": [token]}, agent=agent)
    names = {"PPOJOB_REWARD_VARIABLES", "PPOJOB_TOOL_VARIABLES"}
    told = {
        role: {name: text for name, text in variables(spec).items() if name in names}
        for role, spec in specs.items()
    }
    assert told == {
        "controller": {},
        "actor-rollout": {},
        "reward": {"PPOJOB_REWARD_VARIABLES": "LEVEL TOKEN"},
        "tools": {"PPOJOB_TOOL_VARIABLES": "LEVEL"},
    }
    assert not names & variables(pod_specs()["reward"]).keys()


def test_pods_of_tools_are_like_those_that_score() -> None:
    """No token, no right, the same volumes; but for names and their key they are the same."""
    specs = pod_specs(agent={"tools": [{"name": "calculator"}]})
    assert str(specs["tools"]).replace("tools", "reward") == str(specs["reward"])


def test_tools_pods_may_create_the_pods_of_rows() -> None:
    """By a token, a ClusterRole of the chart and a way to the API server; rows reach nothing."""

    def objects(**agent: Any) -> dict[tuple[str, str], dict[str, Any]]:
        found = rendered(make_job(agent={"tools": [{"name": "bash"}], **agent}))
        return {(one["kind"], one["metadata"]["name"]): one for one in found}

    name, before, found = "sum-row-containers", objects(), objects(containers={"image": "a"})
    kinds = ("ServiceAccount", "RoleBinding", "NetworkPolicy")
    maps = {one for one in found if one[0] == "ConfigMap"}
    assert found.keys() - before.keys() - maps == {(kind, name) for kind in kinds}
    assert found["ServiceAccount", name]["automountServiceAccountToken"] is False
    binding = found["RoleBinding", name]
    group, role = "rbac.authorization.k8s.io", "ppojob-row-containers"
    assert binding["roleRef"] == {"apiGroup": group, "kind": "ClusterRole", "name": role}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "lab"}]
    assert found["NetworkPolicy", name]["spec"] == {
        "podSelector": {"matchLabels": {"ppojob.dev/row-of": "sum"}},
        "policyTypes": ["Ingress", "Egress"],
    }
    ports = [{"port": number, "protocol": "TCP"} for number in (443, 6443)]
    assert found["NetworkPolicy", "sum-tools"]["spec"]["egress"] == [{"ports": ports}]
    spec = found["StatefulSet", "sum-tools"]["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (name, True)
    mounted = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert variables(spec)["PPOJOB_SERVICE_ACCOUNT"] == mounted
    reward = found["StatefulSet", "sum-reward"]["spec"]["template"]["spec"]
    assert reward["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in reward


def test_a_later_item_of_the_pods_stands_over_an_earlier_one() -> None:
    zone = {"topologyKey": "zone", "maxSkew": 1}
    soft = {**zone, "whenUnsatisfiable": "ScheduleAnyway"}
    both = {"imagePullSecrets": ["hub", "hub"], "tolerations": [{"key": "gpu"}]}
    dns = {"nameservers": ["10.0.0.1"], "searches": ["a.example"]}
    of_all = {
        "env": [{"name": "LEVEL", "value": "WARN"}, {"name": "TOKEN", "value": "a"}],
        "volumes": [{"claimName": "a", "mountPath": "/data"}],
        "topologySpread": [zone, {"topologyKey": "host"}],
        "podOverrides": {"metadata": {"labels": {"team": "a"}}, "spec": {"dnsConfig": dns}},
    }
    of_reward = {
        "env": [
            {"name": "LEVEL", "value": "INFO"},
            {"name": "TOKEN", "secret": {"name": "hub", "key": "token"}},
            {"name": "HOME", "value": "/home/me"},
        ],
        "volumes": [{"claimName": "b", "mountPath": "/data/"}],
        "topologySpread": [{**zone, "maxSkew": 3}, soft],
        "nodeSelector": {"pool": "gpu"},
        "priorityClassName": "high",
        "sharedMemory": "4Gi",
        "podOverrides": {
            "metadata": {"annotations": {"note": "b"}},
            "spec": {"schedulerName": "mine", "dnsConfig": {"searches": ["b.example"]}},
        },
    }
    specs = pod_specs({**of_all, **both}, {"roles": ["reward"], **of_reward, **both})
    controller, reward = specs["controller"], specs["reward"]
    assert variables(controller)["LEVEL"] == "WARN"
    assert variables(controller)["HOME"] == "/ppojob/scratch"
    assert variables(reward)["LEVEL"] == "INFO"
    assert variables(reward)["HOME"] == "/home/me"
    assert variables(reward)["TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert (claims(controller), claims(reward)) == (["a"], ["b"])
    hosts = ("host", 1, "DoNotSchedule")
    assert spread(controller) == [("zone", 1, "DoNotSchedule"), hosts]
    assert spread(reward) == [hosts, ("zone", 3, "DoNotSchedule"), ("zone", 1, "ScheduleAnyway")]
    assert (controller["dnsConfig"], controller.get("schedulerName")) == (dns, None)
    assert reward["dnsConfig"] == {**dns, "searches": ["b.example"]}
    assert reward["schedulerName"] == "mine"
    assert (reward["nodeSelector"], reward["priorityClassName"]) == ({"pool": "gpu"}, "high")
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}
    assert shm in reward["volumes"]
    # What is said twice alike stands once.
    assert reward["imagePullSecrets"] == [{"name": "hub"}]
    assert [one["key"] for one in reward["tolerations"]].count("gpu") == 1


def claims(spec: dict[str, Any]) -> list[str]:
    sources = {one["name"]: one.get("persistentVolumeClaim") for one in spec["volumes"]}
    mounts = spec["containers"][0]["volumeMounts"]
    at = [one["name"] for one in mounts if one["mountPath"].startswith("/data")]
    return [sources[name]["claimName"] for name in at]


def spread(spec: dict[str, Any]) -> list[tuple[str, int, str]]:
    found = spec["topologySpreadConstraints"]
    return [(one["topologyKey"], one["maxSkew"], one["whenUnsatisfiable"]) for one in found]
