"""Leader election: a Lease, renewed by its holder and taken over when it expires.

Writes are fenced. A leader that could not renew in time, or whose process was stopped, refuses its
own writes before they are sent, by its own monotonic clock. Requests already sent are harmless:
objects are created by name and changed by uid, and a status write is conditional on the resource
version of the job that it was planned from.
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ppojob_operator.cluster import Cluster
from ppojob_operator.errors import ClusterError, ConflictError, MissingError, NotLeaderError
from ppojob_operator.kinds import LEASE
from ppojob_operator.metrics import LEADER
from ppojob_operator.settings import Settings
from ppojob_operator.state import Manifest

_log = logging.getLogger(__name__)
_RENEWALS = 4
"""Renewals per Lease duration."""
_STANDBY_READS = 4
"""Reads of a standby between two renewals. A fail-over takes the Lease duration and the time until
a standby has seen the last renewal and missed the next."""
_SAFE_SHARE = 0.8
"""Share of the Lease duration in which a leader that could not renew still writes."""


class Leadership:
    """Leader election of this replica.

    Args:
        settings: namespace, name and duration of the Lease, and the identity of this replica.
        on_lead: called whenever this replica becomes the leader.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        on_lead: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._identity = settings.identity
        self._seconds = settings.lease_seconds
        self._on_lead = on_lead
        self._clock = clock
        self._held_until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)
        self._written: Manifest | None = None

    @property
    def is_held(self) -> bool:
        """Whether this replica leads, so that it may write."""
        return self._clock() < self._held_until

    def check(self) -> None:
        """Raise unless this replica leads.

        Raises:
            NotLeaderError: it does not.
        """
        if not self.is_held:
            raise NotLeaderError("this replica does not hold the Lease")

    async def run(self) -> None:
        """Acquire the Lease when it is free, renew it, and release it when cancelled."""
        try:
            while True:
                try:
                    # A later answer would be useless.
                    async with asyncio.timeout(_SAFE_SHARE * self._seconds):
                        await self._acquire_or_renew()
                except (ClusterError, TimeoutError) as problem:
                    _log.warning("lease: %r", problem)
                LEADER.set(self.is_held)
                await asyncio.sleep(
                    self._seconds / _RENEWALS / (1 if self.is_held else _STANDBY_READS)
                )
        finally:
            await self._release()

    async def _acquire_or_renew(self) -> None:
        if self.is_held and await self._renew():
            return
        asked = self._clock()
        try:
            lease = await self._read()
        except MissingError:
            await self._write(self._cluster.create, None)
            return
        if lease["metadata"]["resourceVersion"] != self._seen[0]:
            # Clocks of machines are not compared: time counts from when this replica saw a renewal,
            # not from when it sent its request, since the leader may have renewed in between.
            self._seen = (lease["metadata"]["resourceVersion"], self._clock())
        holder = lease["spec"].get("holderIdentity") or ""
        is_free = not holder or asked - self._seen[1] > self._seconds
        if holder != self._identity and not is_free:
            self._held_until = 0.0
            return
        try:
            await self._write(self._cluster.replace, lease)
        except ConflictError:
            self._held_until = 0.0

    async def _read(self) -> Manifest:
        return await self._cluster.get(LEASE, self._settings.namespace, self._settings.lease)

    async def _renew(self) -> bool:
        """Renew the Lease without reading it first; False if somebody else has written to it."""
        try:
            await self._write(self._cluster.replace, self._written)
        except (ConflictError, MissingError):
            return False
        return True

    async def _write(
        self, write: Callable[[Manifest], Awaitable[Manifest]], before: Manifest | None
    ) -> None:
        """Write the Lease, and lead for its duration from when the request was sent.

        `on_lead` is also called after a late renewal: jobs that were due meanwhile were skipped.
        """
        asked = self._clock()
        self._written = await write(self._lease(before))
        has_led = self.is_held
        self._held_until = asked + _SAFE_SHARE * self._seconds
        if self.is_held and not has_led:
            _log.info("%s leads", self._identity)
            self._on_lead()

    def _lease(self, before: Manifest | None) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(before["spec"]) if before else {"leaseTransitions": 0}
        if spec.get("holderIdentity") != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "renewTime": now,
        }
        place = {"name": self._settings.lease, "namespace": self._settings.namespace}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": dict(before["metadata"]) if before else place,
            "spec": spec,
        }

    async def _release(self) -> None:
        """Release the Lease, so that the standby can lead at once."""
        LEADER.set(0)
        if not self.is_held:
            return
        self._held_until = 0.0
        try:
            lease = await self._read()
            if lease["spec"].get("holderIdentity") == self._identity:
                spec = {**lease["spec"], "holderIdentity": ""}
                await self._cluster.replace({**lease, "kind": LEASE.name, "spec": spec})
        except ClusterError as problem:
            _log.warning("lease: not released: %s", problem)
