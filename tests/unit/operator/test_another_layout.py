import base64
import dataclasses
import json
from typing import Any

import pytest
from gang_plans import VOLCANO, WORKLOAD, admission_of, admitted, child, queued_job, seen
from operator_jobs import CHILDREN, make_job, observed
from operator_plans import (
    UP,
    actions,
    all_pods,
    claim,
    deleted,
    look,
    made,
    status_after,
    status_of,
)
from reconciler_harness import Harness, up

from ppojob_operator.build.gang import GANGS
from ppojob_operator.build.metadata import layout_of
from ppojob_operator.errors import ClusterError
from ppojob_operator.state import Apply, Child, Create, CreateKeys

OTHER: dict[str, Any] = {
    "actorRollout": {"replicas": 2, "ranksPerReplica": 2, "parallelism": {"sequence": 2}},
    "rollout": {"replicas": 3},
    "reward": {"replicas": 1},
}
PODS = [
    *("sum-actor-rollout-0", "sum-actor-rollout-1", "sum-controller-0", "sum-reward-0"),
    *(f"sum-rollout-{index}" for index in range(3)),
]
LAYOUT = layout_of(CHILDREN["StatefulSet", "sum-reward"].manifest["metadata"])
THERE = observed(pods=all_pods(is_ready=True, layout=LAYOUT))


async def suspended(harness: Harness) -> None:
    await up(harness)
    harness.edit(suspend=True)
    await harness.settle()
    assert (harness.status["phase"], harness.names("Pod")) == ("Suspended", [])


def objects(harness: Harness) -> dict[Any, Any]:
    return {place: one for place, one in harness.content().items() if place[0] != "PPOJob"}


async def made_so() -> dict[Any, Any]:
    """The objects of a job that was made with the other layout."""
    one = Harness(roles=OTHER)
    await up(one)
    assert one.names("Pod") == PODS
    return objects(one)


async def test_it_has_the_objects_of_a_job_that_was_made_so_and_can_go_back(harness) -> None:
    before = Harness()
    await up(before)
    await suspended(harness)
    harness.edit_spec(roles=OTHER)
    await harness.settle()
    assert harness.names("Pod") == []
    harness.edit(suspend=False)
    await up(harness)
    assert objects(harness) == await made_so()
    await suspended(harness)
    # By one edit: it goes on under the layout of before.
    harness.edit_spec(roles=before.job["spec"]["roles"], lifecycle={"suspend": False})
    await up(harness)
    assert objects(harness) == objects(before)


@pytest.mark.parametrize("behind", [False, True])
async def test_killed_at_any_write_it_ends_the_same(behind: bool) -> None:
    """The operator dies before or behind its n-th write, and another begins from nothing."""
    wanted, number, writes = await made_so(), 1, 1
    while number <= writes:
        harness = Harness()
        await suspended(harness)
        begun = len(harness.cluster.writes)
        harness.edit_spec(roles=OTHER, lifecycle={"suspend": False})
        await harness.die(begun + number, behind=behind, steps=3)
        await up(harness)
        assert objects(harness) == wanted, number
        writes = max(writes, len(harness.cluster.writes) - begun)
        number += 1
    assert writes > 8


async def test_no_key_is_replaced_and_a_new_role_is_known_to_all(
    harness: Harness,
) -> None:
    await up(harness)
    before = {one["metadata"]["name"]: one["data"] for one in harness.cluster.of("Secret")}
    await suspended(harness)
    harness.edit_spec(roles=OTHER, lifecycle={"suspend": False})
    await up(harness)
    after = {one["metadata"]["name"]: one["data"] for one in harness.cluster.of("Secret")}
    assert after.keys() - before.keys() == {"sum-rollout"}
    assert {name: after[name] for name in before} == before
    told = {base64.b64decode(data["public.json"]) for data in after.values()}
    assert len(told) == 1
    assert "rollout" in json.loads(told.pop())


async def test_keys_of_an_operator_of_before_are_for_the_roles_that_the_job_had(harness) -> None:
    await suspended(harness)
    for secret in harness.cluster.of("Secret"):
        with harness.edited("Secret", secret["metadata"]["name"]) as one:
            if text := one["data"].get("pairs.json"):
                pairs = json.loads(base64.b64decode(text))
                del pairs["rollout"]
                one["data"]["pairs.json"] = base64.b64encode(json.dumps(pairs).encode()).decode()
    harness.edit_spec(roles=OTHER, lifecycle={"suspend": False})
    for _ in range(3):
        with pytest.raises(
            ClusterError, match="no key for rollout; suspend the job and delete its"
        ):
            await harness.step()
    assert harness.names("Pod") == []
    ready = {one["type"]: one for one in harness.status["conditions"]}["PodsReady"]
    assert ready["reason"] == "ObjectRefused"
    assert "no key for rollout; suspend the job and delete its Secrets" in ready["message"]
    for secret in harness.cluster.of("Secret"):
        harness.cluster.remove("Secret", "lab", secret["metadata"]["name"])
    await up(harness)
    assert objects(harness) == await made_so()


async def test_services_of_others_stay(harness: Harness) -> None:
    harness.edit_spec(roles=OTHER)
    await up(harness)
    own = harness.cluster.objects["Service", "lab", "sum-rollout"]
    head = {"name": "sum-of-mine", "namespace": "lab", "labels": own["metadata"]["labels"]}
    harness.cluster.put({**own, "metadata": head})
    await suspended(harness)
    harness.edit_spec(roles={"reward": {"replicas": 2}}, lifecycle={"suspend": False})
    await up(harness)
    assert "sum-of-mine" in harness.names("Service")
    assert "sum-rollout" not in harness.names("Service")


async def test_it_is_told_and_what_was_counted_stays_counted(harness: Harness) -> None:
    harness.edit_spec(roles=OTHER)
    await up(harness)
    with harness.edited("PPOJob", "sum") as job:
        (role,) = (one for one in job["status"]["roles"] if one["name"] == "rollout")
        role["restarts"] = job["status"]["restarts"] = 2
    await suspended(harness)
    harness.edit_spec(roles={"reward": {"replicas": 2}})
    await harness.settle()
    told = [one for one in harness.cluster.of("Event") if one["reason"] == "LayoutChanged"]
    assert [one["message"] for one in told] == [
        "new pods: controller 1, actorRollout 1, reward 2; "
        "previous pods: controller 1, actorRollout 2, rollout 3, reward 1"
    ]
    assert harness.status["restarts"] == 2
    assert [one["name"] for one in harness.status["roles"]] == [
        "controller",
        "actorRollout",
        "reward",
    ]


def test_pods_that_are_there_still_save_a_checkpoint_before_they_go() -> None:
    """An operator that was behind had said that they were gone."""
    job = make_job(status_of(make_job(), THERE), roles=OTHER)
    planned = look(job, THERE)
    assert deleted(planned) == ["sum-controller"]
    assert not {Apply, CreateKeys} & {type(one) for wave in planned.waves for one in wave}
    assert made(planned, "StatefulSet") == made(planned, "ConfigMap") == []
    ready = claim(status_after(planned), "PodsReady")
    assert (ready.reason, ready.message) == (
        "PodsTerminating",
        "pods of the previous layout are still terminating",
    )


async def test_an_edit_under_pods_that_run_ends_with_the_same_objects(harness) -> None:
    await up(harness)
    harness.edit_spec(roles=OTHER)
    await up(harness)
    assert objects(harness) == await made_so()


@pytest.mark.parametrize("left", ["sets", "pods"])
def test_nothing_is_made_beside_what_is_left_of_another_layout(left: str) -> None:
    job = make_job(status_of(make_job(), THERE), roles=OTHER)
    orphans = all_pods(layout=LAYOUT, is_deleting=True)
    there = observed() if left == "sets" else seen(pods=orphans)
    planned = look(job, there)
    assert made(planned, "StatefulSet") == made(planned, "ConfigMap") == []
    sets = ["sum-controller", "sum-actor-rollout", "sum-reward"]
    assert sorted(deleted(planned)) == (sorted(sets) if left == "sets" else [])


@pytest.mark.parametrize("scheduling", [VOLCANO, WORKLOAD], ids=lambda one: one["type"])
def test_what_places_pods_stays_as_it_is_while_they_are_there(scheduling: dict[str, Any]) -> None:
    """What Kubernetes places gangs by never changes: it would be refused, and hold the job up."""
    before, moved = make_job(scheduling=scheduling), make_job(scheduling=scheduling, roles=OTHER)
    kinds = GANGS[before.validated.spec.scheduling.type].kinds
    gang: list[Child] = []
    for kind in kinds:
        (one,) = made(look(before, seen(*gang)), kind.partition(".")[0])
        gang.append(child(one, kind))
    pods = all_pods(layout=layout_of(gang[-1].manifest["metadata"]), is_ready=True)
    written = actions(look(moved, seen(*gang, pods=pods)), Apply | Create)
    assert not {one.manifest["kind"] for one in written} & {"Workload", "PodGroup"}
    assert deleted(look(moved, seen(*gang))) == [one.name for one in gang]


def test_objects_of_an_earlier_job_of_the_name_are_none_of_its_layout() -> None:
    """The garbage collector has not come to them yet."""
    sets = [one for one in CHILDREN.values() if one.kind == "StatefulSet"]
    left = (dataclasses.replace(one, owner_uid="of-before") for one in sets)
    planned = look(make_job(roles=OTHER), seen(*left))
    assert deleted(planned) == []
    assert [one["metadata"]["name"] for one in made(planned, "StatefulSet")] == ["sum-rollout"]


def test_what_an_operator_of_before_made_is_of_the_layout_that_the_job_has() -> None:
    """Its pods say nothing of layouts."""
    job = make_job()
    assert Create not in {type(one) for wave in look(job, UP).waves for one in wave}
    assert deleted(look(job, UP)) == []


def test_a_queue_is_asked_anew() -> None:
    """What it admitted is another number of pods."""
    job = queued_job()
    before = admitted(job)
    moved = queued_job(status_of(job, seen(before)), roles=OTHER)
    planned = look(moved, seen(before))
    assert deleted(planned) == [before.name]
    assert made(planned, "StatefulSet") == made(planned, "Workload") == []
    gone = look(queued_job(status_after(planned), roles=OTHER), seen())
    (workload,) = made(gone, "Workload")
    counts = {one["name"]: one["count"] for one in workload["spec"]["podSets"]}
    assert counts == {"controller": 1, "actor-rollout": 2, "rollout": 3, "reward": 1}
    assert admission_of(gone, moved)[0] == "False"
