"""What is known of a job and what is to be done: the records between observe, plan and execute."""

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
"""A Kubernetes object as plain values; the border to JSON, and nothing looks into it but
`build`, which makes it, `observe`, which reads it, and the `Cluster`."""

GangKind = Literal[
    "Workload", "PodGroup", "Workload.kueue.x-k8s.io", "PodGroup.scheduling.volcano.sh"
]
"""Kinds that place all pods of a job together; without a group: Kubernetes' own."""

ChildKind = (
    GangKind
    | Literal[
        "ConfigMap",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Secret",
        "Service",
        "ServiceAccount",
        "StatefulSet",
    ]
)


@dataclass(frozen=True, slots=True)
class Job:
    """A PPOJob as the cluster holds it.

    Attributes:
        resource_version: of the whole object; a status write is conditional on it.
        lifecycle, recovery, scheduling: what counts also where the rest of the spec is wrong.
        manifest: the job as validated; None where `problems` says why not.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: Time
    is_deleting: bool
    lifecycle: LifecycleSpec
    recovery: RecoverySpec
    scheduling: SchedulingSpec
    manifest: PPOJob | None
    problems: tuple[Problem, ...]
    status: PPOJobStatus

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Termination:
    """How a container ended.

    Attributes:
        reason: the kubelet's word, such as `OOMKilled`.
        message: the kubelet's sentence, or the end of the termination log.
    """

    exit_code: int
    reason: str
    message: str
    finished: Time | None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, trimmed to what decisions need; what is not known is empty.

    Attributes:
        owner_uid: of its StatefulSet; empty for a pod that was orphaned.
        config_digest: of the run configuration that it mounts.
        layout: digest of the layout that it was made for; empty: that of the job.
        unschedulable: the scheduler's words.
        waiting_reason: the kubelet's word for why the container does not run.
        disruption: why it was or is being disrupted.
    """

    namespace: str
    name: str
    uid: str
    job_uid: str
    role: RoleName
    created: Time
    owner_uid: str = ""
    phase: str = "Pending"
    is_ready: bool = False
    is_deleting: bool = False
    node: str = ""
    address: str = ""
    config_digest: str = ""
    layout: str = ""
    restarts: int = 0
    unschedulable: str = ""
    waiting_reason: str = ""
    waiting_message: str = ""
    disruption: str = ""
    reason: str = ""
    message: str = ""
    last: Termination | None = None

    @property
    def ends(self) -> int:
        """How often its container has ended: a kubelet counts an end when it is over with it."""
        is_down = self.waiting_reason == "CrashLoopBackOff" and self.last is not None
        return self.restarts + is_down


@dataclass(frozen=True, slots=True)
class Node:
    """A node, trimmed to since when its kubelet is silent; None while it is heard."""

    name: str
    silent_since: Time | None


@dataclass(frozen=True, slots=True)
class Child:
    """An object that was made for a job, which its owner should be.

    Attributes:
        manifest: the parts that somebody may change by hand.
        settled_digest: digest of the manifest that we applied last, where the API server or a
            webhook made something else of it: applying it again would change nothing.
    """

    kind: ChildKind
    name: str
    uid: str
    owner_uid: str
    is_deleting: bool
    manifest: Manifest
    settled_digest: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """What a queue adds to the pods of a role when it admits them."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodSet:
    """The pods of a role, whose template a queue may add to."""

    slug: str
    count: int
    template: Manifest


@dataclass(frozen=True, slots=True)
class GangFacts:
    """What the cluster has for gangs, whichever job asks.

    Attributes:
        served: kinds that the API server serves and this operator may read.
        flavors: what admission to a resource flavor of Kueue adds to pods, by name.
        priorities: values of Kueue's workload priority classes, by name.
    """

    served: frozenset[GangKind] = frozenset()
    flavors: Mapping[str, Placement] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ControllerReport:
    """What the controller pod's supervisor says of it; docs/contract.md has the phases."""

    pod_uid: str
    phase: str
    reason: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything seen that concerns one job, its own object aside.

    Attributes:
        refused: kind and name of objects that the API server did not take from us, and why.
        denials: roles whose pods are not made, and why, where that was asked for.
    """

    pods: tuple[Pod, ...] = ()
    children: Mapping[tuple[ChildKind, str], Child] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    controller: ControllerReport | None = None
    refused: Mapping[tuple[ChildKind, str], str] = field(default_factory=dict)
    denials: Mapping[RoleName, str] = field(default_factory=dict)
    gangs: GangFacts = GangFacts()

    def silent_since(self, pod: Pod) -> Time | None:
        """Since when the kubelet of a pod's node is not heard; None while it is."""
        node = self.nodes.get(pod.node)
        return node.silent_since if node else None

    def pods_of(self, role: RoleName) -> tuple[Pod, ...]:
        """The pods of one role."""
        return tuple(pod for pod in self.pods if pod.role == role)


@dataclass(frozen=True, slots=True)
class MakeKeys:
    """Make the Secrets of a job where they are not there yet; keys in use are never replaced.

    The templates are those Secrets without the keys, the controller's first.
    """

    templates: Mapping[RoleName, Manifest]

    @property
    def manifest(self) -> Manifest:
        """The controller's, which decides all."""
        return self.templates["controller"]


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object that is not there."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Give an object that is there, and ours, the content that it must have."""

    manifest: Manifest
    uid: str


@dataclass(frozen=True, slots=True)
class ApplyStatus:
    """Tell a queue how the job's pods are: conditions of ours in an object that is there."""

    manifest: Manifest
    uid: str


@dataclass(frozen=True, slots=True)
class ReleaseQuota:
    """Give back what a queue of Kueue has evicted the job from; its place in the queue stays."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object that was made for the job; what it owns goes with it."""

    kind: ChildKind
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """End a pod; its StatefulSet makes another. `force`: without waiting for its silent node."""

    name: str
    uid: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job itself, whose time after its end is over."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell people, as an Event on the job."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = (
    MakeKeys | Create | Apply | ApplyStatus | ReleaseQuota | Delete | DeletePod | DeleteJob | Emit
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for a job now.

    Attributes:
        waves: actions; those of a wave at once, one wave after the other.
        status: as it is to be; None where it stays.
        again_in: seconds after which time alone may change the plan; None: only events do.
    """

    waves: tuple[tuple[Action, ...], ...] = ()
    status: PPOJobStatus | None = None
    again_in: float | None = None
