"""How a job gets its resources: all of them or none."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import ObjectName, Section

SchedulingType = Literal["none", "kueue", "volcano", "workload"]


class KueueSpec(Section):
    """Settings of `type: kueue` (https://kueue.sigs.k8s.io)."""

    queue_name: ObjectName
    """LocalQueue in the namespace of the job."""

    priority_class_name: ObjectName | None = None
    """WorkloadPriorityClass: the order in the queue, and who is preempted; absent: priority 0."""


class VolcanoSpec(Section):
    """Settings of `type: volcano` (https://volcano.sh)."""

    queue: ObjectName = "default"
    """Queue of the cluster."""

    priority_class_name: ObjectName | None = None
    """PriorityClass of the gang; that of its pods is in spec.pods."""


class SchedulingSpec(Section):
    """Who decides that all pods of a job get their places together; a cluster reads it."""

    type: SchedulingType = "none"
    """none: pod by pod; kueue: pods are made when a queue admits the job; volcano: a PodGroup of
    the scheduler of that name; workload: Kubernetes' own gang scheduling (1.36, alpha)."""

    kueue: KueueSpec | None = None
    """Settings of type kueue; required there."""

    volcano: VolcanoSpec | None = None
    """Settings of type volcano; absent: the default queue."""

    start_deadline_seconds: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """A job whose pods are placed in part alone gives them all back after this time, and tries
    again after the same; absent: it waits, and holds what it has."""
