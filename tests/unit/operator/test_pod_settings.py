"""What several items of `spec.pods` make of one pod: a later item stands over an earlier one."""

from typing import Any

from bad_specs import changed_job
from rendered_pods import pod_specs

from ppojob_api import validation
from ppojob_api.problem import ReasonCode
from ppojob_api.v1alpha1.pod_settings import PodVolume


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


def test_reward_functions_see_the_variables_of_their_pods_and_no_other() -> None:
    level, token = {"name": "LEVEL", "value": "1"}, {"name": "TOKEN", "value": "a"}
    specs = pod_specs({"env": [level]}, {"roles": ["reward"], "env": [token]})
    assert variables(specs["reward"])["PPOJOB_REWARD_VARIABLES"] == "LEVEL TOKEN"
    assert "PPOJOB_REWARD_VARIABLES" not in variables(specs["controller"])
    assert "PPOJOB_REWARD_VARIABLES" not in variables(pod_specs()["reward"])


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
        """Claims that are mounted at /data."""
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
