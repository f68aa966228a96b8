"""A cluster in memory: what the API server and the controllers of Kubernetes do with our objects.

It answers as the real one does where the operator relies on it: uids and resource versions,
conflicts, preconditions, defaults that nobody asked for, pods of StatefulSets, garbage collection.
tests/cluster runs the same operator against the real thing.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

from ppojob_operator.cluster import Change, Page
from ppojob_operator.errors import ClusterError, ConflictError, MissingError
from ppojob_operator.kinds import KINDS, Kind
from ppojob_operator.state import Manifest

Place = tuple[str, str, str]


class SimulatedCluster:
    """A `Cluster`; `fault` may raise before, and `after_fault` behind each write."""

    def __init__(self) -> None:
        self.objects: dict[Place, dict[str, Any]] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.fault: Callable[[int], ClusterError | None] = lambda _: None
        self.after_fault: Callable[[int], ClusterError | None] = lambda _: None
        self.requests = 0
        self._check: Callable[[], None] = lambda: None
        self._versions = itertools.count(100)
        self._uids = itertools.count(1)
        self._watchers: list[tuple[str, asyncio.Queue[Change]]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item for place, item in sorted(self.objects.items()) if place[0] == kind]

    def put(self, manifest: Manifest) -> dict[str, Any]:
        """Write an object past the operator, as anybody may."""
        item = copy.deepcopy(dict(manifest))
        place = _place(item)
        metadata = item["metadata"]
        is_new = place not in self.objects
        metadata.setdefault("uid", f"uid-{next(self._uids)}")
        metadata.setdefault("creationTimestamp", "2026-01-02T03:00:00Z")
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[place] = item
        self._tell("ADDED" if is_new else "MODIFIED", item)
        return item

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object past the operator, and what it owns."""
        item = self.objects.pop((kind, namespace, name))
        self._tell("DELETED", item)
        uid = item["metadata"]["uid"]
        for place, other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences") or ()
            if place in self.objects and any(owner["uid"] == uid for owner in owners):
                self.remove(*place)

    def fenced(self, check: Callable[[], None]) -> "SimulatedCluster":
        fenced = copy.copy(self)
        fenced._check = check
        return fenced

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        self.requests += 1
        return copy.deepcopy(self._there(kind, namespace, name))

    async def create(self, manifest: Manifest) -> Manifest:
        with_fault = self._write("create", manifest)
        if _place(manifest) in self.objects:
            raise ConflictError("already exists", 409)
        item = self.put(_defaulted(manifest))
        if item["kind"] == "StatefulSet":
            self._make_pods(item)
        return with_fault(copy.deepcopy(item))

    async def apply(self, manifest: Manifest, uid: str) -> Manifest:
        with_fault = self._write("apply", manifest)
        there = self._there(KINDS[manifest["kind"]], *_place(manifest)[1:])
        if there["metadata"]["uid"] != uid:
            raise ConflictError("another uid", 409)
        merged = _merge(there, _defaulted(manifest))
        return with_fault(copy.deepcopy(self.put(merged)))

    async def apply_status(self, manifest: Manifest) -> Manifest:
        with_fault = self._write("status", manifest)
        there = self._there(KINDS[manifest["kind"]], *_place(manifest)[1:])
        if there["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise ConflictError("another version", 409)
        training = (there.get("status") or {}).get("training")
        status = {**manifest["status"], **({"training": training} if training else {})}
        return with_fault(copy.deepcopy(self.put({**there, "status": status})))

    async def replace(self, manifest: Manifest) -> Manifest:
        self.requests += 1
        there = self._there(KINDS[manifest["kind"]], *_place(manifest)[1:])
        if there["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise ConflictError("another version", 409)
        return copy.deepcopy(self.put(manifest))

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> None:
        head = {"name": name, "namespace": namespace}
        with_fault = self._write("delete", {"kind": kind.name, "metadata": head})
        if self._there(kind, namespace, name)["metadata"]["uid"] != uid:
            raise ConflictError("another uid", 409)
        self.remove(kind.name, namespace, name)
        with_fault({})

    async def pages(
        self, kind: Kind, namespace: str, selector: str, fields: str = ""
    ) -> AsyncIterator[Page]:
        self.requests += 1
        items = [item for item in self.of(kind.name) if _matches(item, namespace, selector)]
        yield Page(tuple(copy.deepcopy(items)), str(next(self._versions)))

    async def watch(
        self, kind: Kind, namespace: str, selector: str, resource_version: str
    ) -> AsyncIterator[Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._watchers.append((kind.name, queue))
        # What came between the list and this watch.
        for item in self.of(kind.name):
            if int(item["metadata"]["resourceVersion"]) > int(resource_version):
                queue.put_nowait(Change("ADDED", copy.deepcopy(item)))
        while True:
            change = await queue.get()
            if _matches(change.manifest, namespace, selector):
                yield change

    def set_pod(self, name: str, namespace: str = "lab", **status: Any) -> None:
        """Write the status of a pod, as its kubelet does."""
        pod = self.objects["Pod", namespace, name]
        self.put({**pod, "status": {**pod["status"], **status}})

    def ready(self, namespace: str = "lab") -> None:
        for pod in self.of("Pod"):
            ready = [{"type": "Ready", "status": "True"}]
            self.set_pod(pod["metadata"]["name"], namespace, phase="Running", conditions=ready)

    def _make_pods(self, stateful_set: Manifest) -> None:
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        owner = {"kind": "StatefulSet", "name": metadata["name"], "uid": metadata["uid"]}
        for index in range(spec["replicas"]):
            template = copy.deepcopy(spec["template"])
            head = {
                **template["metadata"],
                "name": f"{metadata['name']}-{index}",
                "namespace": metadata["namespace"],
                "ownerReferences": [{**owner, "controller": True}],
            }
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": template["spec"]}
            self.put({**pod, "status": {"phase": "Pending"}})

    def _there(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        try:
            return self.objects[kind.name, namespace, name]
        except KeyError:
            raise MissingError(f"{kind.plural} {name}", 404) from None

    def _write(self, verb: str, manifest: Manifest) -> Callable[[Manifest], Manifest]:
        self._check()
        self.requests += 1
        self.writes.append((verb, manifest["kind"], manifest["metadata"]["name"]))
        number = len(self.writes)
        fault = self.fault(number)
        if fault is not None:
            raise fault

        def answer(result: Manifest) -> Manifest:
            late = self.after_fault(number)
            if late is not None:
                raise late
            return result

        return answer

    def _tell(self, kind: Any, item: Manifest) -> None:
        for name, queue in self._watchers:
            if name == item["kind"]:
                queue.put_nowait(Change(kind, copy.deepcopy(item)))


def _place(manifest: Manifest) -> Place:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def _matches(item: Manifest, namespace: str, selector: str) -> bool:
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    return (not namespace or metadata["namespace"] == namespace) and (
        not selector or selector in labels
    )


def _defaulted(manifest: Manifest) -> dict[str, Any]:
    """Fill in what an API server would."""
    item = copy.deepcopy(dict(manifest))
    if item["kind"] == "StatefulSet":
        item["spec"]["template"]["spec"].setdefault("restartPolicy", "Always")
        item["spec"].setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain"})
    if item["kind"] == "Service":
        item["spec"].setdefault("sessionAffinity", "None")
    return item


def _merge(there: Any, wanted: Any) -> Any:
    if isinstance(there, dict) and isinstance(wanted, dict):
        merged = dict(there)
        for key, value in wanted.items():
            merged[key] = _merge(there.get(key), value)
        return merged
    return wanted
