"""A job in a queue of Kueue: when it has pods, what the queue is told, what it gets back."""

import datetime
from typing import Any

import pytest
from gang_plans import (
    ADMITTED,
    EVICTED,
    KUEUE,
    QUEUED,
    RESERVED,
    actions,
    admission_of,
    admitted,
    answered,
    child,
    facts,
    four_pods,
    looked_at,
    made,
    queued_job,
    seen,
)
from operator_jobs import CHILDREN, NOW, SETTINGS, UID
from operator_plans import all_pods, kinds, status_after, told

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.build.kueue import released
from ppojob_operator.conditions import holds
from ppojob_operator.plan import plan
from ppojob_operator.state import (
    ApplyStatus,
    Child,
    ControllerReport,
    Delete,
    Observed,
    Plan,
    Pod,
    ReleaseQuota,
)


class TestKueue:
    """A queue admits before there are pods."""

    def test_the_workload_comes_first_and_pods_wait(self) -> None:
        job = queued_job()
        planned = looked_at(job, seen())
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

    def test_a_pod_set_is_no_more_than_quota_and_flavors_need(self) -> None:
        job = queued_job(pods=[{"nodeSelector": {"zone": "a"}, "memory": "2Gi"}])
        (workload,) = made(looked_at(job, seen()), "Workload")
        for one in workload["spec"]["podSets"]:
            (container,) = one["template"]["spec"]["containers"]
            assert container["resources"]["requests"]["memory"] == "2Gi"
            assert container.keys() == {"name", "resources"}
            assert one["template"]["spec"]["nodeSelector"] == {"zone": "a"}
            assert one["template"]["spec"].keys() <= {"containers", "nodeSelector", "tolerations"}

    def test_its_priority_is_that_of_its_class(self) -> None:
        kueue = {**KUEUE, "kueue": {"queueName": "team-a", "priorityClassName": "urgent"}}
        job = queued_job(scheduling=kueue)
        without = looked_at(job, seen())
        assert not made(without, "Workload")
        assert admission_of(without, job)[1:] == (
            "PriorityClassMissing",
            "no WorkloadPriorityClass urgent",
        )
        (workload,) = made(looked_at(job, seen(gangs=facts(priorities={"urgent": 7}))), "Workload")
        assert workload["spec"]["priority"] == 7
        assert workload["spec"]["priorityClassRef"] == {
            "group": "kueue.x-k8s.io",
            "kind": "WorkloadPriorityClass",
            "name": "urgent",
        }

    @pytest.mark.parametrize(
        ("conditions", "reason", "words"),
        [
            ((), "Queued", "in LocalQueue team-a"),
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
    def test_why_it_waits_is_told_in_the_words_of_the_queue(
        self, conditions: tuple[Any, ...], reason: str, words: str
    ) -> None:
        job = queued_job()
        checks = [{"name": "budget", "state": "Pending", "message": "asked"}]
        workload = answered(job, *conditions, admissionChecks=checks)
        planned = looked_at(job, seen(workload))
        assert not made(planned, "StatefulSet")
        assert admission_of(planned, job) == ("False", reason, words)
        assert (status_after(planned).reason, told(planned)) == (reason, [reason])

    def test_a_queue_that_counts_down_is_no_news(self) -> None:
        job = queued_job()

        def look(status: PPOJobStatus | None, words: str) -> Plan:
            workload = answered(job, ("QuotaReserved", "False", "Pending", words))
            return looked_at(queued_job(status), seen(workload))

        first = look(None, "3 more GPUs needed")
        assert told(first) == ["Pending"]
        second = look(first.status, "2 more GPUs needed")
        assert told(second) == []
        assert status_after(second).message == "2 more GPUs needed"

    def test_admitted_its_pods_go_where_its_flavors_are(self) -> None:
        job = queued_job(pods=[{"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "mine"}]}])
        update = {"name": "reward", "labels": {"team": "a"}, "annotations": {"ticket": "7"}}
        checks = [{"name": "budget", "state": "Ready", "podSetUpdates": [update]}]
        planned = looked_at(job, seen(admitted(job, admissionChecks=checks)))
        assert admission_of(planned, job) == ("True", "Admitted", "by ClusterQueue everybody")
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

    def test_no_pod_is_made_for_a_flavor_that_nobody_knows(self) -> None:
        job = queued_job()
        planned = looked_at(job, seen(admitted(job), gangs=facts(flavors={})))
        assert not made(planned, "StatefulSet")
        assert admission_of(planned, job)[1] == "FlavorMissing"

    def test_what_was_admitted_stays_as_it_is(self) -> None:
        edited = queued_job(pods=[{"memory": "2Gi"}])
        assert "Apply" in kinds(looked_at(edited, seen(answered(queued_job()))))
        held = admitted(queued_job())
        assert "Apply" not in kinds(looked_at(edited, seen(held)))

    def test_evicted_it_lets_pods_go_and_then_its_quota(self) -> None:
        job = queued_job()
        workload = admitted(job, EVICTED)
        leaving = looked_at(job, seen(*CHILDREN.values(), workload, pods=all_pods(is_ready=True)))
        deleted = [one.name for one in actions(leaving) if isinstance(one, Delete)]
        assert deleted == ["sum-controller"], "it commits, and needs the others for that"
        assert not any(isinstance(one, ReleaseQuota) for one in actions(leaving))
        gone = looked_at(job, seen(workload))
        assert ReleaseQuota("ppojob-sum", "uid-gang") in actions(gone)
        assert not made(gone, "StatefulSet")

    def test_released_it_is_in_the_queue_again(self) -> None:
        workload = admitted(queued_job(), EVICTED).manifest
        after = released(workload, "2026-01-02T03:04:05Z")["status"]
        assert "admission" not in after
        said = {one["type"]: (one["status"], one["reason"]) for one in after["conditions"]}
        assert said == {
            "QuotaReserved": ("False", "Pending"),
            "Admitted": ("False", "NoReservation"),
            "Evicted": ("True", "Preempted"),
            "Requeued": ("True", "Preempted"),
        }
        again = child({**workload, "status": after})
        planned = looked_at(queued_job(), seen(again))
        assert not any(isinstance(one, ReleaseQuota) for one in actions(planned))

    def test_a_workload_that_somebody_deletes_takes_the_pods_along(self) -> None:
        job = queued_job()
        planned = looked_at(job, seen(pods=four_pods(is_ready=True)))
        assert not made(planned, "Workload"), "the pods of before still hold what it would ask for"
        assert admission_of(planned, job)[0] == "False"
        assert made(looked_at(job, seen()), "Workload")

    def test_the_queue_is_told_when_pods_are_ready_and_when_not(self) -> None:
        job = queued_job()

        def said(workload: Child, pods: tuple[Pod, ...]) -> list[tuple[str, str, str]]:
            planned = looked_at(job, seen(workload, pods=pods))
            writes = [one for one in actions(planned) if isinstance(one, ApplyStatus)]
            assert all(one.uid == "uid-gang" for one in writes)
            return [
                (one["type"], one["status"], one["reason"])
                for write in writes
                for one in write.manifest["status"]["conditions"]
            ]

        assert said(admitted(job), ()) == []
        ready = four_pods(is_ready=True)
        assert said(admitted(job), ready) == [("PodsReady", "True", "Started")]
        started = admitted(job, ("PodsReady", "True", "Started", ""))
        assert said(started, ready) == []
        assert said(started, ready[1:]) == [("PodsReady", "False", "WaitForRecovery")]
        lost = admitted(job, ("PodsReady", "False", "WaitForRecovery", ""))
        assert said(lost, ready) == [("PodsReady", "True", "Recovered")]

    @pytest.mark.parametrize("unknown", [{"served": frozenset()}, {"flavors": {}}])
    def test_the_queue_is_told_nothing_while_it_cannot_be_asked(
        self, unknown: dict[str, Any]
    ) -> None:
        """A right that is gone for a moment is no news of pods: it would evict a healthy job."""
        job = queued_job()
        for workload in (admitted(job), admitted(job, ("PodsReady", "True", "Started", ""))):
            for pods in (four_pods(is_ready=True), four_pods()):
                planned = looked_at(job, seen(workload, pods=pods, gangs=facts(**unknown)))
                assert admission_of(planned, job)[1] in {"GangUnavailable", "FlavorMissing"}
                assert not any(isinstance(one, ApplyStatus) for one in actions(planned))

    def test_an_ended_job_is_told_once_and_stays_in_the_queues_records(self) -> None:
        job = queued_job()
        report = ControllerReport("uid-sum-controller-0", "done", "", 0)
        last = seen(admitted(job), pods=four_pods(is_ready=True), controller=report)
        done = status_after(looked_at(job, last))
        assert holds(done, "Complete")
        ended = queued_job(done)
        planned = looked_at(ended, seen(admitted(job)))
        (write,) = [one for one in actions(planned) if isinstance(one, ApplyStatus)]
        (told_of,) = write.manifest["status"]["conditions"]
        assert (told_of["type"], told_of["reason"]) == ("Finished", "Succeeded")
        assert not any(isinstance(one, Delete) for one in actions(planned))
        finished = admitted(job, ("Finished", "True", "Succeeded", ""))
        assert not any(
            isinstance(one, ApplyStatus) for one in actions(looked_at(ended, seen(finished)))
        )

    def test_a_queue_is_not_told_of_the_end_while_pods_commit(self) -> None:
        """It would give their quota to another job at once."""
        job = queued_job(lifecycle={"activeDeadlineSeconds": 60})
        started = PPOJobStatus(start_time="2026-01-02T03:00:00Z")
        there = seen(admitted(job), pods=four_pods(is_ready=True))
        lifecycle = {"activeDeadlineSeconds": 60}
        over = status_after(looked_at(queued_job(started, lifecycle=lifecycle), there))
        assert over.reason == "DeadlineExceeded"
        ended = queued_job(over, lifecycle=lifecycle)
        planned = looked_at(ended, there)
        assert not any(isinstance(one, ApplyStatus) for one in actions(planned))
        planned = looked_at(ended, seen(admitted(job)))
        (write,) = [one for one in actions(planned) if isinstance(one, ApplyStatus)]
        assert write.manifest["status"]["conditions"][0]["type"] == "Finished"

    def test_a_suspended_job_leaves_the_queue_behind_its_pods(self) -> None:
        job = queued_job()
        paused = queued_job(lifecycle={"suspend": True})
        workload = admitted(job)
        leaving = looked_at(paused, seen(workload, pods=four_pods()))
        assert Delete(QUEUED, "ppojob-sum", "uid-gang") not in actions(leaving)
        gone = looked_at(paused, seen(workload))
        assert Delete(QUEUED, "ppojob-sum", "uid-gang") in actions(gone)

    def test_what_a_queue_gave_and_no_node_has_goes_back_in_time(self) -> None:
        """Quota is held by a job none of whose pods finds a place; then it waits as long."""
        scheduling = {**KUEUE, "startDeadlineSeconds": 60}
        workload = admitted(queued_job())
        short = seen(workload, pods=four_pods(unschedulable="0/1 nodes: no GPU"))

        def look(status: PPOJobStatus, there: Observed, seconds: float) -> Plan:
            job = queued_job(status, scheduling=scheduling)
            return plan(job, there, SETTINGS, NOW + datetime.timedelta(seconds=seconds))

        started = status_after(look(PPOJobStatus(), short, 0))
        early = look(started, short, 59)
        assert early.again_in == pytest.approx(1.0)
        gave_back = status_after(look(started, short, 60))
        assert gave_back.reason == "GaveBack"
        assert Delete(QUEUED, "ppojob-sum", "uid-gang") not in actions(look(gave_back, short, 61))
        assert Delete(QUEUED, "ppojob-sum", "uid-gang") in actions(
            look(gave_back, seen(workload), 62)
        )
        assert not made(look(gave_back, seen(), 119), "Workload")
        assert made(look(gave_back, seen(), 120), "Workload")
