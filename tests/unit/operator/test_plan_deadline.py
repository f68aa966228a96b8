"""A job that finds room for some of its pods only lets go of them in time."""

from typing import Any

import pytest
from gang_plans import KUEUE, admitted, answered, four_pods, queued_job, seen
from operator_jobs import NO_STATUS, make_job, observed
from operator_plans import NOTHING, all_pods, kinds, look, pod, status_after, told

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.state import Observed, Plan

DEADLINE, HOUR = 60, 3_600
PAUSED = {"lifecycle": {"suspend": True}}
SHORT = "0/1 nodes: no GPU"
IN_PART = observed(pods=(*all_pods(node="n")[:3], pod("sum-reward-1", unschedulable=SHORT)))


def at(seconds: float, status: PPOJobStatus, there: Observed = NOTHING, **changes: Any) -> Plan:
    scheduling = {"startDeadlineSeconds": DEADLINE}
    return look(make_job(status, **{"scheduling": scheduling, **changes}), there, seconds)


def after(*arguments: Any, **changes: Any) -> PPOJobStatus:
    return status_after(at(*arguments, **changes))


@pytest.fixture
def started() -> PPOJobStatus:
    return after(0, NO_STATUS)


def test_it_gives_back_what_it_holds(started: PPOJobStatus) -> None:
    late = at(DEADLINE, started, IN_PART)
    assert kinds(late).count("Delete") == 3
    status = status_after(late)
    assert (status.reason, status.start_time) == ("GaveBack", None)
    assert status.message.startswith("3 of 4 pods had a place after 60 s")
    assert "no GPU" in status.message
    assert "GaveBack" in told(late)


def test_it_tries_again_after_as_long(started: PPOJobStatus) -> None:
    status = after(DEADLINE, started, IN_PART)
    waiting = at(2 * DEADLINE - 1, status)
    assert "Create StatefulSet" not in kinds(waiting)
    again = at(2 * DEADLINE, waiting.status or status)
    assert kinds(again).count("Create StatefulSet") == 3
    assert status_after(again).start_time is not None


def has_all_its_time(
    status: PPOJobStatus, begun: float, there: Observed = IN_PART, **changes: Any
) -> None:
    """It was started at a time, and gives back what it holds a deadline later."""
    early = at(begun + DEADLINE - 1, status, there, **changes)
    assert "Delete" not in kinds(early)
    assert early.again_in == pytest.approx(1.0)
    assert after(begun + DEADLINE, status, there, **changes).reason == "GaveBack"


def test_every_attempt_has_as_much_time_as_the_first(started: PPOJobStatus) -> None:
    has_all_its_time(started, 0)
    given_back = after(DEADLINE, started, IN_PART)
    has_all_its_time(after(2 * DEADLINE, given_back), 2 * DEADLINE)


def test_so_has_a_job_that_was_suspended(started: PPOJobStatus) -> None:
    paused = after(1, started, **PAUSED)
    has_all_its_time(after(HOUR, paused), HOUR)


def test_so_has_a_job_that_was_in_a_queue() -> None:
    queue = {"scheduling": {**KUEUE, "startDeadlineSeconds": DEADLINE}}
    queued = after(0, NO_STATUS, seen(answered(queued_job())), **queue)
    assert queued.reason == "Queued"
    workload = admitted(queued_job())
    short = seen(workload, pods=four_pods(unschedulable=SHORT))
    has_all_its_time(after(HOUR, queued, seen(workload), **queue), HOUR, short, **queue)


def test_so_has_a_job_that_has_trained_for_days(started: PPOJobStatus) -> None:
    running = after(1, started, observed(pods=all_pods(node="n", is_ready=True)))
    has_all_its_time(after(72 * HOUR, running, IN_PART), 72 * HOUR)


def test_so_has_a_job_of_whose_start_nothing_is_written_yet(started: PPOJobStatus) -> None:
    """An operator died between its pods and its status."""
    found = at(HOUR, after(1, started, **PAUSED), IN_PART)
    assert "Delete" not in kinds(found)
    has_all_its_time(status_after(found), HOUR)


def test_a_job_that_is_placed_whole_keeps_its_pods(started: PPOJobStatus) -> None:
    whole = observed(pods=all_pods(node="n"))
    assert "Delete" not in kinds(at(10 * DEADLINE, started, whole))
