"""What the cluster has for gangs, as it is known at this moment; few objects, and all jobs' own."""

import dataclasses
from collections.abc import Callable

from ppojob_operator.build.kueue import placement
from ppojob_operator.state import GangFacts, GangKind, Manifest, Placement


class GangCache:
    """Which gang kinds are served, and what Kueue's flavors and priority classes say.

    Args:
        wake: told when any of it changes; it may concern every job.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._served: frozenset[tuple[GangKind, str]] = frozenset()
        self._flavors: dict[str, tuple[str, Placement]] = {}
        self._priorities: dict[str, tuple[str, int]] = {}
        self._facts = GangFacts()

    def facts(self, namespace: str) -> GangFacts:
        """What is known, for the jobs of a namespace."""
        served = frozenset(kind for kind, where in self._served if where in {"", namespace})
        return dataclasses.replace(self._facts, served=served)

    def see_served(self, kind: GangKind, namespace: str, is_served: bool) -> None:
        """Whether the API server lets us read a kind in a namespace; empty: in all of them."""
        one = (kind, namespace)
        served = self._served | {one} if is_served else self._served - {one}
        if served != self._served:
            self._served = served
            self._wake()

    def see_flavor(self, manifest: Manifest) -> None:
        """A ResourceFlavor."""
        metadata, spec = manifest["metadata"], manifest.get("spec") or {}
        self._flavors[metadata["uid"]] = metadata["name"], placement(spec)
        self._renew()

    def lose_flavor(self, uid: str) -> None:
        """A ResourceFlavor is gone."""
        self._flavors.pop(uid, None)
        self._renew()

    def see_priority(self, manifest: Manifest) -> None:
        """A WorkloadPriorityClass."""
        metadata = manifest["metadata"]
        self._priorities[metadata["uid"]] = metadata["name"], int(manifest["value"])
        self._renew()

    def lose_priority(self, uid: str) -> None:
        """A WorkloadPriorityClass is gone."""
        self._priorities.pop(uid, None)
        self._renew()

    def _renew(self) -> None:
        facts = GangFacts(
            flavors=dict(self._flavors.values()), priorities=dict(self._priorities.values())
        )
        if facts != self._facts:
            self._facts = facts
            self._wake()
