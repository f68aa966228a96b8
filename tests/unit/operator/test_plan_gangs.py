import dataclasses
from fractions import Fraction
from typing import Any

import pytest
from gang_plans import (
    COSCHEDULING,
    FOUR_READY,
    KUEUE,
    VOLCANO,
    WORKLOAD,
    admission_of,
    admitted,
    answered,
    child,
    four_pods,
    queued_job,
    seen,
)
from hypothesis import given
from hypothesis import strategies as st
from operator_jobs import NO_STATUS, make_job, observed
from operator_plans import (
    NOTHING,
    actions,
    all_pods,
    kinds,
    look,
    made,
    pod,
    status_after,
    status_of,
    told,
)

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.build.gang import GANGS, total_requests
from ppojob_operator.state import Child, Delete, Job, Observed, Plan, PodSet


def gang_of(job: Job) -> list[Child]:
    """The objects that a job is placed by, each made when the one before it is there."""
    there: list[Child] = []
    for kind in GANGS[job.validated.spec.scheduling.type].kinds:
        planned = look(job, seen(*there))
        (one,) = made(planned, kind.partition(".")[0])
        there.append(child(one, kind))
    return there


def test_volcano_gets_one_group_of_all_pods() -> None:
    job = make_job(
        scheduling=VOLCANO,
        roles={"reward": {"replicas": 2}, "actorRollout": {"gpusPerReplica": 2}},
        pods=[{"memory": "512Mi"}],
    )
    planned = look(job, seen())
    (group,) = made(planned, "PodGroup")
    assert kinds(planned).index("Create PodGroup") < kinds(planned).index("Create StatefulSet")
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    spec = group["spec"]
    assert (spec["minMember"], spec["queue"]) == (4, "research")
    # A controller asks for 100m.
    assert spec["minResources"]["cpu"].endswith("100m")
    assert spec["minResources"]["memory"] == str(4 * 512 * 2**20)
    assert spec["minResources"]["nvidia.com/gpu"] == "2"
    for one in made(planned, "StatefulSet"):
        template = one["spec"]["template"]
        assert template["spec"]["schedulerName"] == "volcano"
        assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "ppojob-sum"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"mode": "soft"}, {"mode": "soft"}),
        ({"highest-tier": "2"}, {"mode": "hard", "highestTierAllowed": 2}),
    ],
)
def test_volcano_reads_the_network_topology_of_pods(given, expected) -> None:
    annotations = {f"volcano.sh/network-topology-{name}": value for name, value in given.items()}
    pods = [{"podOverrides": {"metadata": {"annotations": annotations}}}]
    (group,) = made(look(make_job(scheduling=VOLCANO, pods=pods), seen()), "PodGroup")
    assert group["spec"].get("networkTopology") == expected


def test_coscheduling_gets_one_group_and_its_scheduler_all_pods() -> None:
    named = {**COSCHEDULING, "coscheduling": {"schedulerName": "default-scheduler"}}
    for scheduling, expected in (
        (COSCHEDULING, "scheduler-plugins-scheduler"),
        (named, "default-scheduler"),
    ):
        planned = look(make_job(scheduling=scheduling), seen())
        (group,) = made(planned, "PodGroup")
        assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
        assert group["spec"]["minMember"] == 4
        assert group["spec"]["minResources"]["cpu"].endswith("100m")
        for one in made(planned, "StatefulSet"):
            template = one["spec"]["template"]
            assert template["spec"]["schedulerName"] == expected
            assert template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "ppojob-sum"


def test_a_group_without_conditions_waits_for_what_its_pods_say() -> None:
    job = make_job(scheduling=COSCHEDULING)
    (group,) = gang_of(job)
    group = dataclasses.replace(group, manifest={**group.manifest, "status": {"phase": "Pending"}})
    waiting = look(job, seen(group, pods=four_pods(unschedulable="0/1 nodes are available")))
    assert admission_of(waiting, job)[1:] == ("GangPending", "0/1 nodes are available")


def test_kubernetes_own_gang_is_one_group_of_one_workload() -> None:
    job = make_job(scheduling=WORKLOAD)
    planned = look(job, seen())
    assert not made(planned, "PodGroup"), "refused where its Workload is not known"
    workload, group = (one.manifest for one in gang_of(job))
    assert {workload["apiVersion"], group["apiVersion"]} == {"scheduling.k8s.io/v1alpha2"}
    (template,) = workload["spec"]["podGroupTemplates"]
    assert template["schedulingPolicy"] == {"gang": {"minCount": 4}}
    assert group["spec"]["schedulingPolicy"] == template["schedulingPolicy"]
    origin = group["spec"]["podGroupTemplateRef"]["workload"]
    assert origin == {
        "workloadName": workload["metadata"]["name"],
        "podGroupTemplateName": template["name"],
    }
    for one in made(planned, "StatefulSet"):
        spec = one["spec"]["template"]["spec"]
        assert spec["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}


@pytest.mark.parametrize("scheduling", [VOLCANO, COSCHEDULING, WORKLOAD])
def test_admitted_means_that_pods_have_a_place(scheduling: dict[str, Any]) -> None:
    job = make_job(scheduling=scheduling)
    *others, group = gang_of(job)
    words = {"type": "Unschedulable", "reason": "NotEnoughResources", "message": "3/4 in gang"}
    told = {**group.manifest, "status": {"conditions": [words]}}
    group = dataclasses.replace(group, manifest=told)
    waiting = look(job, seen(*others, group, pods=four_pods()))
    why = "NotEnoughResources: 3/4 in gang"
    assert admission_of(waiting, job) == ("False", "GangPending", why)
    status = status_after(waiting)
    assert (status.reason, status.start_time) == ("GangPending", None)
    placed = look(job, seen(*others, group, pods=four_pods(node="n")))
    assert admission_of(placed, job)[:2] == ("True", "Placed")


@pytest.mark.parametrize("scheduling", [VOLCANO, COSCHEDULING, WORKLOAD])
def test_pods_that_are_placed_anew_give_the_job_no_more_time(scheduling: dict[str, Any]) -> None:
    job = make_job(scheduling=scheduling)
    gang = gang_of(job)
    running = status_of(job, seen(*gang, pods=four_pods(node="n")))
    assert running.start_time is not None
    for pods in (four_pods(), ()):
        status = status_of(make_job(running, scheduling=scheduling), seen(*gang, pods=pods))
        assert (status.reason, status.start_time) == ("GangPending", running.start_time)


@pytest.mark.parametrize("scheduling", [VOLCANO, COSCHEDULING, WORKLOAD])
def test_what_a_group_reserves_is_free_when_the_job_is_suspended(scheduling) -> None:
    job = make_job(scheduling=scheduling)
    gang = gang_of(job)
    gone = [Delete(one.kind, "ppojob-sum", "uid-gang") for one in gang]
    paused = make_job(scheduling=scheduling, lifecycle={"suspend": True})
    with_pods = actions(look(paused, seen(*gang, pods=four_pods())))
    assert not any(one in with_pods for one in gone)
    assert {*gone} <= {*actions(look(paused, seen(*gang)), Delete)}


@pytest.fixture(params=[KUEUE, VOLCANO, COSCHEDULING, WORKLOAD], ids=lambda one: one["type"])
def scheduling(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def test_what_is_not_served_is_said_and_nothing_is_made(scheduling: dict[str, Any]) -> None:
    job = make_job(scheduling=scheduling)
    planned = look(job, Observed())
    assert kinds(planned) == ["RecordEvent"]
    status, reason, message = admission_of(planned, job)
    assert (status, reason) == ("False", "GangUnavailable")
    assert f"spec.scheduling.type: {scheduling['type']}" in message
    assert f"gangs.{scheduling['type']}: true" in message


def test_pods_outlive_what_cannot_be_asked(scheduling: dict[str, Any]) -> None:
    job = make_job(scheduling=scheduling)
    there = Observed(pods=FOUR_READY)
    planned = look(job, there)
    assert len(made(planned, "StatefulSet")) == 3
    started = PPOJobStatus(start_time="2026-01-02T03:00:00Z")
    again = status_of(make_job(started, scheduling=scheduling), there)
    assert again.start_time == started.start_time


def test_an_object_of_others_in_our_way_is_told(scheduling: dict[str, Any]) -> None:
    job = make_job(scheduling=scheduling)
    kind = GANGS[scheduling["type"]].kinds[-1]
    why = "it already exists"
    planned = look(job, seen(refused={(kind, "ppojob-sum"): why}))
    assert admission_of(planned, job)[1] == "ObjectRefused"
    assert why in admission_of(planned, job)[2]


def test_what_pods_read_does_not_name_who_places_them(scheduling: dict[str, Any]) -> None:
    placed = look(make_job(scheduling=scheduling), Observed(pods=four_pods()))
    (one,), (other,) = (made(planned, "ConfigMap") for planned in (placed, look(make_job())))
    assert one["metadata"]["name"] == other["metadata"]["name"]


def pods_of(count: int, **requests: str) -> PodSet:
    container = {"name": "trainer", "resources": {"requests": requests}}
    return PodSet("reward", count, {"spec": {"containers": [container]}})


@pytest.mark.parametrize(
    ("sets", "total"),
    [
        ((pods_of(3, cpu="2"), pods_of(1, cpu="100m")), {"cpu": "6100m"}),
        ((pods_of(2, cpu="500m"),), {"cpu": "1"}),
        ((pods_of(2, memory="1536Mi"), pods_of(1, memory="1G")), {"memory": "4221225472"}),
        ((pods_of(4, memory="512Ki"),), {"memory": "2097152"}),
        ((pods_of(8, gpu="2"), pods_of(1, cpu="1")), {"cpu": "1", "gpu": "16"}),
        ((), {}),
    ],
)
def test_what_all_pods_ask_for(sets: tuple[PodSet, ...], total: dict[str, str]) -> None:
    assert total_requests(sets) == total


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 10**6)), min_size=1, max_size=5))
def test_no_thousandth_is_lost(asked: list[tuple[int, int]]) -> None:
    sets = tuple(pods_of(count, cpu=f"{milli}m") for count, milli in asked)
    text = total_requests(sets)["cpu"]
    total = Fraction(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    assert total == Fraction(sum(count * milli for count, milli in asked), 1000)


DEADLINE, HOUR = 60, 3_600
PAUSED = {"lifecycle": {"suspend": True}}
SHORT = "0/1 nodes: no GPU"
IN_PART = observed(pods=(*all_pods(node="n")[:3], pod("sum-reward-1", unschedulable=SHORT)))


def at(seconds: float, status: PPOJobStatus, there: Observed = NOTHING, **changes: Any) -> Plan:
    scheduling = {"startDeadlineSeconds": DEADLINE}
    return look(make_job(status, **{"scheduling": scheduling, **changes}), there, seconds)


def after(*arguments: Any, **changes: Any) -> PPOJobStatus:
    return status_after(at(*arguments, **changes))


@pytest.fixture
def started() -> PPOJobStatus:
    return after(0, NO_STATUS)


def test_it_gives_back_what_it_holds(started: PPOJobStatus) -> None:
    late = at(DEADLINE, started, IN_PART)
    assert kinds(late).count("Delete") == 3
    status = status_after(late)
    assert (status.reason, status.start_time) == ("StartDeadlineExceeded", None)
    assert status.message.startswith("only 3 of 4 pods were scheduled within 60 s")
    assert "no GPU" in status.message
    assert "StartDeadlineExceeded" in told(late)


def test_it_tries_again_after_as_long(started: PPOJobStatus) -> None:
    status = after(DEADLINE, started, IN_PART)
    waiting = at(2 * DEADLINE - 1, status)
    assert "Create StatefulSet" not in kinds(waiting)
    again = at(2 * DEADLINE, waiting.status or status)
    assert kinds(again).count("Create StatefulSet") == 3
    assert status_after(again).start_time is not None


def has_all_its_time(
    status: PPOJobStatus, begun: float, there: Observed = IN_PART, **changes: Any
) -> None:
    """It was started at a time, and gives back what it holds a deadline later."""
    early = at(begun + DEADLINE - 1, status, there, **changes)
    assert "Delete" not in kinds(early)
    assert early.requeue_after == pytest.approx(1.0)
    assert after(begun + DEADLINE, status, there, **changes).reason == "StartDeadlineExceeded"


def test_every_attempt_has_as_much_time_as_the_first(started: PPOJobStatus) -> None:
    has_all_its_time(started, 0)
    given_back = after(DEADLINE, started, IN_PART)
    has_all_its_time(after(2 * DEADLINE, given_back), 2 * DEADLINE)


def test_so_has_a_job_that_was_suspended(started: PPOJobStatus) -> None:
    paused = after(1, started, **PAUSED)
    has_all_its_time(after(HOUR, paused), HOUR)


def test_so_has_a_job_that_was_in_a_queue() -> None:
    queue = {"scheduling": {**KUEUE, "startDeadlineSeconds": DEADLINE}}
    queued = after(0, NO_STATUS, seen(answered(queued_job())), **queue)
    assert queued.reason == "Queued"
    workload = admitted(queued_job())
    short = seen(workload, pods=four_pods(unschedulable=SHORT))
    has_all_its_time(after(HOUR, queued, seen(workload), **queue), HOUR, short, **queue)


def test_so_has_a_job_that_has_trained_for_days(started: PPOJobStatus) -> None:
    running = after(1, started, observed(pods=all_pods(node="n", is_ready=True)))
    has_all_its_time(after(72 * HOUR, running, IN_PART), 72 * HOUR)


def test_so_has_a_job_of_whose_start_nothing_is_written_yet(started: PPOJobStatus) -> None:
    """An operator died between its pods and its status."""
    found = at(HOUR, after(1, started, **PAUSED), IN_PART)
    assert "Delete" not in kinds(found)
    has_all_its_time(status_after(found), HOUR)


def test_a_job_that_is_placed_whole_keeps_its_pods(started: PPOJobStatus) -> None:
    whole = observed(pods=all_pods(node="n"))
    assert "Delete" not in kinds(at(10 * DEADLINE, started, whole))
