import os
import resource
import threading
from pathlib import Path

import pytest
from training_cases import objective, rows_of_step
from trees import tree

from ppojob_trainer.errors import StorageError
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.messages.saving import AskWritten, FileEntry, SaveShards, Written
from ppojob_trainer.rpc.wire import Nothing
from ppojob_trainer.workers.state_writer import StateWriter, shard_writer


def ask(writer: StateWriter, method: object, request: object):
    (handler,) = [route.handler for route in writer.routes() if route.method is method]
    return handler(request)


def written(writer: StateWriter, folder: str) -> Written:
    ask(writer, methods.BARRIER, Nothing())
    return ask(writer, methods.SHARDS_WRITTEN, AskWritten(folder))


@pytest.fixture
def learner(make_learner):
    made = make_learner()
    made.restore(None, [], 10)
    made.engine.update(rows_of_step(), objective())
    return made


@pytest.fixture
def writer(learner, tmp_path: Path) -> StateWriter:
    for name in ("now", "copied", "again", "later"):
        (tmp_path / name).mkdir()
    return StateWriter(tmp_path, shard_writer(learner.state_files))


def test_a_copy_is_of_its_step_whatever_is_trained_meanwhile(learner, writer, tmp_path: Path):
    saved = ask(writer, methods.SAVE_SHARDS, SaveShards("now", 1)).files
    begun = ask(writer, methods.SAVE_SHARDS, SaveShards("copied", 1, in_background=True))
    assert begun.files == []
    learner.engine.update(rows_of_step(), objective())
    assert written(writer, "copied") == Written(saved)
    assert tree(tmp_path / "copied") == tree(tmp_path / "now")
    # A controller that came back asks again, in the middle of the next step.
    ask(writer, methods.SAVE_SHARDS, SaveShards("again", 1, in_background=True))
    assert written(writer, "again") == Written(saved)
    ask(writer, methods.SAVE_SHARDS, SaveShards("later", 2, in_background=True))
    later = written(writer, "later")
    assert later.files != saved
    assert written(writer, "copied") == Written()
    # A state that was restored is another one, though its step is the same.
    writer.invalidate()
    ask(writer, methods.SAVE_SHARDS, SaveShards("again", 1, in_background=True))
    assert written(writer, "again") == later


def test_copies_keep_their_places(learner):
    state, now = shard_writer(learner.state_files), SaveShards("copied", 1, in_background=True)
    first, second = (
        {name: part.data_ptr() for file in state(now).args[0] for name, part in file.parts.items()}
        for _ in range(2)
    )
    assert first == second


def test_a_full_disk_is_left_to_the_step_that_is_under_way(writer, tmp_path: Path, monkeypatch):
    free = os.statvfs_result((4096, 4096, 10, 10, 10, 0, 0, 0, 0, 255))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: free)
        ask(writer, methods.SAVE_SHARDS, SaveShards("now", 1, in_background=True))
        assert "No space left on device" in written(writer, "now").refusal
    assert tree(tmp_path / "now") == {}
    # A quota refuses later: here the second and larger file.
    weights = ask(writer, methods.SAVE_SHARDS, SaveShards("now", 1)).files[0]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (weights.size_bytes + 1000, before[1]))
    try:
        ask(writer, methods.SAVE_SHARDS, SaveShards("copied", 1, in_background=True))
        assert "File too large" in written(writer, "copied").refusal
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert tree(tmp_path / "copied") == {}


def test_the_next_state_waits_until_this_one_is_written_and_a_refusal_is_told(tmp_path: Path):
    may_write, order = threading.Event(), list[str]()

    def state(_: SaveShards):
        order.append("state")

        def write(folder: Path) -> list[FileEntry]:
            assert may_write.wait(10)
            order.append(folder.name)
            raise StorageError(folder, "write failed: No space left on device")

        return write

    writer = StateWriter(tmp_path, state)
    ask(writer, methods.SAVE_SHARDS, SaveShards("a", 1, in_background=True))
    assert ask(writer, methods.SHARDS_WRITTEN, AskWritten("a")) == Written()
    threading.Timer(0.2, may_write.set).start()
    ask(writer, methods.SAVE_SHARDS, SaveShards("b", 2, in_background=True))
    assert written(writer, "b").files is None
    assert written(writer, "b").refusal.endswith("b: write failed: No space left on device")
    assert order == ["state", "a", "state", "b"]
