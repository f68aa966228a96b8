"""What the cluster has for gangs, as it is known at this moment; few objects, and all jobs' own."""

from collections.abc import Callable

from ppojob_operator.build.kueue import placement
from ppojob_operator.state import GangFacts, GangKind, Manifest, Placement


class GangMirror:
    """Which gang kinds are served, and what Kueue's flavors and priority classes say.

    Args:
        wake: told when any of it changes; it may concern every job.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._served: frozenset[GangKind] = frozenset()
        self._flavors: dict[str, tuple[str, Placement]] = {}
        self._priorities: dict[str, tuple[str, int]] = {}
        self.facts = GangFacts()

    def see_served(self, kind: GangKind, is_served: bool) -> None:
        """Whether the API server lets us read a kind."""
        self._served = self._served | {kind} if is_served else self._served - {kind}
        self._renew()

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
            self._served, dict(self._flavors.values()), dict(self._priorities.values())
        )
        if facts != self.facts:
            self.facts = facts
            self._wake()
