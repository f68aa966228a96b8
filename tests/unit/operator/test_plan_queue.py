from typing import Any

import pytest
from gang_plans import (
    ADMISSION,
    ADMITTED,
    EVICTED,
    FOUR_READY,
    KUEUE,
    RESERVED,
    admission_of,
    admitted,
    answered,
    child,
    facts,
    four_pods,
    queued_job,
    seen,
)
from operator_jobs import CHILDREN, NO_STATUS, UID
from operator_plans import READY, actions, deleted, kinds, look, made, status_after, status_of, told

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.build.kueue import released
from ppojob_operator.conditions import holds
from ppojob_operator.state import ApplyStatus, ControllerReport, Delete, ReleaseQuota

STARTED = ("PodsReady", "True", "Started", "")


def test_the_workload_comes_first_and_pods_wait() -> None:
    job = queued_job()
    planned = look(job, seen())
    (workload,) = made(planned, "Workload")
    assert workload["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert workload["metadata"]["name"] == "ppojob-sum"
    assert [one["uid"] for one in workload["metadata"]["ownerReferences"]] == [UID]
    assert workload["spec"]["queueName"] == "team-a"
    counts = {one["name"]: one["count"] for one in workload["spec"]["podSets"]}
    assert counts == {"actor-rollout": 1, "controller": 1, "reward": 2}
    assert not made(planned, "StatefulSet")
    assert admission_of(planned, job)[:2] == ("False", "Queued")
    status = status_after(planned)
    assert (status.phase, status.reason, status.start_time) == ("Pending", "Queued", None)


def test_a_pod_set_is_no_more_than_quota_and_flavors_need() -> None:
    job = queued_job(pods=[{"nodeSelector": {"zone": "a"}, "memory": "2Gi"}])
    (workload,) = made(look(job, seen()), "Workload")
    for one in workload["spec"]["podSets"]:
        (container,) = one["template"]["spec"]["containers"]
        assert container["resources"]["requests"]["memory"] == "2Gi"
        assert container.keys() == {"name", "resources"}
        assert one["template"]["spec"]["nodeSelector"] == {"zone": "a"}
        assert one["template"]["spec"].keys() <= {"containers", "nodeSelector", "tolerations"}


def test_its_priority_is_that_of_its_class() -> None:
    kueue = {**KUEUE, "kueue": {"queueName": "team-a", "priorityClassName": "urgent"}}
    job = queued_job(scheduling=kueue)
    without = look(job, seen())
    assert not made(without, "Workload")
    assert admission_of(without, job)[1:] == (
        "PriorityClassMissing",
        "WorkloadPriorityClass urgent does not exist",
    )
    (workload,) = made(look(job, seen(gangs=facts(priorities={"urgent": 7}))), "Workload")
    assert workload["spec"]["priority"] == 7
    assert workload["spec"]["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "urgent",
    }


@pytest.mark.parametrize(
    ("conditions", "reason", "words"),
    [
        ((), "Queued", "waits in LocalQueue team-a"),
        (
            (("QuotaReserved", "False", "Pending", "insufficient quota for nvidia.com/gpu"),),
            "Pending",
            "insufficient quota for nvidia.com/gpu",
        ),
        (
            (("QuotaReserved", "False", "Inadmissible", "no LocalQueue team-a"),),
            "Inadmissible",
            "no LocalQueue team-a",
        ),
        ((RESERVED,), "AdmissionChecks", "budget: Pending: asked"),
        ((RESERVED, ADMITTED, EVICTED), "Preempted", "to make room for sum-2"),
    ],
)
def test_why_it_waits_is_told_in_the_words_of_the_queue(conditions, reason, words) -> None:
    job = queued_job()
    checks = [{"name": "budget", "state": "Pending", "message": "asked"}]
    workload = answered(job, *conditions, admissionChecks=checks)
    planned = look(job, seen(workload))
    assert not made(planned, "StatefulSet")
    assert admission_of(planned, job) == ("False", reason, words)
    assert (status_after(planned).reason, told(planned)) == (reason, [reason])


def test_a_queue_that_counts_down_is_no_news() -> None:
    status = NO_STATUS
    for words, events in (("3 more GPUs needed", ["Pending"]), ("2 more GPUs needed", [])):
        workload = answered(queued_job(), ("QuotaReserved", "False", "Pending", words))
        planned = look(queued_job(status), seen(workload))
        status = status_after(planned)
        assert (told(planned), status.message) == (events, words)


def test_admitted_its_pods_go_where_its_flavors_are() -> None:
    job = queued_job(pods=[{"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "mine"}]}])
    update = {"name": "reward", "labels": {"team": "a"}, "annotations": {"ticket": "7"}}
    checks = [{"name": "budget", "state": "Ready", "podSetUpdates": [update]}]
    planned = look(job, seen(admitted(job, admissionChecks=checks)))
    assert admission_of(planned, job) == ("True", "Admitted", "admitted by ClusterQueue everybody")
    assert status_after(planned).start_time is not None
    sets = {one["metadata"]["name"]: one for one in made(planned, "StatefulSet")}
    spec = sets["sum-actor-rollout"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"zone": "a", "gpu": "h200"}
    assert [one["key"] for one in spec["tolerations"]][-2:] == ["mine", "gpu"]
    template = sets["sum-reward"]["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"]["ticket"] == "7"
    plain = sets["sum-controller"]["spec"]["template"]["spec"]
    assert plain["nodeSelector"] == {"zone": "a"}


def test_with_a_topology_kueue_chooses_the_node_of_each_pod() -> None:
    annotations = {
        "kueue.x-k8s.io/podset-preferred-topology": "rack",
        "kueue.x-k8s.io/podset-slice-required-topology": "host",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    spec = {"schedulingGates": [{"name": "mine"}]}
    overrides = {"metadata": {"annotations": annotations}, "spec": spec}
    job = queued_job(pods=[{"roles": ["reward"], "podOverrides": overrides}])
    (workload,) = made(look(job, seen()), "Workload")
    requests = {one["name"]: one["topologyRequest"] for one in workload["spec"]["podSets"]}
    index = {"podIndexLabel": "apps.kubernetes.io/pod-index"}
    assert requests == {
        "actor-rollout": index,
        "controller": index,
        "reward": index
        | {"preferred": "rack", "podSetSliceRequiredTopology": "host", "podSetSliceSize": 2},
    }
    chosen = {"topologyAssignment": {"levels": ["rack"]}}
    sets = [{**one, **chosen} for one in ADMISSION["podSetAssignments"]]
    there = answered(job, RESERVED, ADMITTED, admission={**ADMISSION, "podSetAssignments": sets})
    for one in made(look(job, seen(there)), "StatefulSet"):
        metadata, spec = (one["spec"]["template"][name] for name in ("metadata", "spec"))
        slug = one["metadata"]["name"].removeprefix("sum-")
        own = ["mine"] if slug == "reward" else []
        gates = [*own, "kueue.x-k8s.io/topology"]
        assert [one["name"] for one in spec["schedulingGates"]] == gates
        assert metadata["labels"]["kueue.x-k8s.io/podset"] == slug
        assert metadata["annotations"]["kueue.x-k8s.io/workload"] == "ppojob-sum"
        free = metadata["annotations"].get("kueue.x-k8s.io/podset-unconstrained-topology")
        assert free == (None if slug == "reward" else "true")


def test_no_pod_is_made_for_a_flavor_that_nobody_knows() -> None:
    job = queued_job()
    planned = look(job, seen(admitted(job), gangs=facts(flavors={})))
    assert not made(planned, "StatefulSet")
    assert admission_of(planned, job)[1] == "FlavorMissing"


def test_what_was_admitted_stays_as_it_is() -> None:
    edited = queued_job(pods=[{"memory": "2Gi"}])
    assert "Apply" in kinds(look(edited, seen(answered(queued_job()))))
    held = admitted(queued_job())
    assert "Apply" not in kinds(look(edited, seen(held)))


def test_evicted_it_lets_pods_go_and_then_its_quota() -> None:
    job = queued_job()
    workload = admitted(job, EVICTED)
    leaving = look(job, seen(*CHILDREN.values(), workload, pods=READY))
    assert deleted(leaving) == ["sum-controller"], (
        "it writes a checkpoint, and needs the others for that"
    )
    assert not actions(leaving, ReleaseQuota)
    gone = look(job, seen(workload))
    assert ReleaseQuota("ppojob-sum", "uid-gang") in actions(gone)
    assert not made(gone, "StatefulSet")


@pytest.mark.parametrize(
    ("why", "requeued"),
    [
        ("Preempted", ("True", "Preempted")),
        ("LocalQueueStopped", ("False", "LocalQueueStopped")),
        # Kueue knows by this word alone that a job that is active again is to be taken back.
        ("DeactivatedDueToAdmissionCheck", ("False", "Deactivated")),
    ],
)
def test_released_it_is_in_the_queue_again_or_kueue_takes_it_back(why, requeued) -> None:
    workload = admitted(queued_job(), ("Evicted", "True", why, "")).manifest
    after = released(workload, "2026-01-02T03:04:05Z")["status"]
    assert "admission" not in after
    said = {one["type"]: (one["status"], one["reason"]) for one in after["conditions"]}
    assert said == {
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Evicted": ("True", why),
        "Requeued": requeued,
    }
    again = child({**workload, "status": after})
    planned = look(queued_job(), seen(again))
    assert not actions(planned, ReleaseQuota)


def test_a_workload_that_somebody_deletes_takes_the_pods_along() -> None:
    job = queued_job()
    planned = look(job, seen(pods=FOUR_READY))
    assert not made(planned, "Workload"), "the pods of before still hold what it would ask for"
    assert admission_of(planned, job)[0] == "False"
    assert made(look(job, seen()), "Workload")


def test_the_queue_is_told_when_pods_are_ready_and_when_not() -> None:
    job, ready = queued_job(), FOUR_READY
    before = ((), STARTED, ("PodsReady", "False", "WaitForRecovery", ""))
    new, started, lost = (admitted(job, *([one] if one else [])) for one in before)
    for workload, pods, said in (
        (new, (), ()),
        (new, ready, ("True", "Started")),
        (started, ready, ()),
        (started, ready[1:], ("False", "WaitForRecovery")),
        (lost, ready, ("True", "Recovered")),
    ):
        writes = actions(look(job, seen(workload, pods=pods)), ApplyStatus)
        assert [one.uid for one in writes] == ["uid-gang"] * len(writes)
        told_of = [one for write in writes for one in write.manifest["status"]["conditions"]]
        words = [(one["type"], one["status"], one["reason"]) for one in told_of]
        assert words == ([("PodsReady", *said)] if said else [])


@pytest.mark.parametrize("unknown", [{"served": frozenset()}, {"flavors": {}}])
def test_the_queue_is_told_nothing_while_it_cannot_be_asked(unknown: dict[str, Any]) -> None:
    """A right that is gone for a moment is no news of pods: it would evict a healthy job."""
    job = queued_job()
    for workload in (admitted(job), admitted(job, STARTED)):
        for pods in (FOUR_READY, four_pods()):
            planned = look(job, seen(workload, pods=pods, gangs=facts(**unknown)))
            assert admission_of(planned, job)[1] in {"GangUnavailable", "FlavorMissing"}
            assert not actions(planned, ApplyStatus)


def test_an_ended_job_is_told_once_and_stays_in_the_queues_records() -> None:
    job = queued_job()
    report = ControllerReport("uid-sum-controller-0", "done", "", 0)
    last = seen(admitted(job), pods=FOUR_READY, controller=report)
    done = status_of(job, last)
    assert holds(done, "Complete")
    ended = queued_job(done)
    planned = look(ended, seen(admitted(job)))
    (write,) = actions(planned, ApplyStatus)
    (told_of,) = write.manifest["status"]["conditions"]
    assert (told_of["type"], told_of["reason"]) == ("Finished", "Succeeded")
    assert not actions(planned, Delete)
    finished = admitted(job, ("Finished", "True", "Succeeded", ""))
    assert not actions(look(ended, seen(finished)), ApplyStatus)


def test_a_queue_is_not_told_of_the_end_while_pods_checkpoint() -> None:
    """It would give their quota to another job at once."""
    lifecycle = {"activeDeadlineSeconds": 60}
    job = queued_job(PPOJobStatus(start_time="2026-01-02T03:00:00Z"), lifecycle=lifecycle)
    there = seen(admitted(job), pods=FOUR_READY)
    ended = queued_job(status_of(job, there), lifecycle=lifecycle)
    assert ended.status.reason == "DeadlineExceeded"
    planned = look(ended, there)
    assert not actions(planned, ApplyStatus)
    planned = look(ended, seen(admitted(job)))
    (write,) = actions(planned, ApplyStatus)
    assert write.manifest["status"]["conditions"][0]["type"] == "Finished"


def test_a_suspended_job_leaves_the_queue_behind_its_pods() -> None:
    paused, workload = queued_job(lifecycle={"suspend": True}), admitted(queued_job())
    assert "ppojob-sum" not in deleted(look(paused, seen(workload, pods=four_pods())))
    assert "ppojob-sum" in deleted(look(paused, seen(workload)))


def test_what_a_queue_gave_and_no_node_has_goes_back_in_time() -> None:
    """Quota is held by a job none of whose pods finds a place; then it waits as long."""
    scheduling = {**KUEUE, "startDeadlineSeconds": 60}
    workload = admitted(queued_job())
    short = seen(workload, pods=four_pods(unschedulable="0/1 nodes: no GPU"))
    started = queued_job(status_of(queued_job(scheduling=scheduling), short), scheduling=scheduling)
    gave_back = queued_job(status_of(started, short, 60), scheduling=scheduling)
    assert gave_back.status.reason == "StartDeadlineExceeded"
    assert "ppojob-sum" not in deleted(look(gave_back, short, 61))
    assert "ppojob-sum" in deleted(look(gave_back, seen(workload), 62))
    assert not made(look(gave_back, seen(), 119), "Workload")
    assert made(look(gave_back, seen(), 120), "Workload")
