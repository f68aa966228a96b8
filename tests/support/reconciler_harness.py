"""An operator that is stepped by hand against a cluster in memory, for tests of it."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from operator_jobs import SETTINGS, job_manifest
from simulated_cluster import SimulatedCluster

from ppojob_operator.cache import Cache
from ppojob_operator.errors import ClusterError, UnavailableError
from ppojob_operator.kinds import CHILD_KINDS
from ppojob_operator.reconcile import Reconciler
from ppojob_operator.state import ControllerReport

KEY = ("lab", "sum")


class Harness:
    """A cluster, a job and an operator that is stepped by hand."""

    def __init__(self, **changes: Any) -> None:
        self.cluster = SimulatedCluster()
        self.cluster.put(job_manifest(**changes))
        self.restart()

    def restart(self) -> None:
        self.cache = Cache(lambda _: None)
        self.reconciler = Reconciler(self.cluster, self.cache, SETTINGS)

    def look(self) -> None:
        """Have the cache show what is there now, as streams would."""
        known = {item["metadata"]["uid"] for item in self.cluster.objects.values()}
        for uid in [one for one in self.cache._keys if one not in known]:
            self.cache.remove(uid)
        for item in list(self.cluster.objects.values()):
            if item["kind"] == "PPOJob":
                self.cache.update_job(item)
            elif item["kind"] == "Pod":
                self.cache.update_pod(item)
            elif item["kind"] in CHILD_KINDS and item["kind"] != "Secret":
                self.cache.update_child(item)

    async def step(self) -> None:
        self.look()
        await self.reconciler.reconcile(KEY)

    async def die(self, at: int, *, behind: bool, steps: int) -> None:
        """Have the operator die before or behind that write, and another begin from nothing."""

        def fault(n: int) -> ClusterError | None:
            return UnavailableError("killed") if n >= at else None

        setattr(self.cluster, "after_fault" if behind else "fault", fault)
        for _ in range(steps):
            with suppress(ClusterError):
                await self.step()
        self.cluster.fault = self.cluster.after_fault = lambda _: None
        self.restart()

    async def settle(self) -> None:
        """Reconcile until nothing is written any more, through whatever fails."""
        for _ in range(30):
            before = len(self.cluster.writes)
            try:
                await self.step()
            except ClusterError:
                continue
            if len(self.cluster.writes) == before:
                return
        raise AssertionError("it never comes to rest")

    @property
    def job(self) -> dict[str, Any]:
        return self.cluster.objects["PPOJob", *KEY]

    @property
    def status(self) -> dict[str, Any]:
        return self.job["status"]

    @contextmanager
    def edited(self, kind: str, name: str) -> Iterator[dict[str, Any]]:
        """An object to change by hand; it is written at the end of the block."""
        item = copy.deepcopy(self.cluster.objects[kind, "lab", name])
        yield item
        self.cluster.put(item)

    def edit(self, **lifecycle: Any) -> None:
        self.edit_spec(lifecycle=lifecycle)

    def edit_spec(self, **sections: Any) -> None:
        """Replace sections of the spec, as the author of the job may."""
        with self.edited("PPOJob", "sum") as job:
            job["spec"] |= sections
            job["metadata"]["generation"] += 1

    def end_controller(self) -> None:
        """Have the controller's supervisor say that the training is done."""
        uid = self.cluster.objects["Pod", "lab", "sum-controller-0"]["metadata"]["uid"]
        self.cache.update_report(KEY, ControllerReport(uid, "done", "", 0))

    def names(self, kind: str) -> list[str]:
        return [one["metadata"]["name"] for one in self.cluster.of(kind)]

    def content(self) -> dict[Any, Any]:
        """Everything but what differs from run to run."""
        kept = {}
        for place, item in self.cluster.objects.items():
            if item["kind"] in {"Event", "Secret"}:
                continue
            status = item.get("status") or {}
            status = {k: v for k, v in status.items() if "Time" not in k and k != "conditions"}
            body = {k: v for k, v in item.items() if k not in {"metadata", "status"}}
            kept[place] = (body, status, item["metadata"].get("labels"))
        return kept


async def up(harness: Harness) -> None:
    """A job whose pods all run."""
    await harness.settle()
    harness.cluster.ready()
    await harness.settle()
