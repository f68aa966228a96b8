"""Why a job does not go on, case by case: from what is seen to what is said."""

import dataclasses
import datetime
from typing import Any, get_args

import pytest
from operator_jobs import NOW, UID, job_manifest, make_job

from ppojob_api.v1alpha1.status import (
    Condition,
    FailureKind,
    FailureRecord,
    PPOJobStatus,
    TrainingStatus,
)
from ppojob_api.well_known import RoleName
from ppojob_cli.cluster.findings import (
    UNKNOWN,
    Finding,
    Seen,
    SeenLease,
    ToldWarning,
    explanation,
    findings,
    remedy,
    tables,
)
from ppojob_operator.conditions import ConditionType, rfc3339
from ppojob_operator.reading import read_job
from ppojob_operator.state import ControllerReport, Node, Pod, Time

RUNNING = {
    "Accepted": ("True", "Valid"),
    "Admitted": ("True", "NoQueue"),
    "PodsReady": ("True", "EveryPodReady"),
    "Rendezvoused": ("True", "AllRanksMet"),
    "Training": ("True", "Stepping"),
    "Suspended": ("False", "NotAsked"),
    "Complete": ("False", "NotEnded"),
    "Failed": ("False", "NotEnded"),
}
WAITING = {
    **RUNNING,
    "PodsReady": ("False", "Starting"),
    "Rendezvoused": ("False", "Waiting"),
    "Training": ("False", "Waiting"),
}


def before(**time: float) -> Time:
    return NOW - datetime.timedelta(**time)


def status(
    conditions: dict[str, tuple[str, ...]] = RUNNING,
    training: dict[str, Any] | None = None,
    **fields: Any,
) -> PPOJobStatus:
    said = tuple(
        Condition.model_validate(
            {
                "type": name,
                "status": words[0],
                "reason": words[1],
                "message": words[2] if len(words) > 2 else "",
                "lastTransitionTime": rfc3339(before(minutes=3)),
            }
        )
        for name, words in conditions.items()
    )
    told = None if training is None else TrainingStatus(**training)
    given = {"observed_generation": 1, "phase": "Running", "training": told, **fields}
    return PPOJobStatus(conditions=said, **given)


def pod(name: str, role: RoleName, **fields: Any) -> Pod:
    return Pod("lab", name, f"uid-{name}", UID, role, before(minutes=3), **fields)


def pods(**fields: Any) -> tuple[Pod, ...]:
    given = {"is_ready": True, "phase": "Running", **fields}
    return (
        pod("sum-controller-0", "controller", **given),
        pod("sum-actor-rollout-0", "actorRollout", **given),
        pod("sum-reward-0", "reward", **given),
        pod("sum-reward-1", "reward", **given),
    )


def seen(said: PPOJobStatus | None = None, spec: dict[str, Any] | None = None, **more: Any) -> Seen:
    job = make_job(said or status(), **(spec or {}))
    return Seen(**{"job": job, "now": NOW, "pods": pods(), **more})


def reasons(what: Seen) -> list[str]:
    return [one.reason for one in findings(what)]


def only(what: Seen) -> Finding:
    (found,) = findings(what)
    return found


def test_a_job_that_runs_has_nothing_to_say() -> None:
    lease = SeenLease("one", before(seconds=2), 8)
    assert findings(seen(lease=lease)) == []
    said = "\n".join(explanation(seen(status(training={"step": 3, "total_steps": 8}))))
    assert said == "sum: Running at step 3 of 8: nothing that can be seen holds it up"


def test_a_job_that_is_done_has_nothing_to_say() -> None:
    done = {**RUNNING, "Complete": ("True", "TrainingDone"), "Training": ("False", "Stopped")}
    what = seen(status(done, phase="Succeeded"), pods=(), lease=SeenLease("", None, 8))
    assert findings(what) == []
    assert list(explanation(what)) == ["sum: Succeeded: done"]


def loss(role: str = "controller", seconds: float = 60, **fields: Any) -> FailureRecord:
    given = {"kind": "transient", "reason": "OOMKilled", "restart": 1, "step": 2, **fields}
    time = rfc3339(before(seconds=seconds))
    return FailureRecord(pod=f"sum-{role}-0", uid="u", role=role, time=time, **given)


def test_a_failed_job_tells_how_it_failed_and_all_that_ended_before() -> None:
    failed = {**WAITING, "Failed": ("True", "RestartBudgetSpent", "3 times without a step")}
    losses = (loss("reward", 9_000, reason="ExitStatus1", kind="application"), loss(), loss())
    what = seen(status(failed, failures=losses, phase="Failed"), pods=())
    first, *others = findings(what)
    assert (first.reason, first.what) == ("RestartBudgetSpent", "3 times without a step")
    assert first.remedy == remedy("Failed", "RestartBudgetSpent")
    assert [one.what for one in others] == [
        "controller: pod sum-controller-0 ended 2 times, last 1 min 00 s ago at step 2: OOMKilled",
        "reward: pod sum-reward-0 ended 2 h 30 min ago at step 2: ExitStatus1",
    ]
    assert others[0].remedy.startswith("transient: started again")


def test_a_job_that_was_never_accepted() -> None:
    line = "spec.checkpoint.volume: got nothing: why; what"
    said = {"Accepted": ("False", "InvalidSpec", line), "Failed": ("True", "InvalidSpec", line)}
    found = only(seen(status(said, phase="Failed"), pods=()))
    assert (found.what, found.remedy) == (line, remedy("Accepted", "InvalidSpec"))


def test_a_loss_of_a_running_job_is_news_for_ten_minutes() -> None:
    assert reasons(seen(status(failures=(loss(seconds=599),)))) == ["OOMKilled"]
    assert reasons(seen(status(failures=(loss(seconds=601),)))) == []


@pytest.mark.parametrize(
    ("lease", "is_silent"),
    [
        (SeenLease("one", before(seconds=23), 8), False),
        (SeenLease("one", before(seconds=25), 8), True),
        (SeenLease("", before(seconds=1), 8), True),
        (SeenLease("one", None, 8), True),
        (None, False),
    ],
)
def test_a_lease_that_is_not_renewed(lease: SeenLease | None, is_silent: bool) -> None:
    assert reasons(seen(lease=lease)) == ["OperatorSilent"] * is_silent


def test_a_job_that_no_operator_looks_at() -> None:
    # The job of the tests was made four minutes ago.
    untouched = seen(PPOJobStatus(), pods=())
    assert reasons(untouched) == ["OperatorBehind"]
    assert "4 min 05 s" in only(untouched).what
    young = Seen(job=make_job(), now=before(minutes=4), pods=())
    assert findings(young) == []


def test_an_edit_that_no_operator_has_seen() -> None:
    assert reasons(seen(status(observed_generation=0))) == ["OperatorBehind"]


def test_a_silent_operator_is_not_told_twice() -> None:
    what = seen(PPOJobStatus(), pods=(), lease=SeenLease("one", before(hours=1), 8))
    assert reasons(what) == ["OperatorSilent"]


def test_a_spec_that_was_refused_while_the_job_runs() -> None:
    refused = {**RUNNING, "Accepted": ("False", "InvalidSpec", "spec.pods[0]: got 1: why; what")}
    found = only(seen(status(refused)))
    assert (found.reason, found.what) == ("InvalidSpec", "spec.pods[0]: got 1: why; what")


def test_a_spec_that_was_refused_of_a_job_without_pods_is_told_once() -> None:
    said = ("False", "InvalidSpec", "spec.pods[0]: got 1: why; what")
    refused = {**WAITING, "Accepted": said, "Admitted": said}
    found = only(seen(status(refused, phase="Pending"), pods=()))
    assert found.remedy == remedy("Accepted", "InvalidSpec")


def test_a_spec_that_is_newer_than_the_operator() -> None:
    newer = {"Accepted": ("Unknown", "NewerSpec", "spec.later: got 1: why; what")}
    found = only(seen(status(newer, phase="Pending"), pods=()))
    assert (found.reason, found.what) == ("NewerSpec", "spec.later: got 1: why; what")
    assert found.remedy == remedy("Accepted", "NewerSpec")


def test_a_spec_that_is_newer_than_the_command_line_alone() -> None:
    manifest = job_manifest()
    manifest["spec"]["later"] = 1
    job = dataclasses.replace(read_job(manifest), status=status())
    assert job.problems
    assert findings(Seen(job=job, now=NOW, pods=pods())) == []


def test_a_suspended_job_says_only_that() -> None:
    asked = {**WAITING, "Suspended": ("True", "Asked", "spec.lifecycle.suspend is true")}
    assert reasons(seen(status(asked, phase="Suspended"), pods=())) == ["Asked"]
    going = {**WAITING, "Suspended": ("False", "Suspending", "the controller commits")}
    assert reasons(seen(status(going))) == ["Suspending"]


def test_a_job_that_is_not_admitted_lacks_no_pods() -> None:
    words = "2 of 4 pods had a place"
    gave = {
        **WAITING,
        "Admitted": ("False", "GaveBack", words),
        "PodsReady": ("False", "Stopped", "no pods are wanted"),
    }
    found = findings(seen(status(gave), pods=()))
    assert [one.what for one in found] == [words]


def test_every_obstacle_is_told_in_the_order_of_the_status() -> None:
    image = {"is_ready": False, "waiting_reason": "ErrImagePull", "waiting_message": "not found"}
    space = {"is_ready": False, "unschedulable": "0/1 nodes are available"}
    there = (
        pod("sum-controller-0", "controller", is_ready=True, node="n"),
        pod("sum-actor-rollout-0", "actorRollout", **space),
        pod("sum-reward-0", "reward", **image),
        pod("sum-reward-1", "reward", **image),
    )
    found = findings(seen(status(WAITING), pods=there))
    assert [(one.reason, one.what) for one in found] == [
        ("ImageUnavailable", "reward: pod sum-reward-0: ErrImagePull: not found (and 1 more)"),
        ("Unschedulable", "actorRollout: pod sum-actor-rollout-0: 0/1 nodes are available"),
    ]
    assert [one.remedy for one in found] == [
        remedy("PodsReady", reason) for reason in ("ImageUnavailable", "Unschedulable")
    ]


def test_a_silent_node() -> None:
    there = pods(is_ready=False, node="n")
    what = seen(status(WAITING), pods=there, nodes={"n": Node("n", before(minutes=1))})
    assert only(what).reason == "NodeLost"


def test_pods_that_are_not_made_and_who_refused_them() -> None:
    words = "create Pod sum-reward-1 failed: exceeded quota: small"
    warnings = (
        ToldWarning("StatefulSet", "sum-reward", "FailedCreate", "older"),
        ToldWarning("StatefulSet", "sum-reward", "FailedCreate", words),
        ToldWarning("StatefulSet", "sum-controller", "FailedCreate", "another's"),
    )
    what = seen(status(WAITING), pods=pods()[:3], warnings=warnings)
    found = only(what)
    assert found.reason == "PodsMissing"
    assert found.what == f"reward: pod sum-reward-1: not made yet: {words}"


def test_a_secret_that_a_pod_waits_for() -> None:
    there = pods(is_ready=False, phase="Pending", waiting_reason="ContainerCreating", node="n")
    words = 'MountVolume.SetUp failed for volume "user-0": secret "mine" not found'
    warnings = (
        ToldWarning("Pod", "sum-reward-0", "FailedMount", "older"),
        ToldWarning("Pod", "sum-reward-0", "FailedMount", words),
        ToldWarning("Pod", "sum-reward-0", "Unhealthy", "not about mounts"),
        ToldWarning("Pod", "other-0", "FailedMount", "not ours"),
    )
    found = only(seen(status(WAITING), pods=there, warnings=warnings))
    assert (found.reason, found.what) == ("ContainerWaits", f"reward: pod sum-reward-0: {words}")


def test_pods_that_simply_start() -> None:
    found = only(seen(status(WAITING), pods=pods(is_ready=False)))
    assert (found.reason, found.what) == ("Starting", "0 of 4 pods are ready")


def test_the_status_is_older_than_the_pods() -> None:
    old = {**WAITING, "PodsReady": ("False", "Unschedulable", "of before")}
    found = findings(seen(status(old), pods=pods()))
    assert "of before" not in [one.what for one in found]


def test_pods_that_may_not_be_seen_are_told_by_the_status() -> None:
    said = {**WAITING, "PodsReady": ("False", "Unschedulable", "as the operator saw it")}
    what = seen(status(said), pods=None, hidden=("pods: forbidden",))
    assert only(what).what == "as the operator saw it"
    assert list(explanation(what))[-1] == "not looked at: pods: forbidden"


def test_an_object_that_was_refused() -> None:
    said = {**WAITING, "PodsReady": ("False", "ObjectRefused", "Service sum-reward: is not ours")}
    found = findings(seen(status(said), pods=()))
    assert [one.reason for one in found] == ["ObjectRefused", "PodsMissing"]


def test_the_rank_that_is_missing() -> None:
    met = {**RUNNING, "Rendezvoused": ("False", "Waiting"), "Training": ("False", "Waiting")}
    reports = {
        one.uid: ControllerReport(one.uid, "ready" if one.role != "reward" else "lost", "exit 1")
        for one in pods()
    }
    found = only(seen(status(met), reports=reports))
    assert found.reason == "RanksMissing"
    assert found.what == "reward: pod sum-reward-0: its ranks are lost: exit 1 (and 1 more)"
    nobody_asked = only(seen(status(met)))
    assert nobody_asked.reason == "Waiting"


@pytest.mark.parametrize(
    ("minutes", "eta", "is_stale"),
    [(4, None, False), (6, None, True), (6, "1h", False), (31, "1h", True)],
)
def test_a_step_that_takes_too_long(minutes: int, eta: str | None, is_stale: bool) -> None:
    # Six steps are left: an hour makes ten minutes a step.
    said = status(training={"step": 2, "total_steps": 8, "eta": eta})
    what = seen(said, progressed=before(minutes=minutes))
    assert reasons(what) == ["StepStale"] * is_stale


def test_a_stage_that_is_no_training_is_no_stale_step() -> None:
    said = status(WAITING, training={"step": 2, "total_steps": 8})
    assert "StepStale" not in reasons(seen(said, progressed=before(hours=5)))


@pytest.mark.parametrize(
    ("ran", "eta", "is_near"),
    [(3_100, None, True), (2_000, None, False), (2_000, "20m", False), (2_000, "30m", True)],
)
def test_a_deadline(ran: int, eta: str | None, is_near: bool) -> None:
    start = rfc3339(before(seconds=ran))
    said = status(training={"step": 2, "total_steps": 8, "eta": eta}, start_time=start)
    spec = {"lifecycle": {"activeDeadlineSeconds": 3_600}}
    assert reasons(seen(said, spec)) == ["DeadlineNear"] * is_near


def test_a_reason_that_is_not_known_yet() -> None:
    later = {**WAITING, "Admitted": ("False", "OfALaterVersion", "words")}
    found = findings(seen(status(later), pods=()))[0]
    assert (found.reason, found.remedy) == ("OfALaterVersion", UNKNOWN)
    assert remedy("PodsReady", "Starting") != UNKNOWN


def test_an_explanation_is_numbered_and_escaped() -> None:
    said = {**WAITING, "Admitted": ("False", "GaveBack", "red \x1b[31m words")}
    lines = list(explanation(seen(status(said, phase="Pending"), pods=())))
    assert lines[:3] == ["sum: Pending: 1 thing to know", "", "1. GaveBack: red \\x1b[31m words"]
    assert lines[3].startswith("   -> some pods found no place")


def test_every_condition_has_a_table() -> None:
    assert set(tables()) == set(get_args(ConditionType)) - {"Complete"} | {"Found", "Ended"}
    assert all(tables().values())


def test_every_class_of_failures_has_a_line() -> None:
    assert set(tables()["Ended"]) == set(get_args(FailureKind))


def test_what_is_said_is_the_last_column() -> None:
    assert remedy("Ended", "disruption") == "another pod is made; not counted"
    assert remedy("Admitted", "FlavorMissing") == remedy("Admitted", "PriorityClassMissing")
    assert remedy("Failed", "NewerSpec").startswith("wait: the resource was upgraded")
    assert remedy("Failed", "OfTomorrow") == UNKNOWN
