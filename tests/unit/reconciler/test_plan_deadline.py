"""A job that finds room for some of its pods only lets go of them in time."""

import dataclasses
import datetime

import pytest
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
