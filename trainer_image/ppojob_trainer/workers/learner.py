"""A model in training, and its place in commits: weights, optimizer and random state of a rank."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ppojob_trainer.checkpoint.files import FileEntry
from ppojob_trainer.checkpoint.tensors import read_shard, write_shard
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.errors import DamagedCommit
from ppojob_trainer.models.state_dict import hf_named_tensors, load_named_tensors
from ppojob_trainer.rpc.messages import SavedFile

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
RNG_FILE = "rng.safetensors"


class Learner:
    """What the policy and the critic have in common.

    Args:
        role: name of the model's role, below which its files lie in a commit.
        rank: this rank in the world that trains the model.
        seed: of the random state that a job begins with.
        load: makes the model that the job begins with.
        train: makes the engine for a model and its number of optimizer steps in the whole job.
    """

    def __init__(
        self,
        role: str,
        rank: int,
        seed: int,
        load: Callable[[], PreTrainedModel],
        train: Callable[[PreTrainedModel, int], TrainEngine],
    ) -> None:
        self.model = load()
        self._role = role
        self._rank = rank
        self._seed = seed
        self._load = load
        self._train = train
        self._engine: TrainEngine | None = None

    @property
    def engine(self) -> TrainEngine:
        """The model's passes and updates."""
        assert self._engine is not None, "restore comes before everything else"
        return self._engine

    def restore(self, folder: Path | None, files: Iterable[SavedFile], total_updates: int) -> None:
        """Take the state of a commit, or that of the beginning.

        Args:
            folder: of the commit; None for the beginning.
            files: of the commit, of all models and ranks; every one that is read is verified.
            total_updates: optimizer steps of the whole job.

        Raises:
            DamagedCommit: a file is absent or not what the manifest says.
        """
        if self._engine is not None and folder is None:
            self._engine = None
            self.model = self._load()
        self._engine = self._train(self.model, total_updates)
        if folder is None:
            torch.manual_seed(self._seed)
        else:
            self._read(folder, {file.path: file for file in files})

    def save(self, folder: Path) -> list[SavedFile]:
        """Write this rank's files of a commit."""
        shards = {
            MODEL_FILE: dict(hf_named_tensors(self.model)),
            OPTIMIZER_FILE: self.engine.state_tensors(),
            RNG_FILE: {"torch": torch.get_rng_state()},
        }
        entries = [
            write_shard(folder, self._path(name), tensors, role=self._role, rank=self._rank)
            for name, tensors in shards.items()
        ]
        return [SavedFile(entry.path, entry.size_bytes, entry.sha256) for entry in entries]

    def _read(self, folder: Path, files: dict[str, SavedFile]) -> None:
        shards = {}
        for name in (MODEL_FILE, OPTIMIZER_FILE, RNG_FILE):
            path = self._path(name)
            if path not in files:
                raise DamagedCommit(f"{folder.name}/{path}", "the commit does not hold this file")
            entry = FileEntry(
                path=path,
                size_bytes=files[path].size,
                sha256=files[path].sha256,
                role=self._role,
                rank=self._rank,
            )
            shards[name] = read_shard(folder, entry)
        load_named_tensors(self.model, shards[MODEL_FILE])
        self.engine.load_state(shards[OPTIMIZER_FILE])
        torch.set_rng_state(shards[RNG_FILE]["torch"])

    def _path(self, name: str) -> str:
        return f"{self._role}/rank-{self._rank:05d}/{name}"
