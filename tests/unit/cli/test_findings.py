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
    OperatorLease,
    Snapshot,
    WarningEvent,
    explanation,
    findings,
    remedy,
    tables,
)
from ppojob_operator.conditions import ConditionType, rfc3339
from ppojob_operator.reading import read_job
from ppojob_operator.state import ControllerReport, Pod, Time

RUNNING = {
    "Accepted": ("True", "Valid"),
    "Admitted": ("True", "NoQueue"),
    "PodsReady": ("True", "AllPodsReady"),
    "Rendezvoused": ("True", "AllRanksConnected"),
    "Training": ("True", "Stepping"),
    "Suspended": ("False", "NotSuspended"),
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


def seen(
    said: PPOJobStatus | None = None, spec: dict[str, Any] | None = None, **more: Any
) -> Snapshot:
    job = make_job(said or status(), **(spec or {}))
    return Snapshot(**{"job": job, "now": NOW, "pods": pods(), **more})


def told(what: Snapshot) -> list[tuple[str, str]]:
    return [(one.reason, one.what) for one in findings(what)]


def only(what: Snapshot) -> Finding:
    (found,) = findings(what)
    return found


def loss(role: str = "controller", seconds: float = 60, **fields: Any) -> FailureRecord:
    given = {"kind": "transient", "reason": "OOMKilled", "restart": 1, "step": 2, **fields}
    time = rfc3339(before(seconds=seconds))
    return FailureRecord(pod=f"sum-{role}-0", uid="u", role=role, time=time, **given)


def leased(holder: str, renewed: Time | None) -> Snapshot:
    return seen(lease=OperatorLease(holder, renewed, 8))


def stepping(minutes: float, eta: str | None) -> Snapshot:
    """Six steps are left: an hour makes ten minutes a step."""
    said = status(training={"step": 2, "total_steps": 8, "eta": eta})
    return seen(said, progressed=before(minutes=minutes))


def near_its_deadline(ran: float, eta: str | None) -> Snapshot:
    start = rfc3339(before(seconds=ran))
    said = status(training={"step": 2, "total_steps": 8, "eta": eta}, start_time=start)
    return seen(said, {"lifecycle": {"activeDeadlineSeconds": 3_600}})


REFUSED = ("False", "InvalidSpec", "spec.pods[0]: got 1: why; what")
UNMET = {**RUNNING, "Rendezvoused": ("False", "Waiting"), "Training": ("False", "Waiting")}
DONE = {**RUNNING, "Complete": ("True", "TrainingDone"), "Training": ("False", "Stopped")}


@pytest.mark.parametrize(
    ("what", "reasons"),
    [
        (seen(status(DONE, phase="Succeeded"), pods=(), lease=OperatorLease("", None, 8)), []),
        (seen(status(failures=(loss(seconds=599),))), ["OOMKilled"]),
        (seen(status(failures=(loss(seconds=601),))), []),
        (leased("one", before(seconds=23)), []),
        (leased("one", before(seconds=25)), ["OperatorSilent"]),
        (leased("", before(seconds=1)), ["OperatorSilent"]),
        (leased("one", None), ["OperatorSilent"]),
        (
            seen(PPOJobStatus(), pods=(), lease=OperatorLease("one", before(hours=1), 8)),
            ["OperatorSilent"],
        ),
        (Snapshot(job=make_job(), now=before(minutes=4), pods=()), []),  # five seconds old
        (seen(status(observed_generation=0)), ["OperatorBehind"]),
        (
            seen(
                status({**WAITING, "Suspended": ("True", "JobSuspended")}, phase="Suspended"),
                pods=(),
            ),
            ["JobSuspended"],
        ),
        (seen(status({**WAITING, "Suspended": ("False", "Suspending")})), ["Suspending"]),
        (
            seen(
                status(WAITING),
                pods=pods(is_ready=False, node="n"),
                unreachable_nodes={"n": before(minutes=1)},
            ),
            ["NodeLost"],
        ),
        (
            seen(status({**WAITING, "PodsReady": ("False", "ObjectRefused")}), pods=()),
            ["ObjectRefused", "PodsMissing"],
        ),
        (seen(status(UNMET)), ["Waiting"]),  # nobody asked the supervisors
        (stepping(4, None), []),
        (stepping(6, None), ["StepStale"]),
        (stepping(6, "1h"), []),
        (stepping(31, "1h"), ["StepStale"]),
        (near_its_deadline(3_100, None), ["DeadlineNear"]),
        (near_its_deadline(2_000, None), []),
        (near_its_deadline(2_000, "20m"), []),
        (near_its_deadline(2_000, "30m"), ["DeadlineNear"]),
    ],
)
def test_reasons(what: Snapshot, reasons: list[str]) -> None:
    assert [one.reason for one in findings(what)] == reasons


@pytest.mark.parametrize(
    ("what", "reason", "words", "heading"),
    [
        (
            seen(
                status({"Accepted": REFUSED, "Failed": ("True", *REFUSED[1:])}, phase="Failed"),
                pods=(),
            ),
            "InvalidSpec",
            REFUSED[2],
            "Accepted",
        ),
        (seen(PPOJobStatus(), pods=()), "OperatorBehind", "4 min 05 s", "Found"),
        (seen(status({**RUNNING, "Accepted": REFUSED})), "InvalidSpec", REFUSED[2], "Accepted"),
        (  # a job without pods, which says why twice
            seen(status({**WAITING, "Accepted": REFUSED, "Admitted": REFUSED}), pods=()),
            "InvalidSpec",
            REFUSED[2],
            "Accepted",
        ),
        (
            seen(status({"Accepted": ("Unknown", "NewerSpec", "spec.later: got 1")}), pods=()),
            "NewerSpec",
            "spec.later: got 1",
            "Accepted",
        ),
        (  # a job that is not admitted lacks no pods
            seen(
                status(
                    {
                        **WAITING,
                        "Admitted": ("False", "StartDeadlineExceeded", "2 of 4 pods had a place"),
                        "PodsReady": ("False", "Stopped"),
                    }
                ),
                pods=(),
            ),
            "StartDeadlineExceeded",
            "2 of 4 pods had a place",
            "Admitted",
        ),
        (
            seen(status(WAITING), pods=pods(is_ready=False)),
            "Starting",
            "0 of 4 pods are ready",
            "PodsReady",
        ),
        (
            seen(
                status({**WAITING, "PodsReady": ("False", "Unschedulable", "as the operator saw")}),
                pods=None,
            ),
            "Unschedulable",
            "as the operator saw",
            "PodsReady",
        ),
        (  # a LimitRange of the namespace; one that the job sets itself is no news
            seen(
                spec={"pods": [{"roles": ["controller", "actorRollout"], "memory": "512Mi"}]},
                pods=pods(memory_limit="512Mi"),
            ),
            "MemoryLimited",
            "reward: pod sum-reward-0: memory limit 512Mi, which the job does not set (and 1 more)",
            "Found",
        ),
    ],
)
def test_one_reason_with_its_words(what: Snapshot, reason: str, words: str, heading: str) -> None:
    found = only(what)
    assert (found.reason, found.remedy) == (reason, remedy(heading, reason))
    assert words in found.what


def test_a_job_that_runs_has_nothing_to_say() -> None:
    lease = OperatorLease("one", before(seconds=2), 8)
    said = list(explanation(seen(status(training={"step": 3, "total_steps": 8}), lease=lease)))
    assert said == ["sum: Running at step 3 of 8: no reason for a delay was found"]
    done = seen(status(DONE, phase="Succeeded"), pods=())
    assert list(explanation(done)) == ["sum: Succeeded: done"]


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
    assert others[0].remedy.startswith("transient: restarted")


def test_a_spec_that_is_newer_than_the_command_line_alone() -> None:
    manifest = job_manifest()
    manifest["spec"]["later"] = 1
    job = dataclasses.replace(read_job(manifest), status=status())
    assert job.problems
    assert findings(Snapshot(job=job, now=NOW, pods=pods())) == []


def test_every_obstacle_is_told_in_the_order_of_the_status() -> None:
    image = {"is_ready": False, "waiting_reason": "ErrImagePull", "waiting_message": "not found"}
    space = {"is_ready": False, "unschedulable": "0/1 nodes are available"}
    there = (
        pod("sum-controller-0", "controller", is_ready=True, node="n"),
        pod("sum-actor-rollout-0", "actorRollout", **space),
        pod("sum-reward-0", "reward", **image),
        pod("sum-reward-1", "reward", **image),
    )
    assert told(seen(status(WAITING), pods=there)) == [
        ("ImageUnavailable", "reward: pod sum-reward-0: ErrImagePull: not found (and 1 more)"),
        ("Unschedulable", "actorRollout: pod sum-actor-rollout-0: 0/1 nodes are available"),
    ]


def test_pods_that_are_not_made_and_who_refused_them() -> None:
    words = "create Pod sum-reward-1 failed: exceeded quota: small"
    warnings = (
        WarningEvent("StatefulSet", "sum-reward", "FailedCreate", "older"),
        WarningEvent("StatefulSet", "sum-reward", "FailedCreate", words),
        WarningEvent("StatefulSet", "sum-controller", "FailedCreate", "another's"),
    )
    assert told(seen(status(WAITING), pods=pods()[:3], warnings=warnings)) == [
        ("PodsDenied", f"reward: pod sum-reward-1: not created: {words}")
    ]
    by_operator = status(WAITING | {"PodsReady": ("False", "PodsDenied", words)})
    assert told(seen(by_operator, pods=pods()[:3])) == [("PodsDenied", words)]


def test_a_secret_that_a_pod_waits_for() -> None:
    there = pods(is_ready=False, phase="Pending", waiting_reason="ContainerCreating", node="n")
    words = 'MountVolume.SetUp failed for volume "user-0": secret "mine" not found'
    warnings = (
        WarningEvent("Pod", "sum-reward-0", "FailedMount", "older"),
        WarningEvent("Pod", "sum-reward-0", "FailedMount", words),
        WarningEvent("Pod", "sum-reward-0", "Unhealthy", "not about mounts"),
        WarningEvent("Pod", "other-0", "FailedMount", "not ours"),
    )
    assert told(seen(status(WAITING), pods=there, warnings=warnings)) == [
        ("ContainerWaiting", f"reward: pod sum-reward-0: {words}")
    ]


def test_the_status_is_older_than_the_pods() -> None:
    old = {**WAITING, "PodsReady": ("False", "Unschedulable", "of before")}
    assert "of before" not in [words for _, words in told(seen(status(old), pods=pods()))]


def test_the_rank_that_is_missing() -> None:
    reports = {
        one.uid: ControllerReport(one.uid, "ready" if one.role != "reward" else "lost", "exit 1")
        for one in pods()
    }
    assert told(seen(status(UNMET), reports=reports)) == [
        ("RanksMissing", "reward: pod sum-reward-0: its ranks are lost: exit 1 (and 1 more)")
    ]


def test_a_stage_that_is_no_training_is_no_stale_step() -> None:
    said = status(WAITING, training={"step": 2, "total_steps": 8})
    assert "StepStale" not in dict(told(seen(said, progressed=before(hours=5))))


def test_an_explanation_is_numbered_and_escaped() -> None:
    said = {**WAITING, "Admitted": ("False", "StartDeadlineExceeded", "red \x1b[31m words")}
    what = seen(status(said, phase="Pending"), pods=(), hidden=("pods: forbidden",))
    lines = list(explanation(what))
    first = "1. StartDeadlineExceeded: red \\x1b[31m words"
    assert lines[:3] == ["sum: Pending: 1 thing to know", "", first]
    assert lines[3].startswith("   -> some pods were not placed")
    assert lines[-1] == "not looked at: pods: forbidden"


def test_every_word_has_a_remedy() -> None:
    assert set(tables()) == set(get_args(ConditionType)) - {"Complete"} | {"Found", "Ended"}
    assert all(tables().values())
    assert set(tables()["Ended"]) == set(get_args(FailureKind))
    assert remedy("Ended", "disruption") == "a new pod is created; not counted"
    assert remedy("Admitted", "FlavorMissing") == remedy("Admitted", "PriorityClassMissing")
    assert remedy("Failed", "NewerSpec").startswith("wait: the CRD was upgraded")
    assert remedy("PodsReady", "Starting") != UNKNOWN
    assert remedy("Admitted", "OfALaterVersion") == UNKNOWN
