"""Learner: a model in training, and its shard of checkpoints (weights, optimizer, random state)."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.roles import Offloaded
from ppojob_trainer.checkpoint.manifest import AVERAGE_FILE, MODEL_FILE, files_of_all_ranks
from ppojob_trainer.checkpoint.tensors import Shard, read_parts, read_shard
from ppojob_trainer.engine.head import PolicyHead, ValueHead
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.models.kinds import POLICY, ModelKind
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_of
from ppojob_trainer.models.state_dict import load_named_tensors, trained_tensors
from ppojob_trainer.parallel.boxes import Box, box_of, local_part
from ppojob_trainer.parallel.offload import HostBuffers, OffloadableWeights
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rollout.protocol import DTYPES
from ppojob_trainer.rpc.messages.saving import FileEntry

OPTIMIZER_FILE = "optimizer.safetensors"
RNG_FILE = "rng.safetensors"


class Learner:
    """Training of a policy or critic, and its part of checkpoints.

    `role` is the folder of its files. `load` loads the initial model, `train` builds its engine for
    a number of optimizer steps in the whole job. Of `offload` this class handles weights, which are
    offloaded at once.
    """

    def __init__(
        self,
        role: str,
        world: World,
        seed: int,
        load: Callable[[], PreTrainedModel],
        train: Callable[[PreTrainedModel, int], TrainEngine],
        offload: Collection[Offloaded] = (),
    ) -> None:
        self._offload = offload
        self.model = load()
        # Adapters are small, so `restore` copies them back instead of loading the model again.
        adapters = trained_tensors(self.model) if adapters_of(self.model) else {}
        self._initial_adapters = {
            name: local_part(tensor).to("cpu", copy=True) for name, tensor in adapters.items()
        }
        self.resident = resident_weights(self.model, offload)
        self._role = role
        self._world = world
        self._seed = seed
        self._load = load
        self._train = train
        self._engine: TrainEngine | None = None

    @property
    def engine(self) -> TrainEngine:
        assert self._engine is not None, "set by restore"
        return self._engine

    def on_device(self, tensor: Tensor) -> Tensor:
        """Return a weight or its average on its device."""
        return self.engine.moments.on_device(self.resident.host.on_device(tensor))

    def restore(self, folder: Path | None, files: Iterable[FileEntry], total_updates: int) -> None:
        """Load the state of a checkpoint, or the initial state without a folder.

        `files` are those of all models and ranks; those that are read are verified. `total_updates`
        are those of the whole job.
        """
        if self._engine is not None and folder is None:
            self._engine = None
            if self._initial_adapters:
                with self.resident.on_device():
                    load_named_tensors(self.model, self._initial_adapters)
            else:
                self.model = self._load()
                self.resident = resident_weights(self.model, self._offload)
        self._engine = self._train(self.model, total_updates)
        if folder is None:
            torch.manual_seed(self._seed + self._stream)
            if self._engine.average is not None:
                with self.resident.on_device():
                    self._engine.average.begin()
        else:
            with self.resident.on_device():
                self._read(folder, list(files))

    def state_files(self) -> list[Shard]:
        """Return this rank's files of a checkpoint; of replicas only the first one writes."""
        rank = self._world.rank
        file = partial(state_file, self._role, rank)
        files = []
        if rank == self._writer:
            engine, host = self.engine, self.resident.host
            files.append(file(MODEL_FILE, trained_tensors(self.model), host))
            files.append(file(OPTIMIZER_FILE, engine.state_tensors(), engine.moments))
            if engine.average is not None:
                files.append(file(AVERAGE_FILE, engine.average.tensors, engine.moments))
        return [*files, file(RNG_FILE, self._random_state())]

    def _read(self, folder: Path, entries: list[FileEntry]) -> None:
        def files(name: str) -> list[FileEntry]:
            return files_of_all_ranks(entries, self._role, name, folder.name)

        def parts(name: str, wanted: Mapping[str, Box]) -> dict[str, Tensor]:
            return read_parts(folder, files(name), wanted, rank=self._writer)

        weights = {name: box_of(weight) for name, weight in trained_tensors(self.model).items()}
        load_named_tensors(self.model, parts(MODEL_FILE, weights))
        self.engine.load_state(parts(OPTIMIZER_FILE, self.engine.state_boxes()))
        if self.engine.average is not None:
            self.engine.average.load(parts(AVERAGE_FILE, weights))
        states = files(RNG_FILE)
        if len(states) == self._world.size:
            state = next(entry for entry in states if entry.rank == self._world.rank)
            random = read_shard(folder, state)
            torch.set_rng_state(random["torch"])
            if "cuda" in random:
                torch.cuda.set_rng_state(random["cuda"], self._world.device)
        else:
            # The random state of another number of ranks cannot be continued.
            torch.manual_seed(self._seed + self.engine.updates + self._stream)

    @property
    def _writer(self) -> int:
        return self._world.dims.in_first_replica(self._world.rank)

    @property
    def _stream(self) -> int:
        """Return the number of this rank's random stream.

        Ranks with the same layers and rows share a stream; pipeline stages do not, or they would
        drop the same activations.
        """
        dims, rank = self._world.dims, self._world.rank
        stage, _ = dims.place(rank, "pipeline")
        return dims.data_coordinate(rank) + dims.data_size * stage

    def _random_state(self) -> dict[str, Tensor]:
        state = {"torch": torch.get_rng_state()}
        if self._world.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._world.device)
        return state


class TrainedModel:
    """A model in training, with its stages of a step."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    @property
    def models_of_update(self) -> tuple[OffloadableWeights, ...]:
        return (self.learner.resident,)


def load_for(
    spec: PPOJobSpec,
    folder: str,
    world: World,
    kind: ModelKind = POLICY,
    lora: LoraSpec | None = None,
    **parts: bool,
) -> PreTrainedModel:
    """Load a model that reads the rows of a job; `parts` as in `load_model`."""
    return load_model(
        folder,
        DTYPES[spec.model.dtype],
        kind=kind,
        world=world,
        lora=lora,
        seed=spec.seed,
        overrides=config_changes(folder, spec.model),
        **parts,
    )


def critic_learner(
    spec: PPOJobSpec, world: World, kind: ModelKind, head: ValueHead | PolicyHead
) -> Learner:
    """Build the learner of the role `critic`."""
    critic, role = spec.critic, spec.roles.critic
    assert critic is not None, "the role has a critic"
    assert critic.path is not None, "set in a resolved configuration"
    assert role is not None, "set in a resolved configuration"
    offload = role.offload

    def train(model: PreTrainedModel, total_updates: int) -> TrainEngine:
        return TrainEngine(
            model, head, spec.training, critic.optimizer, total_updates, world, offload
        )

    load = partial(load_for, spec, critic.path, world, kind, critic.lora)
    return Learner("critic", world, spec.seed, load, train, offload)


def resident_weights(model: nn.Module, offload: Collection[Offloaded]) -> OffloadableWeights:
    """Offload a model's weights, if `offload` names them; adapters are small and stay."""
    weights = (weight for name, weight in model.named_parameters() if not is_adapter(name))
    resident = OffloadableWeights(weights, may_offload="weights" in offload)
    resident.offload()
    return resident


def state_file(
    role: str,
    rank: int,
    name: str,
    tensors: Mapping[str, Tensor],
    host: HostBuffers | None = None,
) -> Shard:
    """Return a rank's file of a checkpoint; tensors may be offloaded."""
    path, seen = f"{role}/rank-{rank:05d}/{name}", host.view if host is not None else local_part
    return Shard.of(path, tensors, role=role, rank=rank, seen=seen)
