import dataclasses
from typing import Any

import pytest
from operator_jobs import CHILDREN, NOW, SETTINGS, job_manifest, make_job, observed
from operator_plans import (
    READY,
    UP,
    actions,
    all_pods,
    claim,
    deleted_pods,
    kinds,
    look,
    made,
    pod,
    status_after,
    status_of,
    told,
)
from prometheus_client import REGISTRY
from reconciler_harness import up

from ppojob_api.problem import ReasonCode
from ppojob_api.v1alpha1.status import PPOJobStatus, TrainingStatus
from ppojob_operator import state
from ppojob_operator.conditions import from_rfc3339
from ppojob_operator.plan import cluster_problems, plan
from ppojob_operator.reading import read_job


def test_a_new_job_gets_its_objects_before_its_pods() -> None:
    planned = look(make_job())
    created = kinds(planned)
    assert created[0] == "CreateKeys"
    assert created.count("Create StatefulSet") == 3
    first_set = created.index("Create StatefulSet")
    # The API server may not know of the Role yet; pods do not wait for that.
    assert created[first_set + 3 :] == ["Create RoleBinding"]
    assert {"Create ConfigMap", "Create Service", "Create NetworkPolicy"} <= {*created[:first_set]}
    status = status_of(make_job())
    assert (status.phase, status.image) == ("Starting", "trainer:1")
    assert from_rfc3339(status.start_time) == NOW


def test_given_answers_need_two_roles() -> None:
    job = make_job(algorithm={"type": "sft", "promptsPerStep": 4}, roles={})
    assert kinds(look(job)).count("Create StatefulSet") == 2


def test_an_unchanged_status_is_not_written() -> None:
    assert look(make_job(status_of(make_job(), UP)), UP, 3_600).status is None


def test_pods_that_come_one_by_one_cost_no_write() -> None:
    job = make_job(status_of(make_job()))
    for number in range(5):
        assert look(job, observed(pods=all_pods()[:number])).status is None, number


def test_a_wrong_job_gets_no_pods_and_the_lines_of_validate() -> None:
    job = make_job(algorithm={"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 1})
    status = status_of(job)
    assert kinds(look(job)) == ["RecordEvent"]
    assert (status.phase, status.reason) == ("Failed", "InvalidSpec")
    assert [one.where for one in job.problems] == ["spec.algorithm.samplesPerPrompt"]
    assert status.message == str(job.problems[0])


def test_what_a_server_keeps_in_metadata_is_no_mistake() -> None:
    """A job that was made with generateName keeps it beside the name that was made of it."""
    manifest = job_manifest()
    manifest["metadata"] |= {"generateName": "su", "ofLaterVersions": {"any": 1}}
    assert status_of(read_job(manifest)).phase == "Starting"


def test_a_job_without_a_volume_is_refused() -> None:
    job = make_job(checkpoint={})
    (problem,) = cluster_problems(job.validated, SETTINGS)
    assert (problem.reason_code, problem.where) == (ReasonCode.REQUIRED, "spec.checkpoint.volume")
    assert status_of(job).message == str(problem)


def test_containers_of_rows_are_refused_where_the_operator_may_not_grant_them() -> None:
    agent = {"tools": [{"name": "bash"}], "containers": {"image": "a"}}
    job, settings = make_job(agent=agent), dataclasses.replace(SETTINGS, row_containers_role="")
    assert cluster_problems(job.validated, SETTINGS) == ()
    status = status_after(plan(job, state.Observed(), settings, NOW))
    assert (status.phase, status.reason) == ("Failed", "InvalidSpec")
    assert status.message == (
        'spec.agent.containers: got {"image": "a"}: this operator may not give tools pods the right'
        " to create pods; remove it, or have the chart's values rowContainers.enabled and"
        " admissionPolicy.enabled set"
    )


def test_an_edit_that_is_wrong_does_not_fail_a_suspended_job() -> None:
    """However often it is looked at: it has no start time, and is not accepted any more."""
    asked = {"suspend": True}
    status = status_of(make_job(lifecycle=asked))
    assert (status.phase, status.start_time, status.image) == ("Suspended", None, "")
    for _ in range(2):
        status = status_of(make_job(status, lifecycle=asked, steps={}))
        assert (status.phase, status.reason) == ("Suspended", "JobSuspended")


def test_a_job_that_is_deleted_is_left_alone() -> None:
    job = dataclasses.replace(make_job(), is_deleting=True)
    assert look(job, observed(pods=all_pods())) == state.Plan()


@pytest.mark.parametrize(
    ("is_ready", "step", "phase"),
    [
        (False, None, "Starting"),
        (True, None, "Starting"),
        (True, 3, "Running"),
        (False, 3, "Recovering"),
    ],
)
def test_the_phase_follows_pods_and_training(is_ready: bool, step: int | None, phase: str) -> None:
    training = TrainingStatus(step=step, stage="Training") if step else None
    job = make_job(PPOJobStatus(training=training))
    assert status_of(job, observed(pods=all_pods(is_ready=is_ready))).phase == phase


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"unschedulable": "0/3 nodes: no gpu."}, "Unschedulable", "0/3 nodes: no gpu."),
        (
            {"waiting_reason": "ImagePullBackOff", "waiting_message": "no such image"},
            "ImageUnavailable",
            "no such image",
        ),
        (
            {"waiting_reason": "CreateContainerConfigError", "waiting_message": "no secret x"},
            "ContainerWaiting",
            "no secret x",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "PodFailed", "Evicted: disk"),
    ],
)
def test_why_it_does_not_run_is_told(fields: dict[str, Any], reason: str, words: str) -> None:
    seen = observed(pods=(*READY[:3], pod("sum-reward-1", **fields)))
    status = status_of(make_job(), seen)
    assert status.reason == reason
    assert status.message.startswith("3 of 4 pods are ready; reward: pod sum-reward-1: ")
    assert words in status.message
    assert reason in told(look(make_job(), seen))


def test_a_missing_rank_is_named() -> None:
    seen = observed(pods=all_pods()[:3])
    first = look(make_job(), seen)
    job = make_job(status_of(make_job(), seen))
    assert job.status.reason == "Starting"
    status = status_of(job, seen, first.requeue_after)
    assert status.reason == "PodsMissing"
    assert "sum-reward-1" in status.message


def test_pods_on_an_unreachable_node_are_deleted_in_time() -> None:
    pods = (*READY[:3], pod("sum-reward-1", node="n"))
    seen = observed(pods=pods, unreachable_nodes={"n": NOW})
    early, late = look(make_job(), seen, 29), look(make_job(), seen, 30)
    assert deleted_pods(early) == []
    assert early.requeue_after == pytest.approx(1.0)
    assert deleted_pods(late) == [
        state.Delete("Pod", "sum-reward-1", "uid-sum-reward-1", force=True)
    ]


def test_a_job_that_is_short_of_a_place_holds_up_no_drain() -> None:
    rest = all_pods(is_ready=True, node="a")[1:]
    waits = pod("sum-actor-rollout-0", unschedulable="1 node is unschedulable")
    placed = observed(pods=(pod("sum-actor-rollout-0", node="b"), *rest))
    assert actions(look(make_job(), placed), state.Apply) == []
    (budget,) = actions(look(make_job(), observed(pods=(waits, *rest))), state.Apply)
    assert budget.manifest["kind"] == "PodDisruptionBudget"
    assert budget.manifest["spec"]["maxUnavailable"] == "100%"
    # A job that has no place at all has nothing to be drained.
    nowhere = all_pods(unschedulable="0 nodes are available")
    assert actions(look(make_job(), observed(pods=nowhere)), state.Apply) == []


def test_the_image_of_a_running_job_stays_when_the_operators_changes() -> None:
    job = make_job(status_of(make_job()))
    upgraded = dataclasses.replace(SETTINGS, trainer_image="trainer:2")
    planned = plan(job, observed(pods=all_pods()), upgraded, NOW)
    assert (planned.status or job.status).image == "trainer:1"


@pytest.mark.parametrize(("owner", "sets"), [("uid-of-a-set-that-is-gone", 0), ("", 3)])
def test_pods_of_before_are_waited_for_and_orphans_are_not(owner: str, sets: int) -> None:
    seen = state.Observed(pods=all_pods(owner_uid=owner))
    assert len(made(look(make_job(), seen), "StatefulSet")) == sets


STEPPING = TrainingStatus(attempt=1, step=3, stage="Training", last_checkpoint_step=2)


def pods(**of_controller: Any) -> tuple[state.Pod, ...]:
    return READY[0], pod("sum-controller-0", **{"is_ready": True, **of_controller}), *READY[2:]


def after(
    training: TrainingStatus, report: state.ControllerReport | None = None, **of_controller: Any
) -> PPOJobStatus:
    seen = observed(pods=pods(**of_controller), controller=report)
    return status_of(make_job(PPOJobStatus(training=training)), seen)


def said(status: PPOJobStatus, name: Any) -> tuple[str, str]:
    found = claim(status, name)
    return found.status, found.reason


def test_what_an_earlier_job_has_left_is_not_waited_for() -> None:
    # By `kubectl delete --cascade=orphan`: made again, it is refused with words.
    head = {"labels": {"ppojob.dev/job-uid": "of an earlier job"}}
    left = {
        key: dataclasses.replace(child, owner_uid="", manifest={**child.manifest, "metadata": head})
        for key, child in CHILDREN.items()
    }
    planned = look(make_job(), state.Observed(children=left))
    assert {one.manifest["kind"] for one in actions(planned, state.Create)} == {
        kind for kind, _ in left
    }
    going = {key: dataclasses.replace(child, is_deleting=True) for key, child in left.items()}
    assert actions(look(make_job(), state.Observed(children=going)), state.Create) == []


def test_conditions_follow_what_the_controller_says() -> None:
    status = after(STEPPING, state.ControllerReport("uid-sum-controller-0", "ready"))
    assert status.phase == "Running"
    assert said(status, "Rendezvoused") == ("True", "AllRanksConnected")
    assert said(status, "Training") == ("True", "Stepping")
    assert said(status, "Checkpointed") == ("True", "Saved")
    beginning = after(TrainingStatus(attempt=1, stage="Starting"))
    assert said(beginning, "Rendezvoused") == ("False", "Waiting")
    assert said(beginning, "Checkpointed") == ("False", "NoCheckpoint")
    recovering = after(STEPPING.model_copy(update={"stage": "Recovering"}))
    assert said(recovering, "Rendezvoused") == ("False", "Recovering")
    assert (recovering.phase, said(recovering, "Training")[0]) == ("Recovering", "False")
    gone = after(STEPPING.model_copy(update={"stage": ""}))
    assert said(gone, "Training") == ("False", "Waiting")


@pytest.mark.parametrize(
    ("report", "of_controller"),
    [
        (state.ControllerReport("uid-sum-controller-0", "starting"), {}),
        (None, {"is_ready": False}),
        (None, {"is_deleting": True}),
    ],
)
def test_what_a_killed_controller_said_holds_no_more(report, of_controller) -> None:
    status = after(STEPPING, report, **of_controller)
    assert (status.phase, said(status, "Training")) == ("Recovering", ("False", "Waiting"))
    assert said(status, "Rendezvoused") == ("False", "Waiting")
    assert said(status, "Checkpointed")[0] == "True"


def counted(name: str) -> float:
    return REGISTRY.get_sample_value(f"ppojob_operator_{name}_seconds_count") or 0.0


async def test_the_first_step_is_timed_once_and_the_training_stays_the_controllers(harness) -> None:
    ready, stepped = counted("pods_ready"), counted("first_step")
    statuses: list[state.Manifest] = []
    apply_status = harness.cluster.apply_status

    async def watched(manifest: state.Manifest) -> state.Manifest:
        statuses.append(manifest["status"])
        return await apply_status(manifest)

    async def train(**training: Any) -> str:
        """The controller writes; answers the phase that follows."""
        job = harness.cluster.objects["PPOJob", "lab", "sum"]
        harness.cluster.put({**job, "status": {**job["status"], "training": training}})
        await harness.settle()
        return str(harness.status["phase"])

    harness.cluster.apply_status = watched  # type: ignore[method-assign]
    await up(harness)
    assert (counted("pods_ready"), counted("first_step")) == (ready + 1, stepped)
    assert await train(attempt=1, step=1, stage="Training") == "Running"
    assert counted("first_step") == stepped + 1
    assert await train(attempt=1, step=5, stage="Recovering") == "Recovering"
    assert await train(attempt=2, step=5, stage="Training") == "Running"
    assert (counted("pods_ready"), counted("first_step")) == (ready + 1, stepped + 1)
    assert harness.status["training"] == {"attempt": 2, "step": 5, "stage": "Training"}
    assert not any("training" in status for status in statuses)
