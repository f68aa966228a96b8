"""Cache of the cluster's objects, by job.

Reflectors and kopf's stream fill it; `observe` reads it. It holds trimmed records only: a pod
takes about a kilobyte, a child object less than two.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from ppojob_operator.build.kueue import placement
from ppojob_operator.build.metadata import covers, digest
from ppojob_operator.kinds import child_key
from ppojob_operator.reading import (
    JobKey,
    job_key,
    pack,
    read_child,
    read_job,
    read_node,
    read_pod,
    trimmed_job,
    unpack,
)
from ppojob_operator.state import (
    Child,
    ChildKind,
    ControllerReport,
    GangFacts,
    GangKind,
    Job,
    Manifest,
    Node,
    Observed,
    Placement,
    Pod,
)

_OVER = frozenset({"Succeeded", "Failed", "Suspended"})
"""Phases of jobs without a controller."""


@dataclass(frozen=True, slots=True)
class _PackedChild:
    """A child without its manifest, and that packed."""

    child: Child
    packed: bytes
    version: int


@dataclass(slots=True)
class _JobRecords:
    """What is known of one job."""

    manifest: bytes | None = None
    uid: str = ""
    phase: str = "Pending"
    pods: dict[str, Pod] = field(default_factory=dict)
    children: dict[str, _PackedChild] = field(default_factory=dict)
    settled: dict[str, str] = field(default_factory=dict)
    refused: dict[tuple[ChildKind, str], str] = field(default_factory=dict)
    report: ControllerReport | None = None


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
        metadata = manifest["metadata"]
        self._flavors[metadata["uid"]] = metadata["name"], placement(manifest.get("spec") or {})
        self._update()

    def see_priority(self, manifest: Manifest) -> None:
        """A WorkloadPriorityClass."""
        metadata = manifest["metadata"]
        self._priorities[metadata["uid"]] = metadata["name"], int(manifest["value"])
        self._update()

    def lose(self, uid: str) -> None:
        """A ResourceFlavor or a WorkloadPriorityClass is gone."""
        self._flavors.pop(uid, None)
        self._priorities.pop(uid, None)
        self._update()

    def _update(self) -> None:
        facts = GangFacts(
            frozenset(), dict(self._flavors.values()), dict(self._priorities.values())
        )
        if facts != self._facts:
            self._facts = facts
            self._wake()


class Cache:
    """The records of all jobs; `wake` is told which of them has something new."""

    def __init__(self, wake: Callable[[JobKey], None]) -> None:
        self._wake = wake
        self._jobs: dict[JobKey, _JobRecords] = defaultdict(_JobRecords)
        self._nodes: dict[str, Node] = {}
        self._node_names: dict[str, str] = {}
        self._keys: dict[str, JobKey] = {}
        self.gangs = GangCache(lambda: self._wake_all(self.job_keys()))

    def job_keys(self) -> tuple[JobKey, ...]:
        """All jobs that are there."""
        return tuple(key for key, records in self._jobs.items() if records.manifest)

    def phases(self) -> Mapping[str, int]:
        """How many jobs are in each phase."""
        return Counter(records.phase for records in self._jobs.values() if records.manifest)

    def job(self, key: JobKey) -> Job | None:
        """A job as it was seen last; None where it is gone.

        Raises:
            ValueError: its status cannot be read.
        """
        records = self._jobs.get(key)
        if records is None or records.manifest is None:
            return None
        return read_job(unpack(records.manifest))

    def observed(self, key: JobKey, job_uid: str) -> Observed:
        """What is there for a job."""
        records = self._jobs.get(key) or _JobRecords()
        pods = tuple(pod for pod in records.pods.values() if pod.job_uid == job_uid)
        report = records.report
        # Of a controller whose pod is gone the report is no news; the next one reports itself.
        is_current = report and any(pod.uid == report.pod_uid for pod in pods)
        return Observed(
            pods=tuple(sorted(pods, key=lambda pod: pod.name)),
            children={
                (one.child.kind, one.child.name): dataclasses.replace(
                    one.child,
                    manifest=unpack(one.packed),
                    settled_digest=records.settled.get(uid, ""),
                )
                for uid, one in records.children.items()
            },
            nodes={pod.node: self._nodes[pod.node] for pod in pods if pod.node in self._nodes},
            controller=report if is_current else None,
            refused=dict(records.refused),
            gangs=self.gangs.facts(key[0]),
        )

    def controllers(self) -> list[tuple[JobKey, Pod]]:
        """The controllers' pods that can be asked how they are."""
        return [
            (key, pod)
            for key, records in self._jobs.items()
            if records.manifest and records.phase not in _OVER
            for pod in records.pods.values()
            if pod.role == "controller" and pod.address and pod.phase == "Running"
        ]

    def see_report(self, key: JobKey, report: ControllerReport) -> None:
        """What a controller's supervisor says; wakes the job where it is something new."""
        records = self._jobs.get(key)
        if records is not None and records.report != report:
            records.report = report
            self._wake(key)

    def see_job(self, manifest: Manifest) -> None:
        """A PPOJob; wakes it unless only its training goes on."""
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        trimmed = trimmed_job(manifest)
        records = self._jobs[key]
        before = unpack(records.manifest) if records.manifest else None
        if before is not None and _is_older(metadata, before["metadata"]):
            # Our own write was answered before the stream came to what it wrote over.
            return
        if records.uid != metadata["uid"]:
            records.refused.clear()
        records.manifest = pack(trimmed)
        records.uid = metadata["uid"]
        records.phase = (manifest.get("status") or {}).get("phase", "Pending")
        self._keys[metadata["uid"]] = key
        if before is None or _relevant(before) != _relevant(trimmed):
            self._wake(key)

    def lose_job(self, uid: str) -> None:
        """A PPOJob is gone; a younger one of the same name stays."""
        key = self._keys.pop(uid, None)
        if key is not None and self._jobs[key].uid == uid:
            self.forget_job(key)

    def forget_job(self, key: JobKey) -> None:
        """The PPOJob of this name is gone."""
        records = self._jobs[key]
        self._keys.pop(records.uid, None)
        records.manifest = records.report = None
        records.settled.clear()
        records.refused.clear()
        self._drop_if_empty(key)

    def see_pod(self, manifest: Manifest) -> None:
        """A pod; wakes its job where a record of it changes."""
        pod = read_pod(manifest)
        if pod is None:
            return
        key = job_key(manifest)
        self._keys[pod.uid] = key
        if self._jobs[key].pods.get(pod.uid) != pod:
            self._jobs[key].pods[pod.uid] = pod
            self._wake(key)

    def see_child(self, manifest: Manifest) -> None:
        """An object that was made for a job; wakes it where it changes."""
        key, version = job_key(manifest), int(manifest["metadata"]["resourceVersion"])
        before = self._jobs[key].children.get(manifest["metadata"]["uid"])
        if before is not None and version <= before.version:
            # Our own write was answered before the stream came to it, or to what it wrote over.
            return
        child = read_child(manifest)
        bare = dataclasses.replace(child, manifest={})
        kept = _PackedChild(bare, pack(child.manifest), version)
        self._keys[child.uid] = key
        self._jobs[key].children[child.uid] = kept
        if before is None or (before.child, before.packed) != (bare, kept.packed):
            self._wake(key)

    def lose(self, uid: str) -> None:
        """A pod of a job, or an object that was made for it, is gone."""
        key = self._keys.pop(uid, None)
        if key is not None:
            records = self._jobs[key]
            for known in (records.pods, records.children, records.settled):
                known.pop(uid, None)
            self._wake(key)
            self._drop_if_empty(key)

    def see_node(self, manifest: Manifest) -> None:
        """A node; wakes the jobs on it where it falls silent or is heard again."""
        node = read_node(manifest)
        self._node_names[manifest["metadata"]["uid"]] = node.name
        if self._nodes.get(node.name) != node:
            self._nodes[node.name] = node
            self._wake_all(self._jobs_on(node.name))

    def lose_node(self, uid: str) -> None:
        """A node is gone; Kubernetes collects its pods by itself."""
        name = self._node_names.pop(uid, None)
        if name is not None and self._nodes.pop(name, None) is not None:
            self._wake_all(self._jobs_on(name))

    def see_answer(self, key: JobKey, answer: Manifest, wanted: Manifest) -> None:
        """Take in what the API server made of an object that we wrote."""
        self.see_child(answer)
        self.accept(key, wanted)
        records = self._jobs[key]
        uid = answer["metadata"]["uid"]
        if covers(answer, wanted):
            records.settled.pop(uid, None)
        else:
            records.settled[uid] = digest(wanted)

    def refuse(self, job: Job, manifest: Manifest, why: str) -> None:
        """Keep why an object was not taken from us, for the status."""
        records = self._jobs.get(job.key)
        # A job that was forgotten meanwhile leaves nothing to the next of its name.
        if records is not None and records.manifest and records.uid == job.uid:
            records.refused[child_key(manifest)] = why

    def accept(self, key: JobKey, manifest: Manifest) -> None:
        """Forget why an object was not taken, which now was."""
        records = self._jobs.get(key)
        if records is not None:
            records.refused.pop(child_key(manifest), None)

    def keep_refusals(self, key: JobKey, wanted: Set[tuple[ChildKind, str]]) -> None:
        """Forget why objects were not taken that are wanted no more; wakes the job."""
        records = self._jobs.get(key)
        if records is not None and not records.refused.keys() <= wanted:
            records.refused = {one: why for one, why in records.refused.items() if one in wanted}
            self._wake(key)

    def _jobs_on(self, node: str) -> list[JobKey]:
        return [
            key
            for key, records in self._jobs.items()
            if any(pod.node == node for pod in records.pods.values())
        ]

    def _wake_all(self, keys: Iterable[JobKey]) -> None:
        for key in keys:
            self._wake(key)

    def _drop_if_empty(self, key: JobKey) -> None:
        records = self._jobs[key]
        if not (records.manifest or records.pods or records.children):
            del self._jobs[key]


def _is_older(metadata: Manifest, than: Manifest) -> bool:
    """Whether one state of an object was before another: versions are ordered since 1.35."""
    same = metadata["uid"] == than["uid"]
    return bool(same and int(metadata["resourceVersion"]) < int(than["resourceVersion"]))


def _relevant(manifest: dict[str, Any]) -> dict[str, Any]:
    """What of a job a plan depends on: of its training, where it is, and not how far."""
    status = dict(manifest.get("status") or {})
    training = status.pop("training", None) or {}
    stage = (training.get("stage"), training.get("lastCheckpointStep") is None)
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "resourceVersion"}
    return {**manifest, "metadata": metadata, "status": status, "training": stage}
