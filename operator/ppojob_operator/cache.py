"""Informer cache: the cluster's objects by job.

Reflectors and kopf's event stream fill it, `Cache.observed` reads it. It holds trimmed records: a
pod takes about a kilobyte, a child object less than two.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ppojob_operator.build.kueue import placement
from ppojob_operator.build.metadata import digest, is_up_to_date
from ppojob_operator.kinds import child_key
from ppojob_operator.reading import (
    JobKey,
    job_key,
    pack,
    read_child,
    read_job,
    read_pod,
    trimmed_job,
    unpack,
    unreachable_since,
)
from ppojob_operator.state import (
    Child,
    ChildKind,
    ControllerReport,
    GangFacts,
    Job,
    Manifest,
    Observed,
    Placement,
    Pod,
    Time,
)

T = TypeVar("T")

_WITHOUT_CONTROLLER = frozenset({"Succeeded", "Failed", "Suspended"})
"""Phases of jobs that have no controller to poll."""


@dataclass(frozen=True, slots=True)
class _PackedChild:
    """A child object without its manifest, and the compressed manifest."""

    child: Child
    packed: bytes
    version: int


@dataclass(slots=True)
class _JobRecords:
    """The records of one job."""

    manifest: bytes | None = None
    uid: str = ""
    phase: str = "Pending"
    pods: dict[str, Pod] = field(default_factory=dict)
    children: dict[str, _PackedChild] = field(default_factory=dict)
    # `Child.mutated_digest` by uid.
    mutated: dict[str, str] = field(default_factory=dict)
    refused: dict[tuple[ChildKind, str], str] = field(default_factory=dict)
    report: ControllerReport | None = None


class GangCache:
    """The served gang kinds, and Kueue's resource flavors and workload priority classes.

    Args:
        enqueue: called when any of them changes, to reconcile every job.
    """

    def __init__(self, enqueue: Callable[[], None]) -> None:
        self._enqueue = enqueue
        self._served: set[tuple[ChildKind, str]] = set()
        self._flavors: dict[str, tuple[str, Placement]] = {}
        self._priorities: dict[str, tuple[str, int]] = {}

    def facts(self, namespace: str) -> GangFacts:
        """What the jobs of a namespace can use."""
        served = frozenset(kind for kind, where in self._served if where in {"", namespace})
        return GangFacts(served, dict(self._flavors.values()), dict(self._priorities.values()))

    def update_served(self, kind: ChildKind, namespace: str, is_served: bool) -> None:
        """Record whether a kind can be read in a namespace; empty: in all namespaces."""
        one = (kind, namespace)
        if is_served != (one in self._served):
            self._served ^= {one}
            self._enqueue()

    def update_flavor(self, manifest: Manifest) -> None:
        """Store a ResourceFlavor."""
        self._store(self._flavors, manifest, placement(manifest.get("spec") or {}))

    def update_priority(self, manifest: Manifest) -> None:
        """Store a WorkloadPriorityClass."""
        self._store(self._priorities, manifest, int(manifest["value"]))

    def remove(self, uid: str) -> None:
        """Remove a deleted ResourceFlavor or WorkloadPriorityClass."""
        if self._flavors.pop(uid, None) or self._priorities.pop(uid, None):
            self._enqueue()

    def _store(self, known: dict[str, tuple[str, T]], manifest: Manifest, value: T) -> None:
        metadata = manifest["metadata"]
        if known.get(metadata["uid"]) != (metadata["name"], value):
            known[metadata["uid"]] = metadata["name"], value
            self._enqueue()


class Cache:
    """The records of all jobs; `enqueue` is called with each job that must be reconciled."""

    def __init__(self, enqueue: Callable[[JobKey], None]) -> None:
        self._enqueue = enqueue
        self._jobs: dict[JobKey, _JobRecords] = defaultdict(_JobRecords)
        self._unreachable: dict[str, Time | None] = {}
        self._node_names: dict[str, str] = {}
        self._keys: dict[str, JobKey] = {}
        self.gangs = GangCache(lambda: self._enqueue_all(self.job_keys()))

    def job_keys(self) -> tuple[JobKey, ...]:
        """All existing jobs."""
        return tuple(key for key, records in self._jobs.items() if records.manifest)

    def phases(self) -> Mapping[str, int]:
        """Number of jobs by phase."""
        return Counter(records.phase for records in self._jobs.values() if records.manifest)

    def job(self, key: JobKey) -> Job | None:
        """The last known version of a job; None if it does not exist.

        Raises:
            ValueError: its status cannot be parsed.
        """
        records = self._jobs.get(key)
        if records is None or records.manifest is None:
            return None
        return read_job(unpack(records.manifest))

    def observed(self, key: JobKey, job_uid: str) -> Observed:
        """The observed state of a job."""
        records = self._jobs.get(key) or _JobRecords()
        pods = tuple(pod for pod in records.pods.values() if pod.job_uid == job_uid)
        report = records.report
        # The report of a controller whose pod was deleted is outdated.
        is_current = report and any(pod.uid == report.pod_uid for pod in pods)
        return Observed(
            pods=tuple(sorted(pods, key=lambda pod: pod.name)),
            children={
                (one.child.kind, one.child.name): dataclasses.replace(
                    one.child,
                    manifest=unpack(one.packed),
                    mutated_digest=records.mutated.get(uid, ""),
                )
                for uid, one in records.children.items()
            },
            unreachable_nodes={
                pod.node: since for pod in pods if (since := self._unreachable.get(pod.node))
            },
            controller=report if is_current else None,
            refused=dict(records.refused),
            gangs=self.gangs.facts(key[0]),
        )

    def controllers(self) -> list[tuple[JobKey, Pod]]:
        """The controller pods whose supervisors can be polled."""
        return [
            (key, pod)
            for key, records in self._jobs.items()
            if records.manifest and records.phase not in _WITHOUT_CONTROLLER
            for pod in records.pods.values()
            if pod.role == "controller" and pod.address and pod.phase == "Running"
        ]

    def update_report(self, key: JobKey, report: ControllerReport) -> None:
        """Store the report of a controller's supervisor; enqueues the job if it changed."""
        records = self._jobs.get(key)
        if records is not None and records.report != report:
            records.report = report
            self._enqueue(key)

    def update_job(self, manifest: Manifest) -> None:
        """Store a PPOJob; enqueues it unless only its training progress changed."""
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        trimmed = trimmed_job(manifest)
        records = self._jobs[key]
        before = unpack(records.manifest) if records.manifest else None
        if before is not None and _is_older(metadata, before["metadata"]):
            # The watch delivers an older version than the answer to our own write.
            return
        if records.uid != metadata["uid"]:
            records.refused.clear()
        records.manifest = pack(trimmed)
        records.uid = metadata["uid"]
        records.phase = (manifest.get("status") or {}).get("phase", "Pending")
        self._keys[metadata["uid"]] = key
        if before is None or _relevant(before) != _relevant(trimmed):
            self._enqueue(key)

    def remove_job(self, uid: str) -> None:
        """Remove a deleted PPOJob; a newer one of the same name stays."""
        key = self._keys.pop(uid, None)
        if key is not None and self._jobs[key].uid == uid:
            self.forget_job(key)

    def forget_job(self, key: JobKey) -> None:
        """Remove the PPOJob of this name."""
        records = self._jobs[key]
        self._keys.pop(records.uid, None)
        records.manifest = records.report = None
        records.mutated.clear()
        records.refused.clear()
        self._drop_if_empty(key)

    def update_pod(self, manifest: Manifest) -> None:
        """Store a pod; enqueues its job if the record changed."""
        pod = read_pod(manifest)
        if pod is None:
            return
        key = job_key(manifest)
        self._keys[pod.uid] = key
        if self._jobs[key].pods.get(pod.uid) != pod:
            self._jobs[key].pods[pod.uid] = pod
            self._enqueue(key)

    def update_child(self, manifest: Manifest) -> None:
        """Store an object of a job; enqueues the job if it changed."""
        key, version = job_key(manifest), int(manifest["metadata"]["resourceVersion"])
        before = self._jobs[key].children.get(manifest["metadata"]["uid"])
        if before is not None and version <= before.version:
            # The watch delivers the version that our own write returned, or an older one.
            return
        child = read_child(manifest)
        bare = dataclasses.replace(child, manifest={})
        kept = _PackedChild(bare, pack(child.manifest), version)
        self._keys[child.uid] = key
        self._jobs[key].children[child.uid] = kept
        if before is None or (before.child, before.packed) != (bare, kept.packed):
            self._enqueue(key)

    def remove(self, uid: str) -> None:
        """Remove a deleted pod or object of a job."""
        key = self._keys.pop(uid, None)
        if key is not None:
            records = self._jobs[key]
            for known in (records.pods, records.children, records.mutated):
                known.pop(uid, None)
            self._enqueue(key)
            self._drop_if_empty(key)

    def update_node(self, manifest: Manifest) -> None:
        """Store a node; enqueues the jobs on it if its kubelet stops or resumes responding."""
        name, since = manifest["metadata"]["name"], unreachable_since(manifest)
        self._node_names[manifest["metadata"]["uid"]] = name
        if self._unreachable.get(name) != since:
            self._unreachable[name] = since
            self._enqueue_all(self._jobs_on(name))

    def remove_node(self, uid: str) -> None:
        """Remove a deleted node; Kubernetes garbage-collects its pods."""
        name = self._node_names.pop(uid, None)
        if name is not None and self._unreachable.pop(name, None) is not None:
            self._enqueue_all(self._jobs_on(name))

    def record_write(self, key: JobKey, answer: Manifest, wanted: Manifest) -> None:
        """Store the API server's answer to our write of an object."""
        self.update_child(answer)
        self.clear_refusal(key, wanted)
        records = self._jobs[key]
        uid = answer["metadata"]["uid"]
        if is_up_to_date(answer, wanted):
            records.mutated.pop(uid, None)
        else:
            records.mutated[uid] = digest(wanted)

    def record_refusal(self, job: Job, manifest: Manifest, why: str) -> None:
        """Keep why the API server refused an object, for the status."""
        records = self._jobs.get(job.key)
        # A job that was deleted meanwhile leaves nothing to the next one of its name.
        if records is not None and records.manifest and records.uid == job.uid:
            records.refused[child_key(manifest)] = why

    def clear_refusal(self, key: JobKey, manifest: Manifest) -> None:
        """Forget the refusal of an object that is accepted now."""
        records = self._jobs.get(key)
        if records is not None:
            records.refused.pop(child_key(manifest), None)

    def _jobs_on(self, node: str) -> list[JobKey]:
        return [
            key
            for key, records in self._jobs.items()
            if any(pod.node == node for pod in records.pods.values())
        ]

    def _enqueue_all(self, keys: Iterable[JobKey]) -> None:
        for key in keys:
            self._enqueue(key)

    def _drop_if_empty(self, key: JobKey) -> None:
        records = self._jobs[key]
        if not (records.manifest or records.pods or records.children):
            del self._jobs[key]


def _is_older(metadata: Manifest, than: Manifest) -> bool:
    """Whether a version of an object is older; resource versions are ordered since 1.35."""
    same = metadata["uid"] == than["uid"]
    return bool(same and int(metadata["resourceVersion"]) < int(than["resourceVersion"]))


def _relevant(manifest: dict[str, Any]) -> dict[str, Any]:
    """The part of a job that a plan depends on: of its training the stage, not the step."""
    status = dict(manifest.get("status") or {})
    training = status.pop("training", None) or {}
    stage = (training.get("stage"), training.get("lastCheckpointStep") is None)
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "resourceVersion"}
    return {**manifest, "metadata": metadata, "status": status, "training": stage}
