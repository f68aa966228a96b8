"""How a job ends, and what comes after."""

import dataclasses
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
