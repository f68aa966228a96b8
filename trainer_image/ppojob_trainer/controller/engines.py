"""Rollout engines as the controller sees them: in the policy's ranks, or in pods of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ppojob_trainer.controller.batch import Batch, spread
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.roles import RoleGroup
from ppojob_trainer.rpc.messages.rollout import BringWeights, Generate, HandOver, Recall
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.methods import BRING_WEIGHTS, GENERATE, HAND_OVER, RECALL
from ppojob_trainer.rpc.wire import RequestId

Run = tuple[int, int]
"""Positions `[first, last)` of prompts in their batch."""


@dataclass
class Engines:
    """Engines in the policy's ranks: weights and rows need no transfer."""

    group: RoleGroup
    tensor: int  # ranks per engine: this many neighbours

    @property
    def attempt(self) -> int:
        """Return the attempt of engines that can be lost without a rewind; else 0."""
        return 0

    def shares(self, prompts: int) -> list[tuple[int, int]]:
        """Split so many prompts into ranges `[first, last)`, one for each rank that keeps rows."""
        return spread(prompts, len(self.group.ranks))

    def runs(self, prompts: int) -> list[tuple[Run, Run]]:
        """Return each rank's range of prompts to generate, and the range that it keeps.

        Ranks of one engine generate the same range, also those that keep no rows.
        """
        kept = self.shares(prompts)
        engines = [kept[first : first + self.tensor] for first in range(0, len(kept), self.tensor)]
        return [((parts[0][0], parts[-1][1]), own) for parts in engines for own in parts]

    def recall(self, batches: Sequence[Batch], step: int) -> bool:
        """Fill in the metadata of rows that were generated before these engines were lost.

        Their owners still have them, while the weights may have changed. Ranks that generate
        themselves are called again, and answer from memory.

        Returns:
            Whether all batches, which are generated together, are there.
        """
        return False

    def prepare(self, version: int) -> None:
        """Make sure that the engines hold the policy's weights after step `version`.

        For engines in the policy's own ranks the stage `sync_weights` has done that.
        """

    def deliver(self, batches: Sequence[Batch], step: int) -> None:
        """Make sure that the policy's ranks own the rows of batches generated together."""


@dataclass
class StandaloneEngines(Engines):
    """Engines in pods of their own: the role `rollout`.

    Attributes:
        operation_seconds: limit of one transfer: each side waits while the other collects or loads
            weights.
    """

    channels: RoleChannels
    operation_seconds: float
    _opened: str | None = field(default=None)
    """Name of the open channel."""
    _held: tuple[str, int] | None = field(default=None)
    """Channel of the last weight sync, and the version of those weights."""
    _begun: tuple[Sequence[Generate], RequestId] | None = field(default=None)
    """Generation that was begun, and that nobody has waited for."""

    @property
    def attempt(self) -> int:
        """Return the attempt of the role."""
        return self.group.attempt

    def recall(self, batches: Sequence[Batch], step: int) -> bool:
        """Ask the owners which rows they received."""
        owners = range(len(batches[0].shares))
        request = Recall(self._names(batches, step))
        told = [one.rows for one in self.channels.query_owners(RECALL, request, owners)]
        rows = [one for one in told if one is not None]
        if len(rows) < len(told):
            return False
        batches[0].set_lengths(rows)
        for greedy in batches[1:]:
            greedy.set_lengths([one.greedy for one in rows if one.greedy is not None])
        return True

    def _names(self, batches: Sequence[Batch], step: int) -> list[BatchName]:
        return [batch.name(self.channels.roles.rewinds, step) for batch in batches]

    def prepare(self, version: int) -> None:
        """Sync the weights, unless these ranks got them already over this channel.

        Generation that was begun before is finished first. The request's id names the step that
        begins with these weights, and not the controller: a restarted controller is answered from
        memory, and does not ask the trainer for weights that it no longer has.
        """
        if self._held == (self.channels.key(self.group), version):
            return
        if self._begun is not None and self._begun[1].rewinds == self.channels.roles.rewinds:
            self.channels.roles.call(self.group, GENERATE, *self._begun)
        self._begun = None
        step = version + 1
        key = self._open(step)
        self.channels.call_both(
            self.group,
            BRING_WEIGHTS,
            lambda role: BringWeights(role, version),
            RequestId(0, step, f"bring_weights/{version}/{self.group.attempt}"),
        )
        self._held = (key, version)

    def begin(self, requests: Sequence[Generate], id_: RequestId) -> None:
        """Begin to generate rows, without waiting; a repeated request gets the same answer."""
        roles = self.channels.roles
        self._begun = requests, msgspec.structs.replace(id_, rewinds=roles.rewinds)
        roles.caller.give_up(roles.submit(self.group, GENERATE, requests, id_))

    def deliver(self, batches: Sequence[Batch], step: int) -> None:
        """Move each range of prompts to the rank that owns it from now on."""
        self._begun = None
        first, key = batches[0], self._open(step)
        makers = self.shares(len(first.prompts))
        names = self._names(batches, step)
        self.channels.call_both(
            self.group,
            HAND_OVER,
            lambda role: HandOver(role, names, makers, first.shares),
            RequestId(0, step, f"{first.label}/hand_over/{key}"),
        )

    def _open(self, step: int) -> str:
        """Open the channel, unless this controller did; return its name."""
        key = self.channels.key(self.group)
        if self._opened != key:
            self.channels.open(self.group, step, self.operation_seconds)
            self._opened = key
        return key
