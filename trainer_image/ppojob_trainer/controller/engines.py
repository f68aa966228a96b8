"""Where the engines are that make the rows: in the policy's ranks, or in pods of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ppojob_trainer.controller.batch import Batch, shares
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.role_group import RoleGroup
from ppojob_trainer.rpc.messages.rollout import BringWeights, HandOver
from ppojob_trainer.rpc.methods import BRING_WEIGHTS, HAND_OVER
from ppojob_trainer.rpc.wire import RequestId


class Engines(Protocol):
    """The engines of a job."""

    @property
    def group(self) -> RoleGroup:
        """The role whose ranks generate."""
        ...

    @property
    def forgets(self) -> bool:
        """Whether they may be lost while the policy's ranks, with the rows, live on."""
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
    forgets: bool = False

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
    """

    group: RoleGroup
    channels: RoleChannels
    forgets: bool = True
    _held: tuple[str, int] | None = field(default=None)
    """Over which channel which version came last."""

    def prepare(self, version: int, step: int) -> None:
        """Bring the weights, unless these ranks have had them from those of the policy."""
        key = self.channels.key(self.group)
        if self._held == (key, version):
            return
        self.channels.open(self.group, step)
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
        makers = shares(len(first.prompts), len(self.group.ranks))
        purposes = [batch.purpose for batch in batches]
        self.channels.ask_both(
            self.group,
            HAND_OVER,
            lambda role: HandOver(role, purposes, first.round, makers, first.shares),
            RequestId(0, step, f"{first.label}/hand_over/{self.channels.key(self.group)}"),
        )
