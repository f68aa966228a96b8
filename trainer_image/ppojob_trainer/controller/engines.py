"""Where the engines are that generate the rows: in the policy's ranks, or in pods of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ppojob_trainer.controller.batch import Batch, shares
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.roles import RoleGroup
from ppojob_trainer.rpc.messages.rollout import BringWeights, HandOver, Recall
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.methods import BRING_WEIGHTS, HAND_OVER, RECALL
from ppojob_trainer.rpc.wire import RequestId


@dataclass
class Engines:
    """The policy's ranks generate: the weights are there, and the rows are where they belong."""

    group: RoleGroup

    @property
    def attempt(self) -> int:
        """Of engines that can be lost without a rewind: a number that grows each time; else 0."""
        return 0

    def shares(self, prompts: int) -> list[tuple[int, int]]:
        """Runs `[first, last)` of so many prompts, one for each rank that generates."""
        return shares(prompts, len(self.group.ranks))

    def recall(self, batches: Sequence[Batch], step: int) -> bool:
        """Fill in what is known of rows that were generated before these engines were lost.

        The ranks that own them still have them, while the weights may be others by now. Ranks that
        generate themselves are asked again, and answer from memory.

        Returns:
            Whether all batches, which are generated together, are there.
        """
        return False

    def prepare(self, version: int, step: int) -> None:
        """Make sure that they hold the policy's weights after step `version`.

        For the policy's own ranks the stage `sync_weights` has done so.
        """

    def deliver(self, batches: Sequence[Batch], step: int) -> None:
        """Make sure that the policy's ranks own the rows of batches generated together."""


@dataclass
class StandaloneEngines(Engines):
    """Ranks of the role `rollout` generate.

    Attributes:
        operation_seconds: limit of one transfer: each side waits while the other puts weights
            together, or takes them in.
    """

    channels: RoleChannels
    operation_seconds: float
    _held: tuple[str, int] | None = field(default=None)
    """The channel by which the last weights came, and their version."""

    @property
    def attempt(self) -> int:
        """That of the role."""
        return self.group.attempt

    def recall(self, batches: Sequence[Batch], step: int) -> bool:
        """Ask the owners which rows they were given."""
        owners = range(len(batches[0].shares))
        request = Recall(self._names(batches, step))
        told = [one.rows for one in self.channels.ask_owners(RECALL, request, owners)]
        rows = [one for one in told if one is not None]
        if len(rows) < len(told):
            return False
        batches[0].take_lengths(rows)
        for greedy in batches[1:]:
            greedy.take_lengths([one.greedy for one in rows if one.greedy is not None])
        return True

    def _names(self, batches: Sequence[Batch], step: int) -> list[BatchName]:
        return [batch.name(self.channels.roles.rewinds, step) for batch in batches]

    def prepare(self, version: int, step: int) -> None:
        """Bring the weights, unless these ranks got them already by this channel."""
        key = self.channels.key(self.group)
        if self._held == (key, version):
            return
        self.channels.open(self.group, step, self.operation_seconds)
        self.channels.ask_both(
            self.group,
            BRING_WEIGHTS,
            lambda role: BringWeights(role, version),
            RequestId(0, step, f"bring_weights/{version}/{key}"),
        )
        self._held = (key, version)

    def deliver(self, batches: Sequence[Batch], step: int) -> None:
        """Move the rows, each run of prompts to the rank that owns it from now on."""
        first = batches[0]
        makers = self.shares(len(first.prompts))
        names = self._names(batches, step)
        self.channels.ask_both(
            self.group,
            HAND_OVER,
            lambda role: HandOver(role, names, makers, first.shares),
            RequestId(0, step, f"{first.label}/hand_over/{self.channels.key(self.group)}"),
        )
