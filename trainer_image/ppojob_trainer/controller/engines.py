"""Calls to the rollout engines: colocated with the policy, or standalone in their own pods."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ppojob_trainer.controller.batch import Batch, spread
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.roles import RoleGroup
from ppojob_trainer.rpc.messages.rollout import Generate, QueryRows, SyncEngineWeights, TransferRows
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.methods import GENERATE, QUERY_ROWS, SYNC_ENGINE_WEIGHTS, TRANSFER_ROWS
from ppojob_trainer.rpc.wire import RequestId

Run = tuple[int, int]
"""Positions `[first, last)` of prompts in their batch."""


@dataclass
class Engines:
    """Colocated engines, in the policy's ranks: weights and rows need no transfer."""

    group: RoleGroup
    tensor: int  # ranks per engine

    def shares(self, prompts: int) -> list[tuple[int, int]]:
        """Return the range `[first, last)` of prompts whose rows each rank keeps."""
        return spread(prompts, len(self.group.ranks))

    def runs(self, prompts: int) -> list[tuple[Run, Run]]:
        """Return each rank's range of prompts to generate, and the range that it keeps.

        All ranks of an engine generate the same range.
        """
        kept = self.shares(prompts)
        engines = [kept[first : first + self.tensor] for first in range(0, len(kept), self.tensor)]
        return [((parts[0][0], parts[-1][1]), own) for parts in engines for own in parts]

    def recall(self, batches: Sequence[Batch]) -> bool:
        """Set the metadata of batches whose rows the owners already have; return whether they do.

        Standalone engines that were restarted may have other weights by now. Colocated engines are
        called again, and answer from memory.
        """
        return False

    def prepare(self, version: int) -> None:
        """Sync the weights of step `version`; for colocated engines, `sync_weights` has done so."""

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Move the rows of batches that were generated together to their owners."""


@dataclass
class StandaloneEngines(Engines):
    """Engines in their own pods: the role `rollout`."""

    channels: RoleChannels
    operation_seconds: float  # timeout of a transfer, with gathering and loading weights
    _open_channel: str | None = field(default=None)
    _synced: tuple[str, int] | None = field(default=None)  # channel and version of the last sync
    _begun: tuple[Sequence[Generate], RequestId] | None = field(default=None)  # not yet waited for

    def recall(self, batches: Sequence[Batch]) -> bool:
        """Query the owners for the metadata of their rows."""
        roles, request = self.channels.roles, QueryRows(self._names(batches))
        answers = roles.gather(roles.submit_query([self.channels.roles.owner], QUERY_ROWS, request))
        rows = [one.rows for one in answers if one.rows is not None]
        if len(rows) < len(answers):
            return False
        first, *greedy = batches
        first.set_metadata(rows, greedy[0] if greedy else None)
        return True

    def _names(self, batches: Sequence[Batch]) -> list[BatchName]:
        return [batch.name(self.channels.roles.rewinds) for batch in batches]

    def prepare(self, version: int) -> None:
        """Sync the weights, unless these ranks got them over this channel already.

        Unfinished generation is waited for first. The request id does not contain the controller's
        attempt: a restarted controller is answered from memory, since the trainer may have newer
        weights.
        """
        if self._synced == (self.channels.key(self.group), version):
            return
        if self._begun is not None and self._begun[1].rewinds == self.channels.roles.rewinds:
            self.channels.roles.call(self.group, GENERATE, *self._begun)
        self._begun = None
        step = version + 1
        key = self._open(step)
        self.channels.call_both(
            self.group,
            SYNC_ENGINE_WEIGHTS,
            lambda role: SyncEngineWeights(role, version),
            RequestId(0, step, f"sync_engine_weights/{version}/{self.group.attempt}"),
        )
        self._synced = (key, version)

    def begin(self, requests: Sequence[Generate], id_: RequestId) -> None:
        """Start to generate rows without waiting; `deliver` or `prepare` waits."""
        roles = self.channels.roles
        self._begun = requests, msgspec.structs.replace(id_, rewinds=roles.rewinds)
        roles.caller.cancel(roles.submit(self.group, GENERATE, requests, id_))

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Move each range of prompts to the rank that owns it."""
        self._begun = None
        first, key = batches[0], self._open(batches[0].step)
        makers = self.shares(len(first.prompts))
        names = self._names(batches)
        self.channels.call_both(
            self.group,
            TRANSFER_ROWS,
            lambda role: TransferRows(role, names, makers, first.shares),
            RequestId(0, first.step, f"{first.label}/transfer_rows/{key}"),
        )

    def _open(self, step: int) -> str:
        key = self.channels.key(self.group)
        if self._open_channel != key:
            self.channels.open(self.group, step, self.operation_seconds)
            self._open_channel = key
        return key
