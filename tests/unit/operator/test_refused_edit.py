from typing import Any

import pytest
from gang_plans import (
    ADMITTED,
    EVICTED,
    RESERVED,
    admission_of,
    admitted,
    answered,
    queued_job,
    seen,
)
from operator_jobs import CHILDREN, NO_STATUS, NOW, job_manifest, make_job, observed, with_status
from operator_plans import (
    READY,
    UP,
    claim,
    deleted,
    deleted_pods,
    kinds,
    look,
    pod,
    status_after,
    status_of,
    told,
)
from reconciler_harness import Harness, up

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator import state
from ppojob_operator.conditions import condition
from ppojob_operator.reading import read_job

RUNNING = status_of(make_job(), UP)
# Two lengths.
REFUSED: dict[str, Any] = {"steps": {"total": 1, "epochs": 1}}
EVERY_SET = ["sum-controller", "sum-actor-rollout", "sum-reward"]


def refused_job(status: PPOJobStatus = RUNNING, **changes: Any) -> state.Job:
    job = make_job(status, **REFUSED, **changes)
    assert job.validated is None
    return job


def without(kind: state.ChildKind, name: str) -> state.Observed:
    left = {key: one for key, one in CHILDREN.items() if key != (kind, name)}
    return state.Observed(children=left, pods=READY)


def test_it_is_told_once_and_nothing_else_changes() -> None:
    planned = look(refused_job(), UP)
    status = status_after(planned)
    assert (kinds(planned), told(planned)) == (["RecordEvent"], ["InvalidSpec"])
    accepted = claim(status, "Accepted")
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert "spec.steps.epochs: " in accepted.message
    others = [one for one in status.conditions if one.type != "Accepted"]
    assert others == [one for one in RUNNING.conditions if one.type != "Accepted"]
    kept = {"phase", "reason", "message", "roles", "image", "start_time"}
    assert status.model_dump(include=kept) == RUNNING.model_dump(include=kept)
    assert look(refused_job(status), UP) == state.Plan()


@pytest.mark.parametrize(
    ("code", "phase", "reason"), [(0, "Succeeded", "TrainingDone"), (3, "Failed", "TrainingFailed")]
)
def test_it_ends(code: int, phase: str, reason: str) -> None:
    report = state.ControllerReport("uid-sum-controller-0", "done", "", code)
    there = observed(pods=READY, controller=report)
    status = status_of(refused_job(), there)
    assert (status.phase, status.reason) == (phase, reason)
    assert deleted(look(refused_job(status), there)) == EVERY_SET


def test_its_deadline_counts() -> None:
    job = refused_job(lifecycle={"activeDeadlineSeconds": 60})
    early = look(job, UP, 59)
    assert (status_after(early).phase, early.requeue_after) == (RUNNING.phase, 1.0)
    assert status_of(job, UP, 60).reason == "DeadlineExceeded"


def test_losses_of_its_pods_count() -> None:
    end = state.Termination(137, "OOMKilled", "", NOW)
    crashed = pod("sum-reward-0", restarts=1, last=end, waiting_reason="CrashLoopBackOff")
    unreachable = pod("sum-reward-1", node="n")
    there = observed(pods=(*READY[:2], crashed, unreachable), unreachable_nodes={"n": NOW})
    status = status_of(refused_job(), there)
    assert [one.pod for one in status.failures] == ["sum-reward-0"]
    deletions = deleted_pods(look(refused_job(status), there, 30))
    assert {one.name for one in deletions} == {"sum-reward-0", "sum-reward-1"}
    spent = status_of(refused_job(recovery={"restartsWithoutProgress": 0}), there)
    assert spent.reason == "RestartBudgetSpent"


def test_what_is_missing_is_not_made() -> None:
    planned = look(refused_job(), without("Service", "sum-reward"))
    assert kinds(planned) == ["RecordEvent"]


def test_a_job_that_lacks_what_makes_its_pods_checkpoints_and_stops() -> None:
    """It cannot train, and would hold its GPUs for as long as nobody corrects it."""
    job, there = refused_job(), without("StatefulSet", "sum-reward")
    planned = look(job, there)
    status = status_after(planned)
    assert deleted(planned) == ["sum-controller"]
    assert (status.phase, status.reason) == (RUNNING.phase, "InvalidSpec")
    gone = status_of(refused_job(status))
    assert (gone.phase, gone.reason, gone.start_time) == ("Pending", "InvalidSpec", None)
    assert "spec.steps.epochs: " in gone.message
    assert [(one.name, one.replicas, one.ready) for one in gone.roles] == [
        ("controller", 1, 0),
        ("actorRollout", 1, 0),
        ("reward", 2, 0),
    ]


@pytest.mark.parametrize("wrong", [{"suspend": "yes"}, "none", None, [], 1], ids=str)
def test_a_lifecycle_that_is_wrong_itself_asks_for_nothing(wrong: Any) -> None:
    planned = look(refused_job(lifecycle=wrong), UP)
    assert kinds(planned) == ["RecordEvent"]


def test_a_newer_lifecycle_is_read_as_far_as_it_is_known() -> None:
    job = make_job(RUNNING, lifecycle={"suspend": True, "ofLaterVersions": 1})
    planned = look(job, UP)
    assert (deleted(planned), told(planned)) == (["sum-controller"], ["NewerSpec"])


def refused(before: state.Plan, **changes: Any) -> state.Job:
    return queued_job(status_after(before), **REFUSED, **changes)


def test_evicted_it_checkpoints_and_goes() -> None:
    job = queued_job()
    workload = admitted(job, EVICTED)
    there = seen(*CHILDREN.values(), workload, pods=READY)
    running = look(job, seen(*CHILDREN.values(), admitted(job), pods=READY))
    planned = look(refused(running), there)
    assert deleted(planned) == ["sum-controller"]
    assert admission_of(planned, job)[1] == "Preempted"


def test_without_pods_it_leaves_the_queue() -> None:
    job = queued_job()
    workload = answered(job, RESERVED, ADMITTED)
    waiting = look(job, seen(answered(job)))
    planned = look(refused(waiting), seen(workload))
    assert deleted(planned) == [workload.name]
    assert admission_of(planned, job)[:2] == ("False", "InvalidSpec")


def test_one_that_is_newer_than_the_operator_keeps_its_place() -> None:
    job = queued_job()
    waiting = status_of(job, seen(answered(job)))
    planned = look(queued_job(waiting, ofLaterVersions=1), seen(answered(job)))
    assert kinds(planned) == ["RecordEvent", "RecordEvent"]
    assert admission_of(planned, job)[:2] == ("False", "NewerSpec")


def test_a_queue_that_is_not_named_any_more() -> None:
    job = queued_job()
    running = look(job, seen(*CHILDREN.values(), admitted(job), pods=READY))
    there = seen(*CHILDREN.values(), answered(job), pods=READY)
    planned = look(refused(running, scheduling={"type": "kueue"}), there)
    assert admission_of(planned, job)[1:] == ("Queued", "waits in LocalQueue team-a")


async def test_in_a_cluster_it_goes_on_and_ends_and_is_corrected(
    harness: Harness,
) -> None:
    await up(harness)
    before = harness.content()
    right = {"steps": harness.job["spec"]["steps"]}
    harness.edit_spec(**REFUSED)
    await harness.settle()
    pods = {one["metadata"]["uid"] for one in harness.cluster.of("Pod")}
    writes = len(harness.cluster.writes)
    harness.restart()
    await harness.settle()
    assert len(harness.cluster.writes) == writes

    harness.edit_spec(**right)
    await harness.settle()
    assert {one["metadata"]["uid"] for one in harness.cluster.of("Pod")} == pods
    assert harness.content().keys() == before.keys()
    assert harness.status["phase"] == "Starting"
    said = {one["type"]: one["status"] for one in harness.status["conditions"]}
    assert (said["Accepted"], said["PodsReady"]) == ("True", "True")

    harness.edit_spec(**REFUSED, lifecycle={"suspend": True})
    await harness.settle()
    assert not harness.cluster.of("Pod")
    assert (harness.status["phase"], harness.status["reason"]) == ("Suspended", "JobSuspended")
    harness.edit(suspend=False)
    await harness.settle()
    assert not harness.cluster.of("Pod")
    assert (harness.status["phase"], harness.status["reason"]) == ("Pending", "InvalidSpec")

    harness.edit_spec(**right)
    await up(harness)
    assert len(harness.cluster.of("Pod")) == len(pods)
    harness.edit_spec(**REFUSED)
    harness.look()
    harness.end_controller()
    await harness.settle()
    assert harness.status["phase"] == "Succeeded"
    assert not harness.cluster.of("Pod")


def newer_job(status: PPOJobStatus = NO_STATUS, **changes: Any) -> state.Job:
    """A job into which an API server wrote the default of a field that is not known here."""
    manifest = job_manifest(**changes)
    manifest["spec"]["checkpoint"]["compression"] = "none"
    return read_job(with_status(manifest, status))


def accepted(status: PPOJobStatus) -> tuple[str, str]:
    found = claim(status, "Accepted")
    return found.status, found.reason


def test_a_new_job_waits_for_an_operator_that_knows_its_fields() -> None:
    planned = look(newer_job())
    status = status_after(planned)
    assert kinds(planned) == ["RecordEvent"]
    assert (status.phase, status.reason, status.finish_time) == ("Pending", "NewerSpec", None)
    assert accepted(status) == ("Unknown", "NewerSpec")
    assert status.message == claim(status, "Accepted").message
    assert "spec.checkpoint.compression: " in status.message
    assert "upgrade the operator" in status.message
    assert condition(status, "Failed") is None
    assert look(newer_job(status)).status is None


def test_it_goes_on_with_one_that_does() -> None:
    waiting = status_of(newer_job())
    status = status_of(make_job(waiting))
    assert (status.phase, accepted(status)[0]) == ("Starting", "True")


def test_what_else_is_wrong_is_for_the_newer_one_to_judge() -> None:
    algorithm = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 1}
    status = status_of(newer_job(algorithm=algorithm))
    assert (status.phase, status.reason) == ("Pending", "NewerSpec")
    assert "samplesPerPrompt" not in status.message


def test_a_running_job_goes_on_as_it_was_accepted() -> None:
    running = status_of(make_job(), UP)
    planned = look(newer_job(running), UP)
    status = status_after(planned)
    assert kinds(planned) == ["RecordEvent"]
    assert (status.phase, status.start_time) == (running.phase, running.start_time)
    assert accepted(status) == ("Unknown", "NewerSpec")


def test_a_job_that_has_failed_stays_so() -> None:
    status = status_of(make_job(steps={}))
    for _ in range(2):
        status = look(newer_job(status)).status or status
        assert (status.phase, status.reason) == ("Failed", "InvalidSpec")
        assert accepted(status)[1] == "NewerSpec"


def test_fields_of_a_newer_status_are_read_over() -> None:
    """A default that an API server writes into a status stops no operator of before."""
    running = status_of(make_job(), UP)
    manifest = with_status(job_manifest(), running)
    manifest["status"]["ofLaterVersions"] = 1
    manifest["status"]["roles"][0]["ofLaterVersions"] = {"any": 1}
    assert read_job(manifest).status == running
