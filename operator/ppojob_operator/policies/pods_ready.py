"""Condition PodsReady: why pods are not ready, with the scheduler's or kubelet's message. Pure.

The messages are copied with role and pod, so that `kubectl describe` of the job is enough to see
why it does not run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from ppojob_api.topology import Topology
from ppojob_api.well_known import ROLE_SLUGS, RoleName, pod_name
from ppojob_operator.conditions import ObservedCondition
from ppojob_operator.state import Job, Observed, Pod

IMAGE_REASONS = frozenset(
    {
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
    }
)
MISSING_SECONDS = 15.0
"""A pod that is not created for this long is reported."""
MAY_BE_DENIED = frozenset({"ContainerWaiting", "PodFailed", "PodsMissing"})
"""Reasons below `PodsDenied`: some pods may be denied, which only Events of the StatefulSet say."""
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})


PodNames = Mapping[RoleName, tuple[str, ...]]
"""Pod names by ordinal, of each role with pods of its own."""


def wanted_pods(topology: Topology) -> PodNames:
    """The pods that a job should have."""
    return {role.role: tuple(pod.name for pod in role.pods) for role in topology.with_own_pods}


def accepted_pods(job: Job) -> PodNames:
    """The pods of the last valid spec, from the status."""
    return {
        role: tuple(pod_name(job.name, role, index) for index in range(status.replicas))
        for status in job.status.roles
        if (role := cast("RoleName", status.name)) in ROLE_SLUGS
    }


def pods_ready(roles: PodNames, observed: Observed, seconds: float) -> ObservedCondition:
    """The condition PodsReady of a job that started so many seconds ago.

    It has the most important of the reasons; `obstacles` has their order.
    """
    wanted = sum(map(len, roles.values()))
    existing = (pod for pod in observed.pods if pod.role in roles)
    ready = sum(pod.is_ready and not pod.is_deleting for pod in existing)
    if ready >= wanted and not missing_pods(roles, observed):
        return ObservedCondition(
            "PodsReady", True, "AllPodsReady", f"{wanted} of {wanted} pods are ready"
        )
    head = f"{ready} of {wanted} pods are ready"
    for reason, lines in obstacles(roles, observed):
        # Pods are created one by one: naming each missing pod would cost a status write for each.
        if lines and (reason != "PodsMissing" or seconds >= MISSING_SECONDS):
            return ObservedCondition("PodsReady", False, reason, f"{head}; {first_of(lines)}")
    return ObservedCondition("PodsReady", False, "Starting", head)


def first_of(lines: Sequence[str]) -> str:
    """The first of several lines, and how many more there are."""
    return lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")


def missing_pods(wanted: PodNames, observed: Observed) -> list[tuple[RoleName, str]]:
    """Role and name of each pod that does not exist."""
    existing = {pod.name for pod in observed.pods}
    return [
        (role, name) for role, names in wanted.items() for name in names if name not in existing
    ]


def obstacles(roles: PodNames, observed: Observed) -> Iterable[tuple[str, list[str]]]:
    """Each reason why pods are not ready, the most important first, with a line for each pod."""
    pods = [pod for pod in observed.pods if not pod.is_ready]
    lost = [pod for pod in pods if pod.node in observed.unreachable_nodes]
    yield "NodeLost", [_line(pod, f"node {pod.node} does not respond") for pod in lost]
    waiting = [pod for pod in pods if pod.waiting_reason not in _STARTING]
    lines = {pod: _line(pod, f"{pod.waiting_reason}: {pod.waiting_message}") for pod in waiting}
    yield "ImageUnavailable", [lines[pod] for pod in lines if pod.waiting_reason in IMAGE_REASONS]
    yield "Unschedulable", [_line(pod, pod.unschedulable) for pod in pods if pod.unschedulable]
    missing, denials = missing_pods(roles, observed), observed.denials
    yield (
        "PodsDenied",
        [
            f"{who}: pod {name}: not created: {denials[who]}"
            for who, name in missing
            if who in denials
        ],
    )
    yield (
        "ContainerWaiting",
        [lines[pod] for pod in lines if pod.waiting_reason not in IMAGE_REASONS],
    )
    failed = [pod for pod in pods if pod.phase == "Failed"]
    yield "PodFailed", [_line(pod, f"{pod.reason}: {pod.message}") for pod in failed]
    yield (
        "PodsMissing",
        [f"{who}: pod {name}: not created yet" for who, name in missing if who not in denials],
    )


def _line(pod: Pod, message: str) -> str:
    return f"{pod.role}: pod {pod.name}: {message}"
