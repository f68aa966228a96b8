"""The rank of the role `rollout`: an engine in pods of its own, and nothing that is trained.

Its weights come from the policy's ranks before each generation phase that needs newer ones, its
rows go to them behind it: until then they are kept as they were drawn.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from ppojob_trainer.errors import ChannelLost
from ppojob_trainer.parallel.tensor_stream import receive_tensors
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.rollout import BringWeights, Generate, Generated, HandOver
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing
from ppojob_trainer.workers.generation import (
    Generation,
    batches_of,
    generated,
    open_generation,
)
from ppojob_trainer.workers.handover import MadeRows, give_rows
from ppojob_trainer.workers.rank_start import OWNER, open_channels, open_role_world
from ppojob_trainer.workers.row_channels import RowChannels


@dataclass
class RolloutWorker:
    """Answers the stages of the role `rollout`; its channels go to the policy's ranks."""

    generation: Generation
    channels: RowChannels
    _made: dict[tuple[int, str, int], MadeRows] = field(default_factory=dict)
    """By step, purpose and generation round: those of this step and the last, as of answers."""

    def routes(self) -> list[Route]:
        """The methods of this role."""
        return [
            *self.channels.routes(),
            Route(methods.BARRIER, lambda _: Nothing()),
            Route(methods.BRING_WEIGHTS, self._take_weights),
            Route(methods.GENERATE, self._generate),
            Route(methods.HAND_OVER, self._hand_over),
        ]

    def _take_weights(self, request: BringWeights) -> Nothing:
        lost: list[ChannelLost] = []
        try:
            self.generation.engine.load_weights(request.version, self._received_weights(lost))
        except Exception as problem:
            if not lost:
                raise
            # Half of its weights are new, and engines do not load twice: this process must end.
            raise SystemExit(f"weights of version {request.version}: {lost[0]}") from problem
        return Nothing()

    def _received_weights(self, lost: list[ChannelLost]) -> Iterator[tuple[str, Tensor]]:
        """The weights; all ranks of the policy have them, and serve the engines by turns."""
        sender = self.channels.world.rank % self.channels.owners(OWNER)
        try:
            yield from receive_tensors(self.channels.link(OWNER), sender)
        except ChannelLost as loss:
            lost.append(loss)
            raise

    def _generate(self, request: Generate) -> Generated:
        batches = batches_of(request)
        made = self.generation.run(batches)
        self._made = {k: kept for k, kept in self._made.items() if k[0] >= request.step - 1}
        for batch, rows in zip(batches, made, strict=True):
            self._made[batch.step, batch.purpose, batch.round] = rows
        return generated(made)

    def _hand_over(self, request: HandOver) -> Nothing:
        made: list[MadeRows] = []
        if self.channels.world.rank < len(request.makers):
            made = [self._made[of.step, of.purpose, of.round] for of in request.batches]
        give_rows(self.channels.link(request.role), request, made)
        return Nothing()


@contextmanager
def open_rollout_worker(
    environment: PodEnvironment, rank: RankEnvironment, keys: KeyRing
) -> Iterator[RolloutWorker]:
    """The worker of one rank, whose engine lives as long as the block."""
    with (
        open_role_world(environment, rank) as world,
        open_generation(environment, world, keys) as generation,
    ):
        yield RolloutWorker(generation, open_channels(environment, world))
