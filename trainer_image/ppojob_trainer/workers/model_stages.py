"""Model stages of a rank: forward passes, updates and checkpoints, on the rows of the step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ppojob_trainer.checkpoint.tensors import Shard
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.parallel.dims import WITHIN
from ppojob_trainer.parallel.link import Link
from ppojob_trainer.parallel.world import World
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.rows import BatchName, MoveColumns, MoveRows
from ppojob_trainer.rpc.messages.saving import Restore, SaveShards
from ppojob_trainer.rpc.messages.training import Forward, Update
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.device_sharing import DeviceSharing
from ppojob_trainer.workers.rank_start import open_channels, open_role_world
from ppojob_trainer.workers.reference import (
    Reference,
    SyncedReference,
    Teachers,
    base_reference,
    open_reference,
)
from ppojob_trainer.workers.row_channels import RowChannels
from ppojob_trainer.workers.rows_in_flight import RowsInFlight
from ppojob_trainer.workers.state_writer import StateOf, StateWriter, Write, shard_writer
from ppojob_trainer.workers.trained_models import (
    CRITIC_REFERENCE,
    Critic,
    Policy,
    ProcessRewardModel,
    open_critic,
    open_process_reward_model,
)

Trained = Policy | Critic | ProcessRewardModel


@dataclass
class ModelStages:
    """Handles requests for the models of a rank; all ranks of the role do so collectively."""

    run_folder: Path  # base folder of relative paths in requests
    channels: RowChannels  # to other roles
    frozen: dict[str, Reference] = field(default_factory=dict)  # by their names in requests
    trained: dict[str, Trained] = field(default_factory=dict)  # by their names in requests
    synced_reference: SyncedReference | None = None  # one of the frozen ones
    device: DeviceSharing = field(default_factory=DeviceSharing)
    in_flight: RowsInFlight | None = None  # if the engine here has a lookahead
    state: StateWriter = field(init=False)
    _models: StateOf = field(init=False)
    _rows: BatchRows | None = None
    _batch: BatchName | None = None  # of rows that other roles own

    def __post_init__(self) -> None:
        self._models = shard_writer(self._state_files)
        self.state = StateWriter(self.run_folder, self._state)

    def routes(self) -> list[Route]:
        return [
            *self.state.routes(),
            Route(methods.RESTORE, self._restore),
            *self.channels.routes(),
            Route(methods.MOVE_ROWS, self._move_rows),
            Route(methods.MOVE_COLUMNS, self._move_columns),
            Route(methods.FORWARD, self._forward),
            Route(methods.UPDATE, self._update),
        ]

    @property
    def rows(self) -> BatchRows:
        assert self._rows is not None, "rows come first"
        return self._rows

    def place(self, index: BatchIndex, mine: Experience) -> None:
        """Set the rows of a step: those of this rank, of all that the role's ranks hold."""
        self._rows = self.batch_rows(index, mine)

    def batch_rows(self, index: BatchIndex, mine: Experience) -> BatchRows:
        world = self.channels.world
        link = Link(world.group, world.device)
        within = Link(world.along(*WITHIN), world.device)
        return BatchRows(index, mine, link, self.channels.costs, world.dims, within)

    def _restore(self, request: Restore) -> None:
        self.device.use_models()
        self.state.invalidate()
        self._rows = self._batch = None
        folder = None if request.folder is None else self.run_folder / request.folder
        if self.in_flight is not None:
            self.in_flight.restore(folder, request.files)
        if self.synced_reference is not None:
            self.synced_reference.restore(folder, request.files)
        # Last, since a learner restores the random state.
        for name, model in self.trained.items():
            model.learner.restore(folder, request.files, request.total_updates[name])

    def _move_rows(self, request: MoveRows) -> None:
        mine = self.rows.mine if self.channels.owns_rows else None
        index, moved = self.channels.move_rows(request.role, request.index, mine)
        # A restarted controller repeats this, but not finished passes: their columns stay.
        if not self.channels.owns_rows and self._batch != request.batch:
            self.place(index, moved)
            self._batch = request.batch

    def _move_columns(self, request: MoveColumns) -> None:
        self.channels.move_columns(request, self.rows.mine)

    def _forward(self, request: Forward) -> PassStatistics:
        if trained := self.trained.get(request.model):
            self.device.use_models(trained.learner.resident)
            return trained.forward(self.rows)
        frozen = self.frozen[request.model]
        self.device.use_models(frozen.resident)
        return frozen.forward(self.rows)

    def _update(self, request: Update) -> PassStatistics:
        model = self.trained[request.model]
        self.device.use_models(*model.models_of_update)
        return model.update(self.rows, request)

    def _state(self, request: SaveShards) -> Write:
        models = self._models(request)
        if self.in_flight is None:
            return models
        rows = self.in_flight.state(request.step)
        return lambda folder: [*models(folder), *rows(folder)]

    def _state_files(self) -> list[Shard]:
        files = [file for model in self.trained.values() for file in model.learner.state_files()]
        return (
            files if self.synced_reference is None else [*files, self.synced_reference.state_file()]
        )


def open_stages(
    environment: PodEnvironment,
    world: World,
    policy: Policy | None = None,
    device: DeviceSharing | None = None,
    in_flight: RowsInFlight | None = None,
) -> ModelStages:
    """Load the reference and the critic of this role."""
    spec = environment.config.spec
    trained: dict[str, Trained] = {} if policy is None else {"policy": policy}
    frozen: dict[str, Reference] = {}
    living = environment.config.topology.living_in(environment.role)
    synced: SyncedReference | None = None
    if "reference" in living:
        refresh = spec.algorithm.kl.reference_refresh
        if refresh is not None:
            assert policy is not None, "it is in the policy's ranks"
            synced = SyncedReference(spec, world, refresh, policy.learner)
        if policy is not None and spec.is_own_reference:
            reference: Reference = base_reference(spec, world, policy.learner)
        elif len(spec.reference_paths) > 1:
            reference = Teachers(spec, world)
        else:
            reference = synced or open_reference(spec, world)
        frozen["reference"] = reference
        compares = spec.algorithm.compares_vocabularies or spec.algorithm.compares_answers
        if compares and policy is not None:
            policy.reference = reference
    if "critic" in living and spec.algorithm.estimator.critic == "process_reward":
        trained["critic"], frozen[CRITIC_REFERENCE] = open_process_reward_model(spec, world)
    elif "critic" in living:
        trained["critic"] = open_critic(spec, world)
    return ModelStages(
        environment.run_folder,
        open_channels(environment, world),
        frozen=frozen,
        trained=trained,
        synced_reference=synced,
        device=device or DeviceSharing(),
        in_flight=in_flight,
    )


@contextmanager
def open_standalone_model(
    environment: PodEnvironment, rank: RankEnvironment, _keys: KeyRing
) -> Iterator[ModelStages]:
    """Open a reference or critic in pods of its own; it is freed with the block."""
    with open_role_world(environment, rank) as world:
        yield open_stages(environment, world)
