"""What is done when containers end, by class."""

import dataclasses
import datetime
from typing import Any

from operator_jobs import NOW, SETTINGS, make_job, observed
from operator_plans import all_pods, kinds, pod, status_after

from ppojob_api.v1alpha1.status import PPOJobStatus, TrainingStatus
from ppojob_operator.plan import plan
from ppojob_operator.state import (
    Pod,
    Termination,
)


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
