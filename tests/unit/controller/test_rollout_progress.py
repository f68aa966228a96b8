import threading

import pytest

from ppojob_trainer.controller.progress import Reporter
from ppojob_trainer.controller.rollout_stages import progress_poll
from ppojob_trainer.errors import GenerationAborted, Interrupted
from ppojob_trainer.rpc import client
from ppojob_trainer.rpc.messages.rollout import AskRowsDrawn, RowsDrawn
from ppojob_trainer.rpc.methods import BARRIER, ROWS_DRAWN
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing, RequestId


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_WATCH_SECONDS", 0.05)
    monkeypatch.setattr(client, "_WAIT_MILLISECONDS", 25)


def engine(ended: int, goes_on: threading.Event) -> list[Route]:
    """A rank that works until it is let go on, and answers questions meanwhile."""

    def work(_: Nothing) -> Nothing:
        assert goes_on.wait(20)
        return Nothing()

    return [Route(BARRIER, work), Route(ROWS_DRAWN, lambda _: RowsDrawn(ended, 8))]


def test_rows_are_counted_while_they_are_awaited(role_of, roles_of, tmp_path):
    enough = threading.Event()
    group = role_of("actorRollout", engine(3, enough), engine(5, enough))
    roles, reporter, heard = roles_of(group), Reporter(tmp_path), []

    def tell(*rows: int) -> None:
        reporter.report_rows(*rows)
        heard.append(reporter.status.rows)
        if len(heard) == 2:
            enough.set()

    reporter.report(stage="gen")
    began = reporter.status.since
    with progress_poll(roles.caller, group.ranks, tell, every_seconds=0.05) as poll:
        id_ = RequestId(0, 1, "work")
        roles.call(group, BARRIER, [Nothing(), Nothing()], id_, meanwhile=poll)
    assert heard == [(8, 16), (8, 16)]
    assert reporter.status.since == began, "the stage goes on"
    reporter.report(stage="reward")
    assert reporter.status.rows == (0, 0)


def test_rows_are_aborted_on_request(role_of, roles_of):
    """Also where the first request came before the rank had begun."""
    requests, aborted = [], threading.Event()

    def work(_: Nothing) -> Nothing:
        assert aborted.wait(20)
        raise GenerationAborted("aborted")

    def report(request: AskRowsDrawn) -> RowsDrawn:
        requests.append(request.aborts)
        if requests.count(True) == 2:
            aborted.set()
        return RowsDrawn(0, 1)

    group = role_of("actorRollout", [Route(BARRIER, work), Route(ROWS_DRAWN, report)])
    roles, id_ = roles_of(group), RequestId(0, 1, "work")
    with (
        progress_poll(
            roles.caller, group.ranks, lambda *_: None, lambda: bool(requests), every_seconds=0.05
        ) as poll,
        pytest.raises(Interrupted),
    ):
        roles.call(group, BARRIER, [Nothing()], id_, meanwhile=poll)
    assert requests[:3] == [False, True, True]


@pytest.mark.parametrize("routes", [[], [Route(ROWS_DRAWN, lambda _: 1 // 0)]])
def test_a_rank_that_cannot_tell_is_no_reason_to_end(role_of, roles_of, routes):
    enough, heard = threading.Event(), []
    work = engine(0, enough)[:1]
    group = role_of("actorRollout", [*work, *routes])
    roles = roles_of(group)
    threading.Timer(0.3, enough.set).start()
    with progress_poll(
        roles.caller, group.ranks, lambda *rows: heard.append(rows), every_seconds=0.1
    ) as poll:
        roles.call(group, BARRIER, [Nothing()], RequestId(0, 1, "work"), meanwhile=poll)
    assert heard == []
