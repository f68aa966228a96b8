"""Rollout worker: an inference engine in pods of its own, without training.

The policy's ranks send the weights before each generation phase that needs newer ones. With
adapters only these are sent, and the base weights come from the model's folder. Rows are sent to
the owners after the phase, and kept until then. With a lookahead of several steps, rows in flight
are state, which checkpoints hold.
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
from ppojob_trainer.rpc.messages.rollout import BringWeights, Generate, Generated, HandOver
from ppojob_trainer.rpc.messages.saving import Restore, SaveShards
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing
from ppojob_trainer.workers.generation import (
    TRAIN,
    Generation,
    batches_of,
    generated,
    open_generation,
)
from ppojob_trainer.workers.rank_start import OWNER, open_channels, open_role_world
from ppojob_trainer.workers.row_channels import RowChannels
from ppojob_trainer.workers.row_transfer import GeneratedRows, send_rows
from ppojob_trainer.workers.rows_in_flight import RowsInFlight
from ppojob_trainer.workers.state_writer import StateWriter, Write


@dataclass
class RolloutWorker:
    """Answers requests to the role `rollout`; its channels go to the policy's ranks."""

    run_folder: Path  # base folder of relative paths in requests
    generation: Generation
    channels: RowChannels
    under_way: RowsInFlight | None  # rows of a job with a lookahead of several steps
    state: StateWriter = field(init=False)  # writes their shards of checkpoints
    _has_weights: bool = False  # whether the engine has received weights
    _made: dict[tuple[int, str, int], GeneratedRows] = field(default_factory=dict)
    """Rows by step, purpose and generation round: of this step and the last, like answers."""

    def __post_init__(self) -> None:
        self.state = StateWriter(self.run_folder, self._state)

    def routes(self) -> list[Route]:
        """The methods of this role."""
        return [
            *self.channels.routes(),
            *self.state.routes(),
            Route(methods.BRING_WEIGHTS, self._take_weights),
            Route(methods.GENERATE, self._generate),
            Route(methods.ROWS_DRAWN, self.generation.progress.tell),
            Route(methods.HAND_OVER, self._hand_over),
            Route(methods.RESTORE, self._restore),
        ]

    def _take_weights(self, request: BringWeights) -> Nothing:
        lost: list[ChannelLost] = []
        try:
            self.generation.engine.load_weights(request.version, self._received_weights(lost))
        except Exception as problem:
            if not lost:
                raise
            # Only half of the weights are new, and engines do not load twice: this process must
            # end.
            raise SystemExit(f"weights of version {request.version}: {lost[0]}") from problem
        self._has_weights = True
        return Nothing()

    def _received_weights(self, lost: list[ChannelLost]) -> Iterator[tuple[str, Tensor]]:
        """Receive the weights; all ranks of the policy have them, and serve the engines in turn.

        The base weights come before the first adapters, and stay.
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
        batches = batches_of(request)
        if self.under_way is not None and request.purpose == TRAIN:
            made = self.under_way.draw(request)
        else:
            made = self.generation.run(batches)
        self._made = {k: kept for k, kept in self._made.items() if k[0] >= request.step - 1}
        for batch, rows in zip(batches, made, strict=True):
            self._made[batch.step, batch.purpose, batch.round] = rows
        return generated(made, self.generation.engine.counts())

    def _hand_over(self, request: HandOver) -> Nothing:
        made = [self._made[of.step, of.purpose, of.round] for of in request.batches]
        send_rows(self.channels.link(request.role), request, made)
        return Nothing()

    def _restore(self, request: Restore) -> Nothing:
        assert self.under_way is not None, "no other job asks engines for it"
        self.state.forget()
        folder = None if request.folder is None else self.run_folder / request.folder
        self.under_way.restore(folder, request.files)
        return Nothing()

    def _state(self, request: SaveShards) -> Write:
        """Write the rows in flight; those of the next step are in the folder `ahead`."""
        return self.under_way.state(request.step + 1) if self.under_way else lambda _: []


@contextmanager
def open_rollout_worker(
    environment: PodEnvironment, rank: RankEnvironment, keys: KeyRing
) -> Iterator[RolloutWorker]:
    """Open the worker of one rank, whose engine lives as long as the block."""
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
