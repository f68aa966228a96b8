"""Reference policy of the KL: the initial policy, other models, or one synced with the policy."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

import torch

from ppojob_api.v1alpha1.algorithm import ReferenceRefreshSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.roles import Offloaded
from ppojob_trainer.checkpoint.manifest import MODEL_FILE, files_of_all_ranks
from ppojob_trainer.checkpoint.tensors import Shard, read_parts
from ppojob_trainer.engine.forward_engine import ForwardEngine, StageOutput
from ppojob_trainer.engine.head import Head, LastStates, PolicyHead, TokenOutputs
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.lora import adapters_off
from ppojob_trainer.models.state_dict import hf_named_tensors, load_named_tensors
from ppojob_trainer.parallel.boxes import box_of, local_part
from ppojob_trainer.parallel.offload import OffloadableModels, OffloadableWeights
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.saving import FileEntry
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.learner import Learner, load_for, resident_weights, state_file

ROLE: Final = "reference"
"""Folder of its files in a checkpoint."""


class Reference:
    """A frozen model that fills in a column of log-probabilities."""

    num_models = 1

    def __init__(
        self, engine: ForwardEngine, resident: OffloadableWeights, column: str = "ref_logprobs"
    ) -> None:
        self.engine = engine
        self.resident = resident
        self._column = column

    def forward(self, rows: BatchRows) -> PassStatistics:
        rows.fill(self._column, self.predict)
        return PassStatistics()

    def predict(self, rows: Experience) -> TokenOutputs:
        """Return log-probabilities of the rows' tokens; a collective of all ranks."""
        return self.engine.predict(rows.as_reference_reads())

    def last_states(self, _number: int, rows: Experience) -> LastStates:
        """Return the last hidden states of a micro-batch; see `ForwardEngine`."""
        return self.engine.last_states(rows)

    def release(self) -> None:
        self.engine.release()


def open_reference(spec: PPOJobSpec, world: World, number: int = 0) -> Reference:
    """Load the reference model of this number; see `ReferenceSpec.paths`."""
    engine = _load(spec, world, number)
    return Reference(engine, resident_weights(engine.model, _offload(spec)))


def base_reference(spec: PPOJobSpec, world: World, policy: Learner) -> Reference:
    """Return the frozen weights below a policy's adapters."""
    head = PolicyHead.of(spec, "none")
    return Reference(BaseEngine(policy.model, head, spec.training, world), policy.resident)


def _load(spec: PPOJobSpec, world: World, number: int = 0) -> ForwardEngine:
    """Load the initial policy, or the model that the job names.

    With adapters over 4-bit weights the initial policy is those weights.
    """
    lora = spec.lora_of_reference
    model = load_for(spec, spec.reference_paths[number], world, lora=lora)
    engine = ForwardEngine if lora is None else BaseEngine
    return engine(model, PolicyHead.of(spec, "none"), spec.training, world)


def _offload(spec: PPOJobSpec) -> Collection[Offloaded]:
    return () if spec.roles.reference is None else spec.roles.reference.offload


class Teachers(Reference):
    """Several frozen models, each for its own rows; with offload, one is loaded at a time.

    All ranks run the models in the same order, also without rows of one.
    """

    def __init__(self, spec: PPOJobSpec, world: World) -> None:
        numbers = range(len(spec.reference_paths))
        self._models = [open_reference(spec, world, number) for number in numbers]
        self._swapped = OffloadableModels([model.resident for model in self._models])
        super().__init__(self._models[0].engine, self._swapped)
        self.num_models = len(self._models)

    def predict(self, rows: Experience) -> TokenOutputs:
        """Return log-probabilities of rows, each by its own model; a collective of all ranks."""
        logprobs = torch.zeros(rows.num_tokens)
        for number, model in enumerate(self._models):
            own = rows.read_by(number).nonzero()[:, 0]
            self._swapped.choose(number)
            (logprobs[rows.token_index(own)],) = model.predict(rows.select(own))
        return (logprobs,)

    def last_states(self, number: int, rows: Experience) -> LastStates:
        """Return the last hidden states of a micro-batch, by the model of this number."""
        if self._swapped.chosen != number:
            self.release()
        self._swapped.choose(number)
        return self._models[number].engine.last_states(rows)

    def release(self) -> None:
        for model in self._models:
            model.release()


class BaseEngine(ForwardEngine):
    """The policy without its adapters: the initial policy, without extra memory."""

    def last_states(self, rows: Experience) -> LastStates:
        """See `ForwardEngine`; keeps the model's training mode."""
        is_training = self.model.training
        states = super().last_states(rows)
        self.model.train(is_training)
        return states

    def _forward(self, rows: Experience, head: Head | None = None, **options: Any) -> StageOutput:
        with adapters_off(self.model):
            return super()._forward(rows, head, **options)


class SyncedReference(Reference):
    """A reference that is updated from the policy's weights, and so is part of checkpoints.

    Both are sharded in the same way.
    """

    def __init__(
        self, spec: PPOJobSpec, world: World, refresh: ReferenceRefreshSpec, policy: Learner
    ) -> None:
        engine = _load(spec, world)
        super().__init__(engine, resident_weights(engine.model, _offload(spec)))
        self._spec = spec
        self._world = world
        self._mixup = refresh.mixup
        self._policy = policy
        self._is_synced = False

    def sync(self) -> None:
        """Update the weights: `π_ref ← α π + (1 - α) π_ref`.

        The soft update of TR-DPO (arXiv:2404.09656), and with α = 1 its hard one, an exact copy.
        """
        self._is_synced = True
        trained, policy = dict(hf_named_tensors(self._policy.model)), self._policy.resident.host
        with self.resident.on_device():
            for name, weight in hf_named_tensors(self.engine.model):
                own, other = local_part(weight), local_part(policy.on_device(trained[name]))
                if self._mixup == 1.0:
                    own.copy_(other)
                else:
                    own.mul_(1.0 - self._mixup).add_(other, alpha=self._mixup)

    def restore(self, folder: Path | None, files: Iterable[FileEntry]) -> None:
        """Load the weights of a checkpoint, or the initial ones; see `Learner.restore`."""
        if folder is None:
            if self._is_synced:
                del self.engine  # two references may not fit in memory
                self.engine = _load(self._spec, self._world)
                self.resident = resident_weights(self.engine.model, _offload(self._spec))
                self._is_synced = False
            return
        self._is_synced = True
        model = self.engine.model
        weights = {name: box_of(weight) for name, weight in hf_named_tensors(model)}
        entries = files_of_all_ranks(files, ROLE, MODEL_FILE, folder.name)
        with self.resident.on_device():
            load_named_tensors(model, read_parts(folder, entries, weights, rank=self._world.rank))

    def state_file(self) -> Shard:
        weights = dict(hf_named_tensors(self.engine.model))
        return state_file(ROLE, self._world.rank, MODEL_FILE, weights, self.resident.host)
