"""How a job ends, and what comes after."""

import datetime
from typing import Any

import pytest
from operator_jobs import NOW, SETTINGS, make_job, observed
from operator_plans import all_pods, kinds, status_after

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.conditions import holds
from ppojob_operator.plan import plan
from ppojob_operator.state import (
    ControllerReport,
    DeleteJob,
    Observed,
    Plan,
)


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


class TestTimes:
    """Deadlines and what comes after the end."""

    def ended(self) -> PPOJobStatus:
        return status_after(TestEnds().end(0))

    def test_a_job_that_takes_too_long_fails(self) -> None:
        status = status_after(plan(make_job(), Observed(), SETTINGS, NOW))
        job = make_job(status, lifecycle={"activeDeadlineSeconds": 60})
        seen = observed(pods=all_pods(is_ready=True))
        early = plan(job, seen, SETTINGS, NOW + datetime.timedelta(seconds=59))
        assert (early.status or status).phase != "Failed"
        late = plan(job, seen, SETTINGS, NOW + datetime.timedelta(seconds=60))
        assert status_after(late).reason == "DeadlineExceeded"

    def test_an_ended_job_goes_when_its_time_is_over(self) -> None:
        job = make_job(self.ended(), lifecycle={"ttlSecondsAfterFinished": 60})
        early = plan(job, Observed(), SETTINGS, NOW + datetime.timedelta(seconds=59))
        assert early.again_in == pytest.approx(1.0)
        late = plan(job, Observed(), SETTINGS, NOW + datetime.timedelta(seconds=60))
        assert late.waves == ((DeleteJob(),),)

    def test_it_does_not_go_while_its_controller_commits(self) -> None:
        lifecycle = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 1}
        started = status_after(plan(make_job(), Observed(), SETTINGS, NOW))
        late = NOW + datetime.timedelta(seconds=60)
        committing = observed(pods=all_pods(is_ready=True))
        job = make_job(started, lifecycle=lifecycle)
        over = make_job(status_after(plan(job, committing, SETTINGS, late)), lifecycle=lifecycle)
        assert over.status.reason == "DeadlineExceeded"
        later = late + datetime.timedelta(seconds=100)
        planned = plan(over, committing, SETTINGS, later)
        assert kinds(planned) == ["Delete"], "its controller is told to end"
        assert planned.again_in is None, "the end of its pods wakes it"
        assert plan(over, Observed(), SETTINGS, later).waves == ((DeleteJob(),),)

    @pytest.mark.parametrize(
        "wrong", [{"steps": {}}, {"steps": "many"}, {"checkpoint": {}}], ids=str
    )
    def test_a_job_that_never_began_goes_too(self, wrong: dict[str, Any]) -> None:
        lifecycle = {"ttlSecondsAfterFinished": 60}
        job = make_job(lifecycle=lifecycle, **wrong)
        failed = status_after(plan(job, Observed(), SETTINGS, NOW))
        assert failed.reason == "InvalidSpec"
        again = make_job(failed, lifecycle=lifecycle, **wrong)
        early = plan(again, Observed(), SETTINGS, NOW + datetime.timedelta(seconds=59))
        assert (early.waves, early.again_in) == ((), pytest.approx(1.0))
        late = plan(again, Observed(), SETTINGS, NOW + datetime.timedelta(seconds=60))
        assert late.waves == ((DeleteJob(),),)

    @pytest.mark.parametrize("seconds", ["60", -1, True, None, {}], ids=str)
    def test_a_time_that_is_wrong_itself_is_never_over(self, seconds: Any) -> None:
        lifecycle = {"ttlSecondsAfterFinished": seconds}
        job = make_job(lifecycle=lifecycle, steps={})
        failed = status_after(plan(job, Observed(), SETTINGS, NOW))
        years = NOW + datetime.timedelta(days=1_000)
        assert (
            plan(make_job(failed, lifecycle=lifecycle, steps={}), Observed(), SETTINGS, years)
            == Plan()
        )

    def test_a_running_job_that_was_edited_wrongly_stays(self) -> None:
        running = status_after(plan(make_job(), Observed(), SETTINGS, NOW))
        job = make_job(running, steps={}, lifecycle={"ttlSecondsAfterFinished": 0})
        planned = plan(job, observed(pods=all_pods()), SETTINGS, NOW)
        assert (kinds(planned), planned.again_in) == (["Emit"], None)
