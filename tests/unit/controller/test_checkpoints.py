import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from run_progress import progress_behind

from ppojob_trainer.checkpoint.identity import Identity
from ppojob_trainer.checkpoint.journal import Journal
from ppojob_trainer.checkpoint.store import CheckpointStore, incomplete
from ppojob_trainer.controller import checkpoints as module
from ppojob_trainer.controller.checkpoints import Checkpoints
from ppojob_trainer.controller.journal_state import read_journal_state
from ppojob_trainer.errors import RoleLost, StorageError
from ppojob_trainer.rpc import client
from ppojob_trainer.rpc.messages.saving import AskWritten, FileEntry, Saved, SaveShards, Written
from ppojob_trainer.rpc.methods import BARRIER, SAVE_SHARDS, SHARDS_WRITTEN
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing


@dataclass
class Rank:
    """Writes, in the background when it is told to; its disk refuses the first ones at once."""

    rank: int
    run_folder: Path
    refusal: str = ""
    refusals: int = 0
    asked: list[str] = field(default_factory=list)
    is_written: bool = False

    def routes(self) -> list[Route]:
        return [
            Route(SAVE_SHARDS, self.save),
            Route(SHARDS_WRITTEN, self.written),
            Route(BARRIER, self.be_busy),
        ]

    def be_busy(self, _: Nothing) -> Nothing:
        if self.asked:
            time.sleep(0.2)  # the controller looks around meanwhile
        return Nothing()

    def save(self, request: SaveShards) -> Saved:
        self.asked.append(request.folder)
        self.is_written = False
        if request.in_background:
            return Saved([])
        file = self._file(request.folder)
        if len(self.asked) <= self.refusals:
            raise StorageError(self.run_folder / file.path, "No space left on device")
        return Saved([file])

    def written(self, request: AskWritten) -> Written:
        if not self.is_written or request.folder != self.asked[-1]:
            return Written()
        return (
            Written(refusal=self.refusal) if self.refusal else Written([self._file(request.folder)])
        )

    def _file(self, folder: str) -> FileEntry:
        name = f"actorRollout/rank-{self.rank:05d}/model.safetensors"
        path = self.run_folder / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"whole")
        sha256 = hashlib.sha256(b"whole").hexdigest()
        return FileEntry(
            path=name, size_bytes=5, sha256=sha256, role="actorRollout", rank=self.rank
        )


@pytest.fixture
def ranks(tmp_path: Path) -> list[Rank]:
    return [Rank(rank, tmp_path / "run") for rank in range(2)]


@pytest.fixture
def begun(role_of, roles_of, ranks, tmp_path: Path, monkeypatch) -> Callable[..., Checkpoints]:
    """Checkpoints as controllers make them, attempt after attempt, of ranks that outlive them."""
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(client, "_WATCH_SECONDS", 0.05)
    monkeypatch.setattr(client, "_WAIT_MILLISECONDS", 25)
    root = tmp_path / "run" / "checkpoints"
    group = role_of("actorRollout", *(rank.routes() for rank in ranks))

    def make(attempt: int = 1) -> Checkpoints:
        made = Checkpoints(
            roles=roles_of(group, attempt=attempt),
            store=CheckpointStore(root, Identity("u", b'{"layout":{},"spec":{}}')),
            journal=Journal(root / "journal.jsonl"),
            every=2,
            keep_last=2,
            best=None,
            on_saved=lambda _: None,
        )
        made.roles.meanwhile = made.poll
        return made

    return make


def finish(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.is_written = True


def work(checkpoints: Checkpoints, name: str, until: Callable[[], bool] = lambda: True) -> None:
    for again in range(20):
        checkpoints.roles.barrier(checkpoints.roles.saved, 3, f"work/{name}/{again}")
        if until():
            return


def test_it_counts_once_all_ranks_have_written(begun, ranks):
    checkpoints, state = begun(), progress_behind(2)
    assert checkpoints.is_due(state)
    checkpoints.save(state, in_background=True)
    assert checkpoints.in_flight_step == 2
    assert not checkpoints.is_due(state)
    ranks[0].is_written = True
    work(checkpoints, "half")
    assert checkpoints.newest() is None
    finish(ranks)
    work(checkpoints, "whole", until=lambda: checkpoints.newest() == 2)
    assert checkpoints.newest() == 2
    assert checkpoints.in_flight_step is None
    assert incomplete(checkpoints.store.root) == []


def test_the_end_waits_for_it(begun, ranks):
    checkpoints = begun()
    checkpoints.save(progress_behind(2), in_background=True)
    threading.Timer(0.3, finish, [ranks]).start()
    checkpoints.wait()
    assert checkpoints.newest() == 2
    checkpoints.wait()  # nothing is under way


def test_what_a_disk_refuses_is_told_when_all_ranks_have_ended(begun, ranks):
    checkpoints, state = begun(), progress_behind(2)
    checkpoints.save(state, in_background=True)
    ranks[1].refusal = "No space left on device"
    finish(ranks)

    work(checkpoints, "refused", until=lambda: checkpoints.is_refused)
    assert checkpoints.is_refused
    with pytest.raises(StorageError, match="No space left on device"):
        checkpoints.wait()
    assert incomplete(checkpoints.store.root) == []
    checkpoints.skip(2)
    assert not checkpoints.is_due(state), "ranks have gone on from it"
    checkpoints.save(progress_behind(4))
    assert checkpoints.newest() == 4


def test_a_part_that_does_not_come_is_a_lost_role(begun, ranks):
    checkpoints = begun()
    checkpoints.save(progress_behind(2), in_background=True)
    ranks[0].is_written = True
    checkpoints.roles.caller.default_deadline_seconds = 0.3
    with pytest.raises(RoleLost, match=r"no part of a checkpoint within 0\.3 s"):
        checkpoints.wait()
    assert checkpoints.in_flight_step == 2, "another role's loss would not take it"
    checkpoints.roles.rewinds += 1
    assert checkpoints.in_flight_step is None


@pytest.mark.parametrize("left", [False, True])
def test_a_controller_that_takes_over_goes_on_with_it(left, begun, ranks):
    first = begun()
    first.save(progress_behind(2), in_background=True)
    if left:
        first.skip(2)
    finish(ranks)
    second = begun(2)
    second.adopt(read_journal_state(second.journal.read(), frozenset()))
    assert not second.is_due(progress_behind(2))
    assert second.in_flight_step == (None if left else 2)
    second.wait()
    assert second.newest() == (None if left else 2)
    assert [len(rank.asked) for rank in ranks] == [1, 1]


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_step_that_a_full_disk_has_refused_is_saved_in_the_end(attempt, begun, ranks):
    """By the controller that failed, or by one that has taken over without knowing of it."""
    checkpoints, state = begun(), progress_behind(2)
    ranks[1].refusals = 1
    with pytest.raises(StorageError, match="No space left on device"):
        checkpoints.save(state)
    assert incomplete(checkpoints.store.root) == []
    assert not checkpoints.store.is_whole(state.step)
    if attempt > 1:
        checkpoints = begun(attempt)
    # A role is lost beside it: asked again, the ranks remember what they wrote.
    checkpoints._write_shards(checkpoints.store.begin(state.step), state.step)
    checkpoints.save(state)
    assert checkpoints.store.is_whole(state.step)
    assert [len(rank.asked) for rank in ranks] == [2, 2]
