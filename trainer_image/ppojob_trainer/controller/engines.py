"""Where the engines are that make the rows: in the policy's ranks, or in pods of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ppojob_trainer.controller.batch import Batch, shares
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.role_group import RoleGroup
from ppojob_trainer.rpc.messages.rollout import BringWeights, HandOver, Recall
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.methods import BRING_WEIGHTS, HAND_OVER, RECALL
from ppojob_trainer.rpc.wire import RequestId


def runs(makers: RoleGroup, prompts: int) -> list[tuple[int, int]]:
    """Runs `[first, last)` of so many prompts, one a rank that generates."""
    return shares(prompts, len(makers.ranks))


class Engines(Protocol):
    """The engines of a job."""

    @property
    def group(self) -> RoleGroup:
        """The role whose ranks generate."""
        ...

    @property
    def attempt(self) -> int:
        """Of engines that are lost without a rewind: a number that grows with it; else 0."""
        ...

    def recall(self, batches: Sequence[Batch], step: int) -> bool:
        """Fill in what is known of rows that were generated before these engines were lost.

        The ranks that own them have them still, and by now the weights may be others.

        Args:
            batches: that are generated together.
            step: of the loop.

        Returns:
            Whether all are there, so that nothing is to be generated.
        """
        ...

    def prepare(self, version: int, step: int) -> None:
        """See to it that they hold the weights of a version, which the policy's ranks have.

        Args:
            version: the step behind which the weights are.
            step: of the loop, now.
        """
        ...

    def deliver(self, batches: Sequence[Batch], step: int) -> None:
        """See to it that the policy's ranks own the rows of what was generated together."""
        ...


@dataclass(frozen=True)
class HybridEngines:
    """The policy's ranks generate: weights are at hand, and rows are where they belong.

    Attributes:
        group: those ranks.
    """

    group: RoleGroup
    attempt: int = 0

    def recall(self, batches: Sequence[Batch], step: int) -> bool:
        """Ranks that live are asked again, and answer from memory."""
        return False

    def prepare(self, version: int, step: int) -> None:
        """The stage `sync_weights` has done it."""

    def deliver(self, batches: Sequence[Batch], step: int) -> None:
        """They own them."""


@dataclass
class StandaloneEngines:
    """Ranks of the role `rollout` generate.

    Attributes:
        group: those ranks.
        channels: between them and the policy's.
        patience_seconds: limit of what goes over in one operation: each side waits while the other
            puts weights together, or takes them in.
    """

    group: RoleGroup
    channels: RoleChannels
    patience_seconds: float
    _held: tuple[str, int] | None = field(default=None)
    """Over which channel which version came last."""

    @property
    def attempt(self) -> int:
        """That of the role."""
        return self.group.epoch

    def recall(self, batches: Sequence[Batch], step: int) -> bool:
        """Ask the owners what they were handed over."""
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
        rewinds = self.channels.roles.rewinds
        return [BatchName(rewinds, step, batch.purpose, batch.round) for batch in batches]

    def prepare(self, version: int, step: int) -> None:
        """Bring the weights, unless these ranks have had them from those of the policy."""
        key = self.channels.key(self.group)
        if self._held == (key, version):
            return
        self.channels.open(self.group, step, self.patience_seconds)
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
        makers = runs(self.group, len(first.prompts))
        names = self._names(batches, step)
        self.channels.ask_both(
            self.group,
            HAND_OVER,
            lambda role: HandOver(role, names, makers, first.shares),
            RequestId(0, step, f"{first.label}/hand_over/{self.channels.key(self.group)}"),
        )
