"""The plan for a job, from what is there: never from what has happened."""

import dataclasses
import datetime
from typing import Any

import pytest
from operator_jobs import NOW, SETTINGS, job_manifest, make_job, observed
from operator_plans import all_pods, kinds, pod, status_after, told

from ppojob_api.v1alpha1.status import PPOJobStatus, TrainingStatus
from ppojob_operator.conditions import condition
from ppojob_operator.plan import plan
from ppojob_operator.reading import read_job
from ppojob_operator.state import (
    DeletePod,
    Node,
    Observed,
    Plan,
)


def test_a_new_job_gets_its_objects_before_its_pods() -> None:
    planned = plan(make_job(), Observed(), SETTINGS, NOW)
    made = kinds(planned)
    assert made[0] == "MakeKeys"
    assert made.count("Create StatefulSet") == 3
    first_set = made.index("Create StatefulSet")
    # The API server may not know of the Role yet; pods do not wait for that.
    assert [kind for kind in made[first_set + 3 :] if kind.startswith("Create")] == [
        "Create RoleBinding"
    ]
    assert {"Create ConfigMap", "Create Service", "Create NetworkPolicy"} <= set(made[:first_set])
    status = status_after(planned)
    assert (status.phase, status.start_time) == ("Starting", "2026-01-02T03:04:05Z")
    assert status.image == "trainer:1"


def test_planning_twice_plans_the_same() -> None:
    job, seen = make_job(), observed(pods=all_pods())
    assert plan(job, seen, SETTINGS, NOW) == plan(job, seen, SETTINGS, NOW)


def test_an_unchanged_status_is_not_written() -> None:
    seen = observed(pods=all_pods(is_ready=True))
    status = status_after(plan(make_job(), seen, SETTINGS, NOW))
    later = NOW + datetime.timedelta(hours=1)
    assert plan(make_job(status), seen, SETTINGS, later).status is None


def test_pods_that_come_one_by_one_cost_no_write() -> None:
    status = status_after(plan(make_job(), Observed(), SETTINGS, NOW))
    for number in range(5):
        planned = plan(make_job(status), observed(pods=all_pods()[:number]), SETTINGS, NOW)
        assert planned.status is None, number


def test_a_wrong_job_gets_no_pods_and_the_lines_of_validate() -> None:
    job = make_job(algorithm={"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 1})
    planned = plan(job, Observed(), SETTINGS, NOW)
    status = status_after(planned)
    assert kinds(planned) == ["Emit"]
    assert (status.phase, status.reason) == ("Failed", "InvalidSpec")
    assert status.message == "; ".join(str(problem) for problem in job.problems)
    assert "spec.algorithm.samplesPerPrompt: got 1" in status.message


def test_what_a_server_keeps_in_metadata_is_no_mistake() -> None:
    """A job that was made with generateName keeps it beside the name that was made of it."""
    manifest = job_manifest()
    manifest["metadata"] |= {"generateName": "su", "ofLaterVersions": {"any": 1}}
    job = read_job(manifest)
    assert job.problems == ()
    assert status_after(plan(job, Observed(), SETTINGS, NOW)).phase == "Starting"


def test_a_job_without_a_volume_is_refused() -> None:
    status = status_after(plan(make_job(checkpoint={}), Observed(), SETTINGS, NOW))
    assert status.message.startswith("spec.checkpoint.volume: got nothing")


def test_an_edit_that_is_wrong_does_not_fail_a_running_job() -> None:
    running = status_after(plan(make_job(), Observed(), SETTINGS, NOW))
    job = dataclasses.replace(
        make_job(running), manifest=None, problems=make_job(steps={}).problems
    )
    after = status_after(plan(job, observed(pods=all_pods()), SETTINGS, NOW))
    accepted = condition(after, "Accepted")
    assert accepted is not None
    assert (accepted.status, after.phase) == ("False", running.phase)


def test_an_edit_that_is_wrong_does_not_fail_a_suspended_job() -> None:
    """However often it is looked at: it has no start time, and is not accepted any more."""
    asked = make_job(lifecycle={"suspend": True})
    status = status_after(plan(asked, Observed(), SETTINGS, NOW))
    assert status.phase == "Suspended"
    for _ in range(2):
        job = make_job(status, lifecycle={"suspend": True}, steps={})
        status = plan(job, Observed(), SETTINGS, NOW).status or status
        assert (status.phase, status.reason) == ("Suspended", "Asked")


def test_a_job_that_is_deleted_is_left_alone() -> None:
    job = dataclasses.replace(make_job(), is_deleting=True)
    assert plan(job, observed(pods=all_pods()), SETTINGS, NOW) == Plan()


def test_the_phase_follows_pods_and_training() -> None:
    def phase(seen: Observed, training: TrainingStatus | None = None) -> str:
        status = PPOJobStatus(training=training)
        return status_after(plan(make_job(status), seen, SETTINGS, NOW)).phase

    stepping = TrainingStatus(step=3, stage="Training")
    assert phase(observed(pods=all_pods())) == "Starting"
    assert phase(observed(pods=all_pods(is_ready=True))) == "Starting"
    assert phase(observed(pods=all_pods(is_ready=True)), stepping) == "Running"
    assert phase(observed(pods=all_pods()), stepping) == "Recovering"


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        (
            {"unschedulable": "0/3 nodes: 3 Insufficient nvidia.com/gpu."},
            "Unschedulable",
            "3 Insuff",
        ),
        (
            {"waiting_reason": "ImagePullBackOff", "waiting_message": "no such image"},
            "ImageUnavailable",
            "no such image",
        ),
        (
            {"waiting_reason": "CreateContainerConfigError", "waiting_message": "no secret x"},
            "ContainerWaits",
            "no secret x",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "PodFailed", "Evicted: disk"),
    ],
)
def test_why_it_does_not_run_is_told(fields: dict[str, Any], reason: str, words: str) -> None:
    one = pod("sum-reward-1", "reward", **fields)
    seen = observed(pods=(*all_pods(is_ready=True)[:3], one))
    status = status_after(plan(make_job(), seen, SETTINGS, NOW))
    assert status.reason == reason
    assert status.message.startswith("3 of 4 pods are ready; reward: pod sum-reward-1: ")
    assert words in status.message
    assert reason in told(plan(make_job(), seen, SETTINGS, NOW))


def test_a_missing_rank_is_named() -> None:
    seen = observed(pods=all_pods()[:3])
    first = plan(make_job(), seen, SETTINGS, NOW)
    assert status_after(first).reason == "Starting"
    assert first.again_in is not None
    later = NOW + datetime.timedelta(seconds=first.again_in)
    status = status_after(plan(make_job(status_after(first)), seen, SETTINGS, later))
    assert status.reason == "PodsMissing"
    assert "sum-reward-1" in status.message


def test_an_object_of_others_in_our_way_is_told() -> None:
    seen = Observed(refused={("Service", "sum-reward"): "it is there already"})
    status = status_after(plan(make_job(), seen, SETTINGS, NOW))
    assert (status.reason, status.message) == (
        "ObjectRefused",
        "Service sum-reward: it is there already",
    )


def test_pods_on_a_silent_node_are_given_up_in_time() -> None:
    def deletions(seconds: float) -> tuple[list[DeletePod], float | None]:
        silent = NOW - datetime.timedelta(seconds=seconds)
        pods = (*all_pods(is_ready=True)[:3], pod("sum-reward-1", "reward", node="n"))
        seen = observed(pods=pods, nodes={"n": Node("n", silent)})
        planned = plan(make_job(), seen, SETTINGS, NOW)
        actions = [one for wave in planned.waves for one in wave if isinstance(one, DeletePod)]
        return actions, planned.again_in

    assert deletions(29.0)[0] == []
    assert deletions(29.0)[1] == pytest.approx(1.0)
    assert deletions(30.0)[0] == [DeletePod("sum-reward-1", "uid-sum-reward-1", force=True)]


def test_the_image_of_a_running_job_stays_when_the_operators_changes() -> None:
    status = status_after(plan(make_job(), Observed(), SETTINGS, NOW))
    upgraded = dataclasses.replace(SETTINGS, trainer_image="trainer:2")
    planned = plan(make_job(status), observed(pods=all_pods()), upgraded, NOW)
    assert (planned.status or status).image == "trainer:1"


def test_pods_of_before_are_waited_for_and_orphans_are_not() -> None:
    def sets(owner: str) -> int:
        pods = tuple(dataclasses.replace(one, owner_uid=owner) for one in all_pods())
        return kinds(plan(make_job(), Observed(pods=pods), SETTINGS, NOW)).count(
            "Create StatefulSet"
        )

    assert sets("uid-of-a-set-that-is-gone") == 0
    assert sets("") == 3


def test_a_suspended_job_starts_anew() -> None:
    job = make_job(lifecycle={"suspend": True})
    status = status_after(plan(job, Observed(), SETTINGS, NOW))
    assert (status.phase, status.start_time, status.image) == ("Suspended", None, "")
