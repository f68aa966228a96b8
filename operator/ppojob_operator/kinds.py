"""Kinds of Kubernetes objects that the operator uses, and their API paths."""

from dataclasses import dataclass

from ppojob_api.well_known import API_VERSION, KIND, PLURAL
from ppojob_operator.state import ChildKind, Manifest


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind, with its API version and plural name."""

    name: str
    api_version: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """API path of all objects, of those of a namespace, or of one object."""
        root = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        inside = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "")


JOB = Kind(KIND, API_VERSION, PLURAL)
POD = Kind("Pod", "v1", "pods")
NODE = Kind("Node", "v1", "nodes", is_namespaced=False)
EVENT = Kind("Event", "v1", "events")
LEASE = Kind("Lease", "coordination.k8s.io/v1", "leases")

# Kueue's cluster-scoped kinds, which an admission refers to.
FLAVOR = Kind("ResourceFlavor", "kueue.x-k8s.io/v1beta2", "resourceflavors", is_namespaced=False)
PRIORITY = Kind(
    "WorkloadPriorityClass",
    "kueue.x-k8s.io/v1beta2",
    "workloadpriorityclasses",
    is_namespaced=False,
)

CHILD_KINDS: dict[ChildKind, Kind] = {
    "ConfigMap": Kind("ConfigMap", "v1", "configmaps"),
    "NetworkPolicy": Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
    "PodDisruptionBudget": Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    "Role": Kind("Role", "rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": Kind("Secret", "v1", "secrets"),
    "Service": Kind("Service", "v1", "services"),
    "ServiceAccount": Kind("ServiceAccount", "v1", "serviceaccounts"),
    "StatefulSet": Kind("StatefulSet", "apps/v1", "statefulsets"),
}

WATCHED_CHILD_KINDS = tuple(kind for kind in CHILD_KINDS if kind != "Secret")
"""Secrets are never listed, so the operator needs no permission to read those of others."""

KINDS = {kind.name: kind for kind in (JOB, POD, NODE, EVENT, LEASE, *CHILD_KINDS.values())}

GANG_KINDS: dict[ChildKind, Kind] = {
    "Workload": Kind("Workload", "scheduling.k8s.io/v1alpha2", "workloads"),
    "PodGroup": Kind("PodGroup", "scheduling.k8s.io/v1alpha2", "podgroups"),
    "Workload.kueue.x-k8s.io": Kind("Workload", "kueue.x-k8s.io/v1beta2", "workloads"),
    "PodGroup.scheduling.volcano.sh": Kind(
        "PodGroup", "scheduling.volcano.sh/v1beta1", "podgroups"
    ),
    "PodGroup.scheduling.x-k8s.io": Kind("PodGroup", "scheduling.x-k8s.io/v1alpha1", "podgroups"),
}
"""Kinds of gang scheduling: `Kind` of Kubernetes itself, `Kind.group` of other projects."""

_GANGS_BY_HEAD = {(kind.api_version, kind.name): name for name, kind in GANG_KINDS.items()}
_EVERY = KINDS | GANG_KINDS


def child_kind(manifest: Manifest) -> ChildKind:
    """The `ChildKind` of an object: some gang kinds of different groups share a name."""
    name: ChildKind = manifest["kind"]
    return _GANGS_BY_HEAD.get((manifest["apiVersion"], name), name)


def child_key(manifest: Manifest) -> tuple[ChildKind, str]:
    """Kind and name, which identify a child of a job."""
    return child_kind(manifest), manifest["metadata"]["name"]


def kind_of(manifest: Manifest) -> Kind:
    """The kind of an object."""
    return _EVERY[child_kind(manifest)]


def kind_of_child(name: str) -> Kind:
    """The kind of a child, of pods or of jobs."""
    return _EVERY[name]
