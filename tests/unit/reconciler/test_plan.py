"""The plan for a job, from what is there: never from what has happened."""

import dataclasses
import datetime
from typing import Any

import pytest
from operator_jobs import CHILDREN, CONFIG_DIGEST, NOW, SETTINGS, UID, make_job, observed

from ppojob_api.v1alpha1.status import PPOJobStatus, TrainingStatus
from ppojob_api.well_known import RoleName, workload_name
from ppojob_operator.conditions import condition, holds
from ppojob_operator.plan import plan
from ppojob_operator.state import (
    Action,
    ControllerReport,
    Create,
    DeleteJob,
    DeletePod,
    Emit,
    Node,
    Observed,
    Plan,
    Pod,
    Termination,
)


def kinds(planned: Plan) -> list[str]:
    """What the plan does, in its order."""
    return [_kind(action) for wave in planned.waves for action in wave]


def _kind(action: Action) -> str:
    if isinstance(action, Create):
        return f"Create {action.manifest['kind']}"
    return type(action).__name__


def pod(name: str, role: RoleName, **fields: Any) -> Pod:
    created = NOW - datetime.timedelta(seconds=5)
    owner = CHILDREN["StatefulSet", workload_name("sum", role)].uid
    fields = {"config_digest": CONFIG_DIGEST, "owner_uid": owner, **fields}
    return Pod("lab", name, f"uid-{name}", UID, role, created, **fields)


def all_pods(**fields: Any) -> tuple[Pod, ...]:
    return (
        pod("sum-actor-rollout-0", "actorRollout", **fields),
        pod("sum-controller-0", "controller", **fields),
        pod("sum-reward-0", "reward", **fields),
        pod("sum-reward-1", "reward", **fields),
    )


def status_after(planned: Plan) -> PPOJobStatus:
    assert planned.status is not None
    return planned.status


def told(planned: Plan) -> list[str]:
    events = [one for wave in planned.waves for one in wave if isinstance(one, Emit)]
    return [event.reason for event in events]


def test_a_new_job_gets_its_objects_before_its_pods() -> None:
    planned = plan(make_job(), Observed(), SETTINGS, NOW)
    made = kinds(planned)
    assert made[0] == "MakeKeys"
    assert made.count("Create StatefulSet") == 3
    first_set = made.index("Create StatefulSet")
    assert not any(kind.startswith("Create") for kind in made[first_set + 3 :])
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


class TestEnds:
    """How a job ends."""

    def end(self, code: int, reason: str = "") -> Plan:
        report = ControllerReport("uid-sum-controller-0", "done", reason, code)
        seen = observed(pods=all_pods(is_ready=True), controller=report)
        return plan(make_job(), seen, SETTINGS, NOW)

    @pytest.mark.parametrize(
        ("code", "phase", "reason"),
        [
            (0, "Succeeded", "TrainingDone"),
            (2, "Failed", "InvalidInput"),
            (3, "Failed", "TrainingFailed"),
            (-9, "Failed", "ControllerLost"),
        ],
    )
    def test_by_the_controllers_exit_status(self, code: int, phase: str, reason: str) -> None:
        status = status_after(self.end(code, "spec.data.train: no row"))
        assert (status.phase, status.reason) == (phase, reason)
        assert status.finish_time == "2026-01-02T03:04:05Z"

    def test_pods_stay_until_the_end_is_written_down(self) -> None:
        planned = self.end(0)
        assert "Delete" not in kinds(planned)
        written = make_job(status_after(planned))
        again = plan(written, observed(pods=all_pods(is_ready=True)), SETTINGS, NOW)
        assert not any(kind.startswith("Create") for kind in kinds(again))

    def test_the_end_is_never_left(self) -> None:
        written = make_job(status_after(self.end(0)))
        for seen in (Observed(), observed(pods=all_pods())):
            after = plan(written, seen, SETTINGS, NOW).status or written.status
            assert (after.phase, after.reason) == ("Succeeded", "TrainingDone")
            assert holds(after, "Complete")

    def test_an_interrupted_controller_is_no_end(self) -> None:
        assert status_after(self.end(130)).phase == "Starting"


def crashed(restarts: int, exit_code: int, reason: str = "Error", **fields: Any) -> Pod:
    end = Termination(exit_code, reason, "boom", NOW)
    return pod("sum-reward-0", "reward", restarts=restarts, last=end, **fields)


def after_crash(one: Pod, status: PPOJobStatus | None = None) -> PPOJobStatus:
    seen = observed(pods=(*all_pods(is_ready=True)[:2], one))
    return plan(make_job(status), seen, SETTINGS, NOW).status or PPOJobStatus()


class TestFailures:
    """Ends of containers, by class."""

    def test_a_configuration_that_cannot_work_fails_at_once(self) -> None:
        assert after_crash(crashed(1, 2)).reason == "InvalidConfiguration"
        assert after_crash(crashed(1, 127)).reason == "InvalidConfiguration"

    def test_the_same_failure_at_the_same_step_twice_is_the_end(self) -> None:
        once = after_crash(crashed(1, 1))
        assert once.phase != "Failed"
        assert once.restarts == 1
        assert after_crash(crashed(2, 1), once).reason == "RepeatedFailure"

    def test_an_end_that_is_written_down_is_not_counted_again(self) -> None:
        once = after_crash(crashed(1, 1))
        assert plan_again(once).restarts == 1

    def test_progress_refills_the_budget(self) -> None:
        status = PPOJobStatus()
        for number in range(1, 8):
            training = TrainingStatus(step=number, stage="Training")
            status = status.model_copy(update={"training": training})
            status = after_crash(crashed(number, 137, "OOMKilled"), status)
        assert (status.phase, status.restarts) == ("Recovering", 7)

    def test_without_progress_the_budget_is_spent(self) -> None:
        status = PPOJobStatus()
        for number in range(1, 5):
            assert status.phase != "Failed"
            status = after_crash(crashed(number, 137, "OOMKilled"), status)
        assert status.reason == "RestartBudgetSpent"
        assert "4 times without a step in between, allowed are 3" in status.message

    def test_a_role_that_is_lost_as_a_whole_is_one_loss(self) -> None:
        def lost(restarts: int, seconds: float) -> tuple[Pod, ...]:
            return tuple(
                dataclasses.replace(
                    one,
                    uid=f"{one.uid}-{i}",
                    restarts=restarts,
                    last=Termination(
                        137, "OOMKilled", "", NOW + datetime.timedelta(seconds=seconds + i / 2)
                    ),
                )
                for i, one in enumerate(all_pods()[2:] * 20)
            )

        status = PPOJobStatus()
        for pods in (lost(1, 0.0)[:13], lost(1, 0.0), lost(1, 0.0)):
            seen = observed(pods=(*all_pods(is_ready=True)[:2], *pods))
            status = plan(make_job(status), seen, SETTINGS, NOW).status or status
        assert (status.phase, status.restarts, len(status.failures)) == ("Starting", 40, 1)
        seen = observed(pods=(*all_pods(is_ready=True)[:2], *lost(2, 60.0)))
        status = status_after(plan(make_job(status), seen, SETTINGS, NOW))
        assert (status.phase, status.restarts, len(status.failures)) == ("Starting", 80, 2)

    def test_a_disruption_is_nobodys_fault(self) -> None:
        status = PPOJobStatus()
        for number in range(1, 10):
            one = crashed(number, 137, disruption="PreemptionByScheduler")
            status = after_crash(one, status)
        assert (status.phase == "Failed", status.restarts) == (False, 0)

    def test_a_crashing_pod_is_replaced_after_our_wait_not_the_kubelets(self) -> None:
        one = crashed(1, 1, waiting_reason="CrashLoopBackOff")
        status = after_crash(one)
        seen = observed(pods=(*all_pods(is_ready=True)[:2], one))

        def deletes(seconds: float) -> bool:
            now = NOW + datetime.timedelta(seconds=seconds)
            return "DeletePod" in kinds(plan(make_job(status), seen, SETTINGS, now))

        assert not deletes(0.5)
        assert deletes(1.0)


def plan_again(status: PPOJobStatus) -> PPOJobStatus:
    seen = observed(pods=(*all_pods(is_ready=True)[:2], crashed(1, 1)))
    return plan(make_job(status), seen, SETTINGS, NOW).status or status


def test_the_image_of_a_running_job_stays_when_the_operators_changes() -> None:
    status = status_after(plan(make_job(), Observed(), SETTINGS, NOW))
    upgraded = dataclasses.replace(SETTINGS, trainer_image="trainer:2")
    planned = plan(make_job(status), observed(pods=all_pods()), upgraded, NOW)
    assert (planned.status or status).image == "trainer:1"


class TestTimes:
    """Deadlines and what comes after the end."""

    def ended(self) -> PPOJobStatus:
        return status_after(TestEnds().end(0))

    def job(self, lifecycle: dict[str, Any], status: PPOJobStatus) -> Any:
        job = make_job(status)
        assert job.manifest is not None
        spec = job.manifest.spec
        life = spec.lifecycle.model_copy(update=lifecycle)
        manifest = job.manifest.model_copy(
            update={"spec": spec.model_copy(update={"lifecycle": life})}
        )
        return dataclasses.replace(job, manifest=manifest)

    def test_a_job_that_takes_too_long_fails(self) -> None:
        status = status_after(plan(make_job(), Observed(), SETTINGS, NOW))
        job = self.job({"active_deadline_seconds": 60}, status)
        seen = observed(pods=all_pods(is_ready=True))
        early = plan(job, seen, SETTINGS, NOW + datetime.timedelta(seconds=59))
        assert (early.status or status).phase != "Failed"
        late = plan(job, seen, SETTINGS, NOW + datetime.timedelta(seconds=60))
        assert status_after(late).reason == "DeadlineExceeded"

    def test_an_ended_job_goes_when_its_time_is_over(self) -> None:
        job = self.job({"ttl_seconds_after_finished": 60}, self.ended())
        early = plan(job, Observed(), SETTINGS, NOW + datetime.timedelta(seconds=59))
        assert early.again_in == pytest.approx(1.0)
        late = plan(job, Observed(), SETTINGS, NOW + datetime.timedelta(seconds=60))
        assert late.waves == ((DeleteJob(),),)


def test_pods_of_before_are_waited_for_and_orphans_are_not() -> None:
    def sets(owner: str) -> int:
        pods = tuple(dataclasses.replace(one, owner_uid=owner) for one in all_pods())
        return kinds(plan(make_job(), Observed(pods=pods), SETTINGS, NOW)).count(
            "Create StatefulSet"
        )

    assert sets("uid-of-a-set-that-is-gone") == 0
    assert sets("") == 3


class TestGang:
    """A job that is placed in part."""

    DEADLINE = 60

    def look(self, status: PPOJobStatus, seen: Observed, seconds: float) -> Plan:
        job = make_job(status, scheduling={"startDeadlineSeconds": self.DEADLINE})
        return plan(job, seen, SETTINGS, NOW + datetime.timedelta(seconds=seconds))

    def placed_in_part(self) -> Observed:
        placed = all_pods(node="n")
        short = dataclasses.replace(placed[-1], node="", unschedulable="0/1 nodes: no GPU")
        return observed(pods=(*placed[:-1], short))

    def started(self) -> PPOJobStatus:
        return status_after(self.look(PPOJobStatus(), Observed(), 0))

    def test_it_gives_back_what_it_holds(self) -> None:
        early = self.look(self.started(), self.placed_in_part(), self.DEADLINE - 1)
        assert "Delete" not in kinds(early)
        assert early.again_in == pytest.approx(1.0)
        late = self.look(self.started(), self.placed_in_part(), self.DEADLINE)
        assert kinds(late).count("Delete") == 3
        status = status_after(late)
        assert (status.reason, status.start_time) == ("GaveBack", None)
        assert status.message.startswith("3 of 4 pods had a place after 60 s")
        assert "no GPU" in status.message
        assert "GaveBack" in told(late)

    def test_it_tries_again_after_as_long(self) -> None:
        status = status_after(self.look(self.started(), self.placed_in_part(), self.DEADLINE))
        waiting = self.look(status, Observed(), 2 * self.DEADLINE - 1)
        assert "Create StatefulSet" not in kinds(waiting)
        again = self.look(waiting.status or status, Observed(), 2 * self.DEADLINE)
        assert kinds(again).count("Create StatefulSet") == 3
        assert status_after(again).start_time is not None

    def test_a_job_that_is_placed_whole_keeps_its_pods(self) -> None:
        seen = observed(pods=all_pods(node="n"))
        assert "Delete" not in kinds(self.look(self.started(), seen, 10 * self.DEADLINE))


def test_a_suspended_job_starts_anew() -> None:
    job = make_job(lifecycle={"suspend": True})
    status = status_after(plan(job, Observed(), SETTINGS, NOW))
    assert (status.phase, status.start_time, status.image) == ("Suspended", None, "")
