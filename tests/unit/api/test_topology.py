from typing import Any

import pytest

from ppojob_api import topology
from ppojob_api.topology import Topology
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.well_known import JOB_NAME_LIMIT, ROLE_SLUGS, pod_name, workload_name


def build(sections: dict[str, Any] | None = None, /, **roles: Any) -> Topology:
    spec = PPOJobSpec.model_validate(
        {
            "model": {"path": "m"},
            "data": {"train": [{"path": "a.parquet"}]},
            "algorithm": {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2},
            "steps": {"total": 1},
            "roles": roles,
            **(sections or {}),
        }
    )
    return topology.build("sum", spec)


def roles(job: Topology) -> list[str]:
    return [role.role for role in job.roles]


def test_smallest_job() -> None:
    job = build()
    assert roles(job) == ["controller", "actorRollout", "reward"]
    assert all(role.world_size == 1 and role.device == "cpu" for role in job.roles)
    actor = job.role("actorRollout").pods[0]
    assert actor.name == "sum-actor-rollout-0"
    assert actor.host == "sum-actor-rollout-0.sum-actor-rollout"
    assert job.total_gpus == 0


def test_gpus_have_a_rank_each() -> None:
    job = build(actorRollout={"replicas": 2, "gpusPerReplica": 8})
    actor = job.role("actorRollout")
    assert (actor.device, actor.ranks_per_pod, actor.world_size) == ("cuda", 8, 16)
    assert job.total_gpus == 16


def test_ranks_are_dealt_pod_by_pod() -> None:
    actor = build(actorRollout={"replicas": 2, "ranksPerReplica": 3}).role("actorRollout")
    assert [list(actor.ranks_of(index)) for index in (0, 1)] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("pods", "threads"),
    [({}, 1), ({"cpu": 8}, 8), ({"cpu": 8, "ranksPerReplica": 3}, 2), ({"threadsPerRank": 5}, 5)],
)
def test_threads_share_the_cores(pods: dict[str, int], threads: int) -> None:
    assert build(actorRollout=pods).role("actorRollout").threads_per_rank == threads


@pytest.mark.parametrize("role", ["reference", "critic", "rewardModel"])
def test_a_colocated_role_shares_the_ranks_of_its_host(role: Any) -> None:
    job = build(actorRollout={"replicas": 2, "gpusPerReplica": 2}, **{role: {}})
    host, guest = job.role("actorRollout"), job.role(role)
    assert guest == host.model_copy(update={"role": role, "colocated_with": "actorRollout"})
    assert [role.role for role in job.with_own_pods] == ["controller", "actorRollout", "reward"]
    assert job.total_gpus == 4


def test_roles_in_pods_of_their_own() -> None:
    job = build(
        actorRollout={"gpusPerReplica": 2},
        reference={"colocateWith": "none", "gpusPerReplica": 1},
        critic={"colocateWith": "none", "replicas": 2, "gpusPerReplica": 4},
        rewardModel={"colocateWith": "none", "replicas": 2, "ranksPerReplica": 3, "cpu": 6},
    )
    named = ["controller", "actorRollout", "reference", "critic", "rewardModel", "reward"]
    assert [role.role for role in job.roles] == named
    assert job.with_own_pods == job.roles
    scorer = job.role("rewardModel")
    assert (scorer.world_size, scorer.threads_per_rank, scorer.device) == (6, 2, "cpu")
    assert scorer.pods[1].host == "sum-reward-model-1.sum-reward-model"
    assert job.role("critic").world_size == 8
    assert job.total_gpus == job.num_devices == 2 + 1 + 8


def test_without_gpus_the_ranks_with_a_model_are_the_devices() -> None:
    assert build().num_devices == 1
    job = build(
        actorRollout={"ranksPerReplica": 2},
        reference={},
        critic={"colocateWith": "none", "replicas": 3},
        reward={"replicas": 4},
    )
    assert (job.total_gpus, job.num_devices) == (0, 2 + 3)


def test_a_reward_model_alone_needs_no_reward_pods() -> None:
    model = {"rewardModel": {"path": "/models/rm"}}
    assert "reward" not in roles(build(model))
    assert "reward" in roles(build({**model, "rewards": [{"function": "gsm8k"}]}))


@pytest.mark.parametrize(
    ("field", "left"), [("validateOnly", ["rewardModel", "reward"]), ("generateOnly", [])]
)
def test_a_job_without_training_has_no_models_to_train_with(field: str, left: list[str]) -> None:
    apart = {"colocateWith": "none"}
    job = build(
        {
            "algorithm": {"type": "ppo", "promptsPerStep": 4, "samplesPerPrompt": 2},
            "steps": {field: True},
            "rewards": [{"function": "gsm8k"}],
            "rewardModel": {"path": "r"},
        },
        rollout={},
        **dict.fromkeys(("reference", "critic", "rewardModel"), apart),
    )
    assert roles(job) == ["controller", "actorRollout", "rollout", *left]


def test_pods_of_tools() -> None:
    agent = {"agent": {"tools": [{"name": "calculator"}]}}
    tools = build(agent, tools={"replicas": 2, "cpu": 4}).role("tools")
    assert [pod.host for pod in tools.pods] == [f"sum-tools-{n}.sum-tools" for n in (0, 1)]
    assert (tools.ranks_per_pod, tools.threads_per_rank) == (1, 4)
    assert build(agent).num_devices == 1
    assert "tools" not in roles(build({"agent": {}}))
    assert "tools" not in roles(build({**agent, "rollout": {"replay": "runs/a"}}))


@pytest.mark.parametrize("role", ROLE_SLUGS)
def test_the_longest_name_fits_a_label(role: Any) -> None:
    name = "a" * JOB_NAME_LIMIT
    assert len(workload_name(name, role)) + len("-0123456789") <= 63
    assert len(pod_name(name, role, 4095)) <= 63


def test_given_answers_need_no_other_pods() -> None:
    algorithm = {"type": "sft", "promptsPerStep": 4}
    assert roles(build({"algorithm": algorithm})) == ["controller", "actorRollout"]
