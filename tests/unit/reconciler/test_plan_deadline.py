"""A job that finds room for some of its pods only lets go of them in time."""

import dataclasses
import datetime
from typing import Any

import pytest
from gang_plans import KUEUE, admitted, answered, four_pods, queued_job, seen
from operator_jobs import NOW, SETTINGS, make_job, observed
from operator_plans import all_pods, kinds, status_after, told

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.plan import plan
from ppojob_operator.state import (
    Observed,
    Plan,
)


class TestDeadline:
    """A job that is placed in part."""

    DEADLINE = 60

    def look(self, status: PPOJobStatus, there: Observed, seconds: float, **changes: Any) -> Plan:
        scheduling = {"startDeadlineSeconds": self.DEADLINE}
        job = make_job(status, **{"scheduling": scheduling, **changes})
        return plan(job, there, SETTINGS, NOW + datetime.timedelta(seconds=seconds))

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

    def has_all_its_time(
        self, status: PPOJobStatus, there: Observed, begun: float, **changes: Any
    ) -> None:
        """It was started at a time, and gives back what it holds a deadline later."""
        early = self.look(status, there, begun + self.DEADLINE - 1, **changes)
        assert "Delete" not in kinds(early)
        assert early.again_in == pytest.approx(1.0)
        late = status_after(self.look(status, there, begun + self.DEADLINE, **changes))
        assert late.reason == "GaveBack"

    def test_every_attempt_has_as_much_time_as_the_first(self) -> None:
        status = status_after(self.look(self.started(), self.placed_in_part(), self.DEADLINE))
        again = status_after(self.look(status, Observed(), 2 * self.DEADLINE))
        self.has_all_its_time(again, self.placed_in_part(), 2 * self.DEADLINE)

    def test_so_has_a_job_that_was_suspended(self) -> None:
        hour = 3_600
        paused = status_after(self.look(self.started(), Observed(), 1, lifecycle={"suspend": True}))
        resumed = status_after(self.look(paused, Observed(), hour))
        self.has_all_its_time(resumed, self.placed_in_part(), hour)

    def test_so_has_a_job_that_was_in_a_queue(self) -> None:
        hour = 3_600
        queue = {"scheduling": {**KUEUE, "startDeadlineSeconds": self.DEADLINE}}
        queued = status_after(self.look(PPOJobStatus(), seen(answered(queued_job())), 0, **queue))
        assert queued.reason == "Queued"
        workload = admitted(queued_job())
        started = status_after(self.look(queued, seen(workload), hour, **queue))
        short = seen(workload, pods=four_pods(unschedulable="0/1 nodes: no GPU"))
        self.has_all_its_time(started, short, hour, **queue)

    def test_so_has_a_job_that_has_trained_for_days(self) -> None:
        ready = observed(pods=all_pods(node="n", is_ready=True))
        running = status_after(self.look(self.started(), ready, 1))
        days = 3 * 86_400
        lost = status_after(self.look(running, self.placed_in_part(), days))
        self.has_all_its_time(lost, self.placed_in_part(), days)

    def test_so_has_a_job_of_whose_start_nothing_is_written_yet(self) -> None:
        """An operator died between its pods and its status."""
        paused = status_after(self.look(self.started(), Observed(), 1, lifecycle={"suspend": True}))
        found = self.look(paused, self.placed_in_part(), 3_600)
        assert "Delete" not in kinds(found)
        self.has_all_its_time(status_after(found), self.placed_in_part(), 3_600)

    def test_a_job_that_is_placed_whole_keeps_its_pods(self) -> None:
        whole = observed(pods=all_pods(node="n"))
        assert "Delete" not in kinds(self.look(self.started(), whole, 10 * self.DEADLINE))
