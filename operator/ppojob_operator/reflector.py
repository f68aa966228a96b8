"""Reflector of a kind: lists it page by page, then watches it, and misses no change.

Errors of the watch are handled here: an expired resource version (410) means a new list, and an
object missing from that list is reported as deleted; an overloaded server (429, 5xx) is asked again
after a backoff; a watch without even a bookmark is closed by the `Cluster`.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from ppojob_operator.cluster import Cluster
from ppojob_operator.errors import ClusterError, ExpiredError, MissingError, RefusedError
from ppojob_operator.kinds import Kind
from ppojob_operator.metrics import LAST_HEARD_SECONDS, RELISTS
from ppojob_operator.state import Manifest

_log = logging.getLogger(__name__)
_FIRST_BACKOFF_SECONDS = 0.2
_LONGEST_BACKOFF_SECONDS = 10.0
_NOT_SERVED_BACKOFF_SECONDS = 30.0
"""For a kind that is not installed."""


class Reflector:
    """Mirrors one kind.

    Args:
        on_update: called with each existing object, and again at each change.
        on_delete: called with the uid of a deleted object.
        namespace: empty for all.
        selector: label selector; empty for every object.
        is_optional: whether the operator works if the kind is not served or may not be read.
        on_served: called with whether an optional kind can be read.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        on_update: Callable[[Manifest], None],
        on_delete: Callable[[str], None],
        *,
        namespace: str = "",
        selector: str = "",
        is_optional: bool = False,
        on_served: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.kind = kind
        self._cluster = cluster
        self._scope = (kind, namespace, selector)
        self._last_heard = LAST_HEARD_SECONDS.labels(kind.name, namespace)
        self._is_optional = is_optional
        self._on_update = on_update
        self._on_delete = on_delete
        self._on_served = on_served
        self._known: set[str] = set()
        self._version = ""
        self._backoff = _FIRST_BACKOFF_SECONDS
        self.is_synced = asyncio.Event()
        self.last_heard = time.monotonic()

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ExpiredError:
                _log.info("%s: the watch expired; listing again", self.kind.plural)
                self._version = ""
            except ClusterError as problem:
                if self._is_optional and isinstance(problem, RefusedError | MissingError):
                    self._continue_without(problem)
                await self._back_off(problem)

    def _continue_without(self, problem: ClusterError) -> None:
        """Continue without a kind that is not served or may not be read."""
        self.is_synced.set()
        self._note_answer()
        self._backoff = _NOT_SERVED_BACKOFF_SECONDS
        self._on_served(False)
        # Only a list shows that it is served again, and which objects were deleted meanwhile.
        self._version = ""
        if isinstance(problem, MissingError):
            # All objects are deleted with their CustomResourceDefinition.
            for uid in self._known:
                self._on_delete(uid)
            self._known = set()

    async def _back_off(self, problem: ClusterError) -> None:
        seconds = max(problem.retry_after or 0.0, self._backoff * random.uniform(0.5, 1.0))
        _log.warning("%s: %s; retry in %.1f s", self.kind.plural, problem, seconds)
        self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF_SECONDS)
        await asyncio.sleep(seconds)

    async def _list(self) -> None:
        there: set[str] = set()
        version = ""
        async for page in self._cluster.pages(*self._scope):
            for item in page.items:
                there.add(item["metadata"]["uid"])
                # Known at once: if the next page fails, the next list still detects its deletion.
                self._known.add(item["metadata"]["uid"])
                self._on_update(item)
            version = page.resource_version
            self._note_answer()
        for uid in self._known - there:
            self._on_delete(uid)
        self._known = there
        self._version = version
        RELISTS.labels(self.kind.name).inc()
        self._on_served(True)
        self.is_synced.set()

    async def _watch(self) -> None:
        async for change in self._cluster.watch(*self._scope, self._version):
            self._note_answer()
            metadata = change.manifest["metadata"]
            if change.type == "DELETED":
                self._known.discard(metadata["uid"])
                self._on_delete(metadata["uid"])
            elif change.type != "BOOKMARK":
                self._known.add(metadata["uid"])
                self._on_update(change.manifest)
            self._version = metadata["resourceVersion"]

    def _note_answer(self) -> None:
        self.last_heard = time.monotonic()
        self._backoff = _FIRST_BACKOFF_SECONDS
        self._last_heard.set_to_current_time()
