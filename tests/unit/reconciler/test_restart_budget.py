"""How often a role may be lost without progress: every loss counts, whatever the status keeps."""

import dataclasses
import datetime
from typing import Any

import pytest
from operator_jobs import NOW, SETTINGS, make_job, observed
from operator_plans import all_pods, pod

from ppojob_api.v1alpha1.status import PPOJobStatus, TrainingStatus
from ppojob_api.well_known import RoleName
from ppojob_operator.conditions import rfc3339
from ppojob_operator.plan import plan
from ppojob_operator.state import DeletePod, Termination


class Life:
    """A job whose pods end, each a minute after the one before; the operator looks at each turn."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.now = NOW
        self.status = PPOJobStatus()
        self.pods = {one.name: one for one in all_pods(is_ready=True)}

    def look(self) -> set[str]:
        """What the operator makes of it; names of pods that it deletes."""
        job = make_job(self.status, recovery={"restartsWithoutProgress": self.budget})
        planned = plan(job, observed(pods=tuple(self.pods.values())), SETTINGS, self.now)
        self.status = planned.status or self.status
        return {one.name for wave in planned.waves for one in wave if isinstance(one, DeletePod)}

    def end(self, name: str, role: RoleName, **fields: Any) -> None:
        """A container is killed once more, and started again at once."""
        self.now += datetime.timedelta(minutes=1)
        last = Termination(137, "OOMKilled", "", self.now)
        restarts = self.pods[name].restarts + 1
        self.pods[name] = pod(name, role, restarts=restarts, last=last, **fields)
        self.look()

    def at_step(self, step: int) -> None:
        training = TrainingStatus(step=step, stage="Training")
        self.status = self.status.model_copy(update={"training": training})


@pytest.mark.parametrize("budget", [0, 3, 8, 9, 30])
def test_a_budget_is_enforced_whatever_its_size(budget: int) -> None:
    life = Life(budget)
    for _ in range(budget):
        life.end("sum-reward-0", "reward")
    assert life.status.phase != "Failed"
    life.end("sum-reward-0", "reward")
    assert life.status.reason == "RestartBudgetSpent"
    words = f"{budget + 1} times without a step in between, allowed are {budget}"
    assert words in life.status.message
    assert len(life.status.failures) <= 8


def test_losses_of_others_and_disruptions_take_no_place_in_it() -> None:
    life = Life(4)
    for number in range(4):
        life.end("sum-reward-0", "reward")
        for _ in range(9):
            life.end("sum-reward-1", "reward", disruption="EvictionByEvictionAPI")
        if number % 2:
            life.end("sum-controller-0", "controller")
    assert life.status.phase != "Failed"
    life.end("sum-reward-0", "reward")
    assert life.status.reason == "RestartBudgetSpent"
    assert "reward: pod sum-reward-0" in life.status.message


def test_a_step_refills_the_budget_of_every_role() -> None:
    life = Life(9)
    for step in range(3):
        life.at_step(step)
        for _ in range(9):
            life.end("sum-reward-0", "reward")
            life.end("sum-controller-0", "controller")
    assert life.status.phase != "Failed"
    assert life.status.restarts == 54
    life.end("sum-controller-0", "controller")
    assert life.status.reason == "RestartBudgetSpent"


def test_the_last_words_of_a_role_are_kept() -> None:
    """A pod that crashes is replaced once its end is written down, so that may not go again."""
    life = Life(100)
    life.end("sum-reward-0", "reward")
    for _ in range(20):
        life.end("sum-controller-0", "controller")
    kept = [(one.role, one.restart) for one in life.status.failures]
    assert kept == [("reward", 1), *(("controller", number) for number in range(14, 21))]


def test_the_wait_behind_the_last_of_very_many_losses_is_a_minute() -> None:
    life = Life(1_000_000)
    life.end("sum-reward-0", "reward", waiting_reason="CrashLoopBackOff")
    roles = tuple(one.model_copy(update={"losses": 5_000}) for one in life.status.roles)
    life.status = life.status.model_copy(update={"roles": roles})
    life.now += datetime.timedelta(seconds=59)
    assert life.look() == set()
    life.now += datetime.timedelta(seconds=1)
    assert life.look() == {"sum-reward-0"}


class Kubelet:
    """One pod, as its kubelet has it: the first restart is at once, the next waits."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.made = self.ends = 0
        self.fresh()

    def fresh(self) -> None:
        self.made += 1
        self._show(restarts=0)

    def end(self) -> None:
        self.ends += 1
        self.life.now += datetime.timedelta(seconds=5)
        last = Termination(137, "OOMKilled", "", self.life.now)
        if self.pod.last is None:
            self._show(restarts=1, last=last)
        else:
            waiting = "CrashLoopBackOff"
            self._show(restarts=self.pod.restarts, last=last, waiting_reason=waiting)

    def _show(self, **fields: Any) -> None:
        self.pod = dataclasses.replace(
            pod("sum-reward-0", "reward", **fields), uid=f"uid-reward-{self.made}"
        )
        self.life.pods[self.pod.name] = self.pod


def test_no_pod_is_replaced_before_its_end_is_written_down() -> None:
    """An end that leaves a pod waiting is counted before the kubelet counts it."""
    life = Life(3)
    kubelet = Kubelet(life)
    while life.status.phase != "Failed":
        kubelet.end()
        assert kubelet.ends <= 4, "more ends than the budget has"
        for _ in range(3):
            gone = life.look()
            if "sum-reward-0" in gone:
                written = {(one.uid, one.time) for one in life.status.failures}
                assert kubelet.pod.last is not None
                assert kubelet.pod.last.finished is not None
                assert (kubelet.pod.uid, rfc3339(kubelet.pod.last.finished)) in written
                kubelet.fresh()
            life.now += datetime.timedelta(minutes=1)
    assert (life.status.reason, kubelet.ends) == ("RestartBudgetSpent", 4)


def test_the_end_of_a_pod_behind_that_of_one_that_is_gone() -> None:
    """The sum of ends stands still when one pod is replaced while another ends."""
    life = Life(100)
    life.end("sum-reward-0", "reward")
    life.now += datetime.timedelta(minutes=5)
    last = Termination(137, "OOMKilled", "", life.now)
    life.pods["sum-reward-0"] = dataclasses.replace(pod("sum-reward-0", "reward"), uid="another")
    life.pods["sum-reward-1"] = pod(
        "sum-reward-1", "reward", last=last, waiting_reason="CrashLoopBackOff"
    )
    for _ in range(3):
        written = {one.uid for one in life.status.failures}
        assert life.look() <= {one.name for one in life.pods.values() if one.uid in written}
        life.now += datetime.timedelta(minutes=5)
