"""Rollout worker: an inference engine in pods of its own, without training.

The policy's ranks send weights before each generation phase that needs newer ones; with adapters
only those, and the base weights come from the model's folder. Rows are sent to their owners after
the phase. With a lookahead of several steps, rows in flight are part of checkpoints.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ppojob_trainer.errors import ChannelLost
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.models.weight_stream import stored_weights
from ppojob_trainer.parallel.link import receive_tensors
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rollout.protocol import DTYPES
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.rollout import Generate, Generated, SyncEngineWeights, TransferRows
from ppojob_trainer.rpc.messages.saving import Restore, SaveShards
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.workers.generation import (
    Generation,
    batches_of,
    generation_result,
    open_generation,
)
from ppojob_trainer.workers.rank_start import OWNER, open_channels, open_role_world
from ppojob_trainer.workers.row_channels import GeneratedRows, RowChannels, send_rows
from ppojob_trainer.workers.rows_in_flight import RowsInFlight, generate
from ppojob_trainer.workers.state_writer import StateWriter, Write


@dataclass
class RolloutWorker:
    """Handles the requests to the role `rollout`; its channels go to the policy's ranks."""

    run_folder: Path  # base folder of relative paths in requests
    generation: Generation
    channels: RowChannels
    in_flight: RowsInFlight | None  # with a lookahead of several steps
    state: StateWriter = field(init=False)  # writes their shards of checkpoints
    _has_weights: bool = False  # whether the engine has received weights
    _made: dict[tuple[int, str, int], GeneratedRows] = field(default_factory=dict)
    """Rows by step, purpose and generation round, of this step and the last."""

    def __post_init__(self) -> None:
        self.state = StateWriter(self.run_folder, self._state)

    def routes(self) -> list[Route]:
        return [
            *self.channels.routes(),
            *self.state.routes(),
            Route(methods.SYNC_ENGINE_WEIGHTS, self._receive_weights),
            Route(methods.GENERATE, self._generate),
            Route(methods.ROWS_DRAWN, self.generation.progress.report),
            Route(methods.TRANSFER_ROWS, self._send_rows),
            Route(methods.RESTORE, self._restore),
        ]

    def _receive_weights(self, request: SyncEngineWeights) -> None:
        lost: list[ChannelLost] = []
        try:
            self.generation.engine.load_weights(request.version, self._received_weights(lost))
        except Exception as problem:
            if not lost:
                raise
            # Only some of the weights are new, and engines do not load twice.
            raise SystemExit(f"weights of version {request.version}: {lost[0]}") from problem
        self._has_weights = True

    def _received_weights(self, lost: list[ChannelLost]) -> Iterator[tuple[str, Tensor]]:
        """Receive the weights from one of the policy's ranks, which all have them.

        Base weights come before the first adapters.
        """
        spec, dtype = self.generation.spec, DTYPES[self.generation.spec.model.dtype]
        if spec.adapters_of_engines is not None and not self._has_weights:
            overrides = config_changes(spec.model.path, spec.model)
            device, lora = self.channels.world.device, spec.model.lora
            yield from stored_weights(spec.model.path, dtype, device, overrides, lora)
        sender = self.channels.world.rank % self.channels.owners(OWNER)
        try:
            yield from receive_tensors(self.channels.link(OWNER), sender)
        except ChannelLost as loss:
            lost.append(loss)
            raise

    def _generate(self, request: Generate) -> Generated:
        made = generate(self.generation, self.in_flight, request)
        self._made = {key: old for key, old in self._made.items() if key[0] >= request.step - 1}
        for batch, rows in zip(batches_of(request), made, strict=True):
            self._made[batch.step, batch.purpose, batch.round] = rows
        return generation_result(made, self.generation.engine.counts())

    def _send_rows(self, request: TransferRows) -> None:
        made = [self._made[of.step, of.purpose, of.round] for of in request.batches]
        send_rows(self.channels.link(request.role), request, made)

    def _restore(self, request: Restore) -> None:
        assert self.in_flight is not None, "only rows in flight are restored"
        self.state.invalidate()
        folder = None if request.folder is None else self.run_folder / request.folder
        self.in_flight.restore(folder, request.files)

    def _state(self, request: SaveShards) -> Write:
        """Return a writer of the rows in flight after the next step, whose rows are in `ahead`."""
        return self.in_flight.state(request.step + 1) if self.in_flight else lambda _: []


@contextmanager
def open_rollout_worker(
    environment: PodEnvironment, rank: RankEnvironment, keys: KeyRing
) -> Iterator[RolloutWorker]:
    """Open the worker of one rank; its engine is closed with the block."""
    with (
        open_role_world(environment, rank) as world,
        open_generation(environment, world, keys) as generation,
    ):
        yield RolloutWorker(
            environment.run_folder,
            generation,
            open_channels(environment, world),
            RowsInFlight(generation) if generation.spec.phases_of_rows > 1 else None,
        )
