import datetime
from typing import Any

import pytest
from operator_jobs import NOW, make_job, observed
from operator_plans import NOTHING, READY, UP, all_pods, deleted_pods, kinds, look, pod, status_of

from ppojob_api.v1alpha1.status import PPOJobStatus, TrainingStatus
from ppojob_operator import state
from ppojob_operator.conditions import holds, rfc3339

GONE = ((state.Delete("PPOJob", "sum", make_job().uid),),)


def at_the_end(code: int, reason: str = "") -> state.Observed:
    """All pods are there, and the controller has ended."""
    report = state.ControllerReport("uid-sum-controller-0", "done", reason, code)
    return observed(pods=READY, controller=report)


def ended() -> PPOJobStatus:
    return status_of(make_job(), at_the_end(0))


@pytest.mark.parametrize(
    ("code", "phase", "reason"),
    [
        (0, "Succeeded", "TrainingDone"),
        (2, "Failed", "InvalidInput"),
        (3, "Failed", "TrainingFailed"),
        (-9, "Failed", "ControllerLost"),
    ],
)
def test_by_the_controllers_exit_status(code: int, phase: str, reason: str) -> None:
    status = status_of(make_job(), at_the_end(code, "spec.data.train: no row"))
    assert (status.phase, status.reason) == (phase, reason)
    assert status.finish_time == "2026-01-02T03:04:05Z"


def test_an_interrupted_controller_is_no_end() -> None:
    assert status_of(make_job(), at_the_end(130)).phase == "Starting"


def test_pods_stay_until_the_end_is_written_down() -> None:
    assert "Delete" not in kinds(look(make_job(), at_the_end(0)))
    again = look(make_job(ended()), UP)
    assert not any(kind.startswith("Create") for kind in kinds(again))


@pytest.mark.parametrize("seen", [NOTHING, UP])
def test_the_end_is_never_left(seen: state.Observed) -> None:
    after = status_of(make_job(ended()), seen)
    assert (after.phase, after.reason) == ("Succeeded", "TrainingDone")
    assert holds(after, "Complete")


def test_a_job_that_takes_too_long_fails() -> None:
    job = make_job(status_of(make_job()), lifecycle={"activeDeadlineSeconds": 60})
    assert status_of(job, UP, 59).phase != "Failed"
    assert status_of(job, UP, 60).reason == "DeadlineExceeded"


@pytest.mark.parametrize("wrong", [{}, {"steps": {}}, {"steps": "many"}, {"checkpoint": {}}])
def test_a_job_that_is_over_goes_in_time_and_so_does_one_that_never_began(wrong) -> None:
    lifecycle = {"ttlSecondsAfterFinished": 60}
    failed = status_of(make_job(lifecycle=lifecycle, **wrong))
    over = make_job(failed if wrong else ended(), lifecycle=lifecycle, **wrong)
    assert over.status.phase == ("Failed" if wrong else "Succeeded")
    assert look(over, seconds=59).requeue_after == pytest.approx(1.0)
    assert look(over, seconds=60).waves == GONE


def test_it_does_not_go_while_its_controller_checkpoints() -> None:
    lifecycle = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 1}
    job = make_job(status_of(make_job()), lifecycle=lifecycle)
    over = make_job(status_of(job, UP, 60), lifecycle=lifecycle)
    assert over.status.reason == "DeadlineExceeded"
    planned = look(over, UP, 160)
    assert kinds(planned) == ["Delete"], "its controller is told to end"
    assert planned.requeue_after is None, "the end of its pods wakes it"
    assert look(over, seconds=160).waves == GONE


@pytest.mark.parametrize("seconds", ["60", -1, True, None, {}], ids=str)
def test_a_time_that_is_wrong_itself_is_never_over(seconds: Any) -> None:
    wrong = {"lifecycle": {"ttlSecondsAfterFinished": seconds}, "steps": {}}
    assert look(make_job(status_of(make_job(**wrong)), **wrong), seconds=1e8) == state.Plan()


def test_a_running_job_that_was_edited_wrongly_stays() -> None:
    wrong = {"steps": {}, "lifecycle": {"ttlSecondsAfterFinished": 0}}
    planned = look(make_job(status_of(make_job()), **wrong), observed(pods=all_pods()))
    assert (kinds(planned), planned.requeue_after) == (["RecordEvent"], None)


IN_BACK_OFF = "CrashLoopBackOff"


def crashed(exit_code: int, **fields: Any) -> state.Pod:
    return pod("sum-reward-0", last=state.Termination(exit_code, "Error", "boom", NOW), **fields)


def after_crash(one: state.Pod, status: PPOJobStatus) -> PPOJobStatus:
    return status_of(make_job(status), observed(pods=(*READY[:2], one)))


@pytest.mark.parametrize("code", [2, 127])
def test_a_configuration_that_cannot_work_fails_at_once(code: int) -> None:
    assert after_crash(crashed(code, restarts=1), PPOJobStatus()).reason == "InvalidConfiguration"


def test_the_same_failure_at_the_same_step_twice_is_the_end() -> None:
    once = after_crash(crashed(1, restarts=1), PPOJobStatus())
    assert (once.phase != "Failed", once.restarts) == (True, 1)
    assert after_crash(crashed(1, restarts=1), once).restarts == 1, "it is written down"
    assert after_crash(crashed(1, restarts=2), once).reason == "RepeatedFailure"


def test_a_role_that_is_lost_as_a_whole_is_one_loss() -> None:
    def lost(restarts: int, seconds: float) -> list[state.Pod]:
        ends = [NOW + datetime.timedelta(seconds=seconds + i / 2) for i in range(40)]
        return [
            pod(
                f"sum-reward-{number % 2}",
                uid=f"uid-{number}",
                restarts=restarts,
                memory_limit="512Mi",
                last=state.Termination(137, "OOMKilled", "", end),
            )
            for number, end in enumerate(ends)
        ]

    status = PPOJobStatus()
    for pods in (lost(1, 0.0)[:13], lost(1, 0.0), lost(1, 0.0)):
        status = status_of(make_job(status), observed(pods=(*READY[:2], *pods)))
    assert (status.phase, status.restarts, len(status.failures)) == ("Starting", 40, 1)
    assert status.failures[0].message == "memory limit 512Mi"
    status = status_of(make_job(status), observed(pods=(*READY[:2], *lost(2, 60.0))))
    assert (status.phase, status.restarts, len(status.failures)) == ("Starting", 80, 2)


def test_a_crashing_pod_is_replaced_after_our_wait_not_the_kubelets() -> None:
    one = crashed(1, restarts=1, waiting_reason=IN_BACK_OFF)
    job, seen = make_job(after_crash(one, PPOJobStatus())), observed(pods=(*READY[:2], one))
    assert "DeletePod" not in kinds(look(job, seen, 0.5))
    assert "DeletePod" in kinds(look(job, seen, 1.0))


class Life:
    """A job whose pods end, each a minute after the one before; the operator looks at each turn."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.seconds = 0.0
        self.status = PPOJobStatus()
        self.pods = {one.name: one for one in READY}

    def look(self) -> set[str]:
        """What the operator makes of it; names of pods that it deletes."""
        job = make_job(self.status, recovery={"restartsWithoutProgress": self.budget})
        planned = look(job, observed(pods=tuple(self.pods.values())), self.seconds)
        self.status = planned.status or self.status
        return {one.name for one in deleted_pods(planned)}

    def killed(self) -> state.Termination:
        return state.Termination(
            137, "OOMKilled", "", NOW + datetime.timedelta(seconds=self.seconds)
        )

    def end(self, name: str, **fields: Any) -> None:
        """A container is killed once more, and started again at once."""
        self.seconds += 60
        restarts = self.pods[name].restarts + 1
        self.pods[name] = pod(name, restarts=restarts, last=self.killed(), **fields)
        self.look()

    def at_step(self, step: int) -> None:
        training = TrainingStatus(step=step, stage="Training")
        self.status = self.status.model_copy(update={"training": training})


@pytest.mark.parametrize("budget", [0, 3, 8, 9, 30])
def test_a_budget_is_enforced_whatever_its_size(budget: int) -> None:
    life = Life(budget)
    for _ in range(budget):
        life.end("sum-reward-0")
    assert life.status.phase != "Failed"
    life.end("sum-reward-0")
    assert life.status.reason == "RestartBudgetSpent"
    words = (
        f"without a completed step in between, spec.recovery.restartsWithoutProgress is {budget}"
    )
    assert words in life.status.message
    assert len(life.status.failures) <= 8


def test_losses_of_others_and_disruptions_take_no_place_in_it() -> None:
    life = Life(4)
    for number in range(4):
        life.end("sum-reward-0")
        for _ in range(9):
            life.end("sum-reward-1", disruption="EvictionByEvictionAPI")
        if number % 2:
            life.end("sum-controller-0")
    assert (life.status.phase != "Failed", life.status.restarts) == (True, 6)
    life.end("sum-reward-0")
    assert life.status.reason == "RestartBudgetSpent"
    assert "reward: pod sum-reward-0" in life.status.message


def test_a_step_refills_the_budget_of_every_role() -> None:
    life = Life(9)
    for step in range(3):
        life.at_step(step)
        for _ in range(9):
            life.end("sum-reward-0")
            life.end("sum-controller-0")
    assert (life.status.phase != "Failed", life.status.restarts) == (True, 54)
    life.end("sum-controller-0")
    assert life.status.reason == "RestartBudgetSpent"


def test_the_last_words_of_a_role_are_kept() -> None:
    """A pod that crashes is replaced once its end is written down, so that may not go again."""
    life = Life(100)
    life.end("sum-reward-0")
    for _ in range(20):
        life.end("sum-controller-0")
    kept = [(one.role, one.restart) for one in life.status.failures]
    assert kept == [("reward", 1), *(("controller", number) for number in range(14, 21))]


def test_the_wait_behind_the_last_of_very_many_losses_is_a_minute() -> None:
    life = Life(1_000_000)
    life.end("sum-reward-0", waiting_reason=IN_BACK_OFF)
    roles = tuple(one.model_copy(update={"losses": 5_000}) for one in life.status.roles)
    life.status = life.status.model_copy(update={"roles": roles})
    life.seconds += 59
    assert life.look() == set()
    life.seconds += 1
    assert life.look() == {"sum-reward-0"}


def test_no_pod_is_replaced_before_its_end_is_written_down() -> None:
    """An end that leaves a pod waiting is counted before the kubelet counts it.

    The kubelet's first restart of a pod is at once, the next one waits.
    """
    life, made, ends = Life(3), 1, 0
    while life.status.phase != "Failed":
        life.seconds, ends = life.seconds + 5, ends + 1
        assert ends <= 4, "more ends than the budget has"
        before = life.pods["sum-reward-0"]
        again = {"waiting_reason": IN_BACK_OFF} if before.last else {}
        life.pods["sum-reward-0"] = ended = pod(
            "sum-reward-0", uid=f"uid-{made}", restarts=1, last=life.killed(), **again
        )
        finished = life.killed().finished
        for _ in range(3):
            if "sum-reward-0" in life.look():
                written = {(one.uid, one.time) for one in life.status.failures}
                assert (ended.uid, rfc3339(finished)) in written
                made += 1
                life.pods["sum-reward-0"] = pod("sum-reward-0", uid=f"uid-{made}")
            life.seconds += 60
    assert (life.status.reason, ends) == ("RestartBudgetSpent", 4)


def test_the_end_of_a_pod_behind_that_of_one_that_is_gone() -> None:
    """The sum of ends stands still when one pod is replaced while another ends."""
    life = Life(100)
    life.end("sum-reward-0")
    life.seconds += 300
    life.pods["sum-reward-0"] = pod("sum-reward-0", uid="another")
    life.pods["sum-reward-1"] = pod("sum-reward-1", last=life.killed(), waiting_reason=IN_BACK_OFF)
    for _ in range(3):
        written = {one.uid for one in life.status.failures}
        assert life.look() <= {one.name for one in life.pods.values() if one.uid in written}
        life.seconds += 300
