"""Gang scheduling: a job gets all of its resources or none."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import ObjectName, Section

SchedulingType = Literal["none", "kueue", "volcano", "coscheduling", "workload"]


class KueueSpec(Section):
    """Settings of type kueue, which requires them (https://kueue.sigs.k8s.io)."""

    queue_name: ObjectName
    """LocalQueue in the namespace of the job."""

    priority_class_name: ObjectName | None = None
    """WorkloadPriorityClass: the order in the queue, and preemption; absent: priority 0."""


class VolcanoSpec(Section):
    """Settings of type volcano (https://volcano.sh)."""

    queue: ObjectName = "default"
    """Volcano queue of the cluster."""

    priority_class_name: ObjectName | None = None
    """PriorityClass of the gang; that of its pods is in spec.pods."""


class CoschedulingSpec(Section):
    """Settings of type coscheduling (https://scheduler-plugins.sigs.k8s.io)."""

    scheduler_name: ObjectName = "scheduler-plugins-scheduler"
    """Scheduler with the Coscheduling plugin; the default is the name in its chart."""


class SchedulingSpec(Section):
    """Gang scheduling and queues, which place the pods of a job together; on a cluster only."""

    type: SchedulingType = "none"
    """none: pods are placed one by one; kueue: pods are created when a queue admits the job;
    volcano: a PodGroup of Volcano's scheduler; coscheduling: a PodGroup of the scheduler plugin
    Coscheduling; workload: Kubernetes' own gang scheduling (1.36, alpha)."""

    kueue: KueueSpec | None = None

    volcano: VolcanoSpec | None = None
    """Settings of type volcano; absent: the default queue."""

    coscheduling: CoschedulingSpec | None = None
    """Settings of type coscheduling."""

    start_deadline_seconds: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """If not all pods are scheduled within this time, all are deleted, and created again after the
    same time; absent: scheduled pods wait for the others."""

    @property
    def scheduler_name(self) -> str | None:
        """The scheduler of all pods; None if they may choose one."""
        coscheduling = (self.coscheduling or CoschedulingSpec()).scheduler_name
        return {
            "volcano": "volcano",
            "coscheduling": coscheduling,
            "workload": "default-scheduler",
        }.get(self.type)
