"""Who places the pods: `type` names the one member that counts."""

from collections.abc import Iterator

from ppojob_api.checks.check import Check, conflict, no_effect
from ppojob_api.problem import ABSENT, Problem, ReasonCode
from ppojob_api.v1alpha1.job import PPOJob

_WHERE = "spec.scheduling"


def member_of_other_type(job: PPOJob) -> Iterator[Problem]:
    """Settings of a queue that the job is not in."""
    scheduling = job.spec.scheduling
    for kind, member in (("kueue", scheduling.kueue), ("volcano", scheduling.volcano)):
        if member is not None and scheduling.type != kind:
            value = member.model_dump(mode="json", exclude_unset=True)
            why, allowed = f"with type: {scheduling.type}", f"remove it, or type: {kind}"
            yield no_effect(f"{_WHERE}.{kind}", value, why, allowed)


def without_queue(job: PPOJob) -> Iterator[Problem]:
    """Kueue has no queue that a job is in by default."""
    if job.spec.scheduling.type == "kueue" and job.spec.scheduling.kueue is None:
        why = "type: kueue needs a queue"
        allowed = "{queueName: NAME} of a LocalQueue in the job's namespace"
        yield Problem(f"{_WHERE}.kueue", ABSENT, why, allowed, ReasonCode.REQUIRED)


def other_scheduler(job: PPOJob) -> Iterator[Problem]:
    """A gang is placed by the scheduler that knows of it."""
    kind = job.spec.scheduling.type
    schedulers = {"volcano": "volcano", "workload": "default-scheduler"}
    if kind not in schedulers:
        return
    for index, settings in enumerate(job.spec.pods):
        spec = settings.pod_overrides.get("spec")
        name = spec.get("schedulerName") if isinstance(spec, dict) else None
        if name not in (None, schedulers[kind]):
            where = f"spec.pods[{index}].podOverrides.spec.schedulerName"
            why = f"with spec.scheduling.type: {kind} the pods are those of {schedulers[kind]}"
            yield conflict(where, name, why, "remove it, or spec.scheduling.type: none")


SCHEDULING_CHECKS = (
    Check(member_of_other_type, (_WHERE,)),
    Check(without_queue, (_WHERE,)),
    Check(other_scheduler, (f"{_WHERE}.type", "spec.pods")),
)
