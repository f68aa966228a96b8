"""Reflector of a kind: lists it page by page, then watches it, and detects every gap.

Stream errors are handled here: an expired resource version (410) means listing again, and an object
missing from a list is reported as deleted; an overloaded server (429, 5xx) is retried after a
while; a stream without even a bookmark is closed by the `Cluster`.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from ppojob_operator.cluster import Cluster
from ppojob_operator.errors import (
    ClusterError,
    ExpiredError,
    MissingError,
    RefusedError,
    UnavailableError,
)
from ppojob_operator.kinds import Kind
from ppojob_operator.metrics import LAST_HEARD_SECONDS, RELISTS
from ppojob_operator.state import Manifest

_log = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_ABSENT_PAUSE_SECONDS = 30.0
"""Somebody has to install what is not served."""


class Reflector:
    """Mirrors one kind.

    Args:
        seen: takes an object that is there, as often as it changes.
        gone: takes the uid of an object that is not there any more.
        namespace: empty for all.
        selector: by labels; empty for every object.
        is_optional: whether the operator works where it is not served, or without the right to
            read it.
        served: told, of what is optional, whether it can be read.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        seen: Callable[[Manifest], None],
        gone: Callable[[str], None],
        *,
        namespace: str = "",
        selector: str = "",
        is_optional: bool = False,
        served: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.kind = kind
        self._cluster = cluster
        self._scope = (kind, namespace, selector)
        self._last_heard = LAST_HEARD_SECONDS.labels(kind.name, namespace)
        self._is_optional = is_optional
        self._seen = seen
        self._gone = gone
        self._served = served
        self._known: set[str] = set()
        self._version = ""
        self._pause = _FIRST_PAUSE_SECONDS
        self.is_synced = asyncio.Event()
        self.last_heard = time.monotonic()

    async def run(self) -> None:
        """List and follow until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
            except ExpiredError:
                _log.info("%s: the stream expired; listing again", self.kind.plural)
                self._version = ""
            except ClusterError as problem:
                if self._is_optional and isinstance(problem, RefusedError | MissingError):
                    self._continue_without(problem)
                await self._pause_after(problem)

    def _continue_without(self, problem: ClusterError) -> None:
        """Go on without a kind that is not served, or that this operator may not read."""
        self.is_synced.set()
        self._note_answer()
        self._pause = _ABSENT_PAUSE_SECONDS
        self._served(False)
        # Only a list says that it is served again, and finds what went in the meantime.
        self._version = ""
        if isinstance(problem, MissingError):
            # With a definition all its objects go; once it is back, they are others.
            for uid in self._known:
                self._gone(uid)
            self._known = set()

    async def _pause_after(self, problem: ClusterError) -> None:
        asked = problem.retry_after if isinstance(problem, UnavailableError) else None
        pause = max(asked or 0.0, self._pause * random.uniform(0.5, 1.0))
        _log.warning("%s: %s; again in %.1f s", self.kind.plural, problem, pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)

    async def _list(self) -> None:
        there: set[str] = set()
        version = ""
        async for page in self._cluster.pages(*self._scope):
            for item in page.items:
                there.add(item["metadata"]["uid"])
                # Known at once: should the next page fail, the next list still finds it gone.
                self._known.add(item["metadata"]["uid"])
                self._seen(item)
            version = page.resource_version
            self._note_answer()
        for uid in self._known - there:
            self._gone(uid)
        self._known = there
        self._version = version
        RELISTS.labels(self.kind.name).inc()
        self._served(True)
        self.is_synced.set()

    async def _follow(self) -> None:
        async for change in self._cluster.watch(*self._scope, self._version):
            self._note_answer()
            metadata = change.manifest["metadata"]
            if change.type == "DELETED":
                self._known.discard(metadata["uid"])
                self._gone(metadata["uid"])
            elif change.type != "BOOKMARK":
                self._known.add(metadata["uid"])
                self._seen(change.manifest)
            self._version = metadata["resourceVersion"]

    def _note_answer(self) -> None:
        self.last_heard = time.monotonic()
        self._pause = _FIRST_PAUSE_SECONDS
        self._last_heard.set_to_current_time()
