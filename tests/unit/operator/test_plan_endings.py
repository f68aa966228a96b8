"""How a job ends, and what comes after."""

from typing import Any

import pytest
from operator_jobs import make_job, observed
from operator_plans import NOTHING, READY, UP, all_pods, kinds, look, status_of

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.conditions import holds
from ppojob_operator.state import ControllerReport, DeleteJob, Observed, Plan

GONE = ((DeleteJob(),),)


def at_the_end(code: int, reason: str = "") -> Observed:
    """All pods are there, and the controller has ended."""
    report = ControllerReport("uid-sum-controller-0", "done", reason, code)
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
def test_the_end_is_never_left(seen: Observed) -> None:
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
    assert look(over, seconds=59).again_in == pytest.approx(1.0)
    assert look(over, seconds=60).waves == GONE


def test_it_does_not_go_while_its_controller_commits() -> None:
    lifecycle = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 1}
    job = make_job(status_of(make_job()), lifecycle=lifecycle)
    over = make_job(status_of(job, UP, 60), lifecycle=lifecycle)
    assert over.status.reason == "DeadlineExceeded"
    planned = look(over, UP, 160)
    assert kinds(planned) == ["Delete"], "its controller is told to end"
    assert planned.again_in is None, "the end of its pods wakes it"
    assert look(over, seconds=160).waves == GONE


@pytest.mark.parametrize("seconds", ["60", -1, True, None, {}], ids=str)
def test_a_time_that_is_wrong_itself_is_never_over(seconds: Any) -> None:
    wrong = {"lifecycle": {"ttlSecondsAfterFinished": seconds}, "steps": {}}
    assert look(make_job(status_of(make_job(**wrong)), **wrong), seconds=1e8) == Plan()


def test_a_running_job_that_was_edited_wrongly_stays() -> None:
    wrong = {"steps": {}, "lifecycle": {"ttlSecondsAfterFinished": 0}}
    planned = look(make_job(status_of(make_job()), **wrong), observed(pods=all_pods()))
    assert (kinds(planned), planned.again_in) == (["Emit"], None)
