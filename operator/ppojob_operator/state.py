"""Records between observe, plan and execute: the observed state of a job, and its plan."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.schedule import LifecycleSpec, RecoverySpec
from ppojob_api.v1alpha1.scheduling import SchedulingSpec
from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_api.well_known import RoleName

Time = datetime.datetime
"""Always in UTC."""

Manifest = Mapping[str, Any]
"""A Kubernetes object as plain JSON values. Only `build`, which creates it, `reading`, which parses
it, and the `Cluster` access its fields."""

ChildKind = str
"""A key of `kinds.CHILD_KINDS` or `kinds.GANG_KINDS`."""

Refusals = Mapping[tuple[ChildKind, str], str]
"""Why the API server refused objects, by kind and name."""


@dataclass(frozen=True, slots=True)
class Job:
    """A PPOJob as stored in the cluster."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str  # a status write is conditional on it
    created: Time
    is_deleting: bool
    # These sections apply also if the rest of the spec is invalid.
    lifecycle: LifecycleSpec
    recovery: RecoverySpec
    scheduling: SchedulingSpec
    # None if it is invalid, for the reasons in `problems`.
    validated: PPOJob | None
    problems: tuple[Problem, ...]
    status: PPOJobStatus

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Termination:
    """How a container terminated."""

    exit_code: int
    reason: str  # of the kubelet, such as `OOMKilled`
    message: str  # of the kubelet, or the end of the container's log
    finished: Time | None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, trimmed to what the plan needs; unknown values are empty."""

    namespace: str
    name: str
    uid: str
    job_uid: str
    role: RoleName
    created: Time
    owner_uid: str = ""  # of its StatefulSet; empty for an orphaned pod
    phase: str = "Pending"
    is_ready: bool = False
    is_deleting: bool = False
    node: str = ""
    address: str = ""
    config_digest: str = ""  # of the run configuration that it mounts
    layout: str = ""  # digest of the layout that it was created for; empty: that of the job
    memory_limit: str = ""  # of its container; a LimitRange or a webhook may have set it
    restarts: int = 0
    unschedulable: str = ""  # the scheduler's message
    waiting_reason: str = ""  # of the kubelet, why the container does not run
    waiting_message: str = ""
    disruption: str = ""  # reason of the condition DisruptionTarget
    reason: str = ""
    message: str = ""
    last: Termination | None = None

    @property
    def ends(self) -> int:
        """How often its container terminated; the kubelet counts one only at the restart."""
        is_down = self.waiting_reason == "CrashLoopBackOff" and self.last is not None
        return self.restarts + is_down


@dataclass(frozen=True, slots=True)
class Child:
    """An object that the operator created for a job."""

    kind: ChildKind
    name: str
    uid: str
    owner_uid: str  # of the controlling owner reference, usually the job; empty: none
    is_deleting: bool
    manifest: Manifest  # the fields that others may change
    # Digest of the manifest applied last, if the API server or a webhook changed it: applying it
    # again would change nothing.
    mutated_digest: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """What an admission adds to the pod template of a role; `gates` are scheduling gates."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSet:
    """The pods of a role, as Kueue counts them."""

    slug: str
    count: int
    template: Manifest


@dataclass(frozen=True, slots=True)
class GangFacts:
    """Gang scheduling in the cluster, for all jobs."""

    # Kinds that the API server serves and the operator may read.
    served: frozenset[ChildKind] = frozenset()
    # What an admission to a ResourceFlavor adds to pods, by name.
    flavors: Mapping[str, Placement] = field(default_factory=dict)
    # Values of the WorkloadPriorityClasses, by name.
    priorities: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ControllerReport:
    """Report of the controller pod's supervisor; docs/contract.md lists the phases."""

    pod_uid: str
    phase: str
    reason: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Observed state of a job, without the job itself."""

    pods: tuple[Pod, ...] = ()
    children: Mapping[tuple[ChildKind, str], Child] = field(default_factory=dict)
    # When their kubelets stopped responding, by name; without nodes that respond.
    unreachable_nodes: Mapping[str, Time] = field(default_factory=dict)
    controller: ControllerReport | None = None
    refused: Refusals = field(default_factory=dict)
    # Why the StatefulSet controller could not create pods of a role, by its Events, if the
    # operator asked for these.
    denials: Mapping[RoleName, str] = field(default_factory=dict)
    gangs: GangFacts = GangFacts()

    def pods_of(self, role: RoleName) -> tuple[Pod, ...]:
        """The pods of one role."""
        return tuple(pod for pod in self.pods if pod.role == role)

    def children_of(self, kind: ChildKind) -> list[Child]:
        """The objects of one kind that are not being deleted."""
        every = self.children.values()
        return [child for child in every if child.kind == kind and not child.is_deleting]


@dataclass(frozen=True, slots=True)
class CreateKeys:
    """Create the missing Secrets of a job; existing keys are never replaced.

    The templates are the Secrets without keys, the controller's first.
    """

    templates: Mapping[RoleName, Manifest]

    @property
    def manifest(self) -> Manifest:
        """The controller's Secret, which holds all keys."""
        return self.templates["controller"]


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the desired content to an existing object of the job."""

    manifest: Manifest
    uid: str


@dataclass(frozen=True, slots=True)
class ApplyStatus:
    """Apply conditions to the status of a Workload of Kueue."""

    manifest: Manifest
    uid: str


@dataclass(frozen=True, slots=True)
class ReleaseQuota:
    """Release the quota of an evicted job; its Workload stays in the queue."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of the job with its dependents, one of its pods, or the job itself."""

    kind: str  # a `ChildKind`, `Pod` or `PPOJob`
    name: str
    uid: str
    force: bool = False  # without grace period


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Create a Kubernetes Event about the job."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = CreateKeys | Create | Apply | ApplyStatus | ReleaseQuota | Delete | RecordEvent

Waves = tuple[tuple[Action, ...], ...]
"""Actions of a plan: those of a wave run concurrently, one wave after the other."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for a job now."""

    waves: Waves = ()
    status: PPOJobStatus | None = None  # the new status; None if it is unchanged
    # Seconds after which the plan may change without an event; None: never.
    requeue_after: float | None = None
