"""A checkpoint that the disk of one rank refuses: nothing of it stays, and it can be made again."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from run_progress import progress_behind

from ppojob_trainer.checkpoint.journal import Journal
from ppojob_trainer.checkpoint.store import CheckpointStore, incomplete
from ppojob_trainer.controller.checkpoints import Checkpoints
from ppojob_trainer.errors import StorageError
from ppojob_trainer.rpc.messages.saving import Saved, SavedFile, SaveShards
from ppojob_trainer.rpc.methods import BARRIER, SAVE_SHARDS
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing

PROGRESS = progress_behind(2)


@dataclass
class Rank:
    """Writes its part of checkpoints; its disk refuses the first ones."""

    rank: int
    run_folder: Path
    refusals: int
    asked: list[str] = field(default_factory=list)

    def save(self, request: SaveShards) -> Saved:
        self.asked.append(request.folder)
        name = f"actorRollout/rank-{self.rank:05d}/model.safetensors"
        path = self.run_folder / request.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(self.asked) <= self.refusals:
            path.write_bytes(b"half")
            raise StorageError(path, "write failed: No space left on device")
        path.write_bytes(b"whole")
        return Saved([SavedFile(name, 5, hashlib.sha256(b"whole").hexdigest())])


@pytest.fixture
def checkpoints_of(role_of, roles_of, tmp_path: Path) -> Callable[..., Checkpoints]:
    """Checkpoints as controllers make them, attempt after attempt, of ranks that outlive them."""
    root = tmp_path / "run" / "checkpoints"

    def make(*ranks: Rank) -> Callable[[int], Checkpoints]:
        routes = [
            [Route(SAVE_SHARDS, one.save), Route(BARRIER, lambda _: Nothing())] for one in ranks
        ]
        group = role_of("actorRollout", *routes)
        return lambda attempt: Checkpoints(
            roles=roles_of(group, attempt=attempt),
            store=CheckpointStore(root, job_uid="u", config=b"{}"),
            journal=Journal(root / "journal.jsonl"),
            every=2,
            keep_last=2,
            best=None,
            tell_saved=lambda _: None,
        )

    return make


@pytest.mark.parametrize("attempt", [1, 2])
def test_the_same_step_is_saved_in_the_end(attempt, checkpoints_of, tmp_path: Path):
    """By the controller that failed, or by one that has taken over without knowing of it."""
    ranks = [Rank(0, tmp_path / "run", refusals=0), Rank(1, tmp_path / "run", refusals=1)]
    begun = checkpoints_of(*ranks)
    checkpoints = begun(1)
    with pytest.raises(StorageError, match="No space left on device"):
        checkpoints.save(PROGRESS)
    assert incomplete(checkpoints.store.root) == []
    assert not checkpoints.is_saved(PROGRESS)
    if attempt > 1:
        checkpoints = begun(attempt)
    # A role is lost beside it: asked again, the ranks remember what they wrote.
    checkpoints._write_shards(checkpoints.store.begin(PROGRESS.step))
    checkpoints.save(PROGRESS)
    assert checkpoints.is_saved(PROGRESS)
    assert [len(rank.asked) for rank in ranks] == [2, 2]
