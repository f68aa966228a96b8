"""State of a job in a reconcile: the results of the policies, combined. Pure."""

import functools
from dataclasses import dataclass
from functools import cached_property

from ppojob_api.run_config import layout_json, resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.schedule import LifecycleSpec
from ppojob_api.v1alpha1.scheduling import SchedulingSpec
from ppojob_api.v1alpha1.status import FailureRecord
from ppojob_api.well_known import RoleName, workload_name
from ppojob_operator.build.metadata import layout_of
from ppojob_operator.build.pod_template import PodConfig
from ppojob_operator.conditions import INVALID, ObservedCondition, has_ended
from ppojob_operator.policies.admission import START_DEADLINE_EXCEEDED, Admission, admission
from ppojob_operator.policies.ending import Ending, ending, ending_by_failures, new_records
from ppojob_operator.policies.pods_ready import PodNames, accepted_pods, wanted_pods
from ppojob_operator.reading import JOBS_REMEMBERED
from ppojob_operator.state import Job, Observed, Time


@dataclass(frozen=True)
class ReconcileContext:
    """State of a job that was accepted once, at one moment."""

    job: Job
    validated: PPOJob | None  # None if it is invalid now
    accepted: ObservedCondition
    observed: Observed
    now: Time

    @cached_property
    def config(self) -> PodConfig | None:
        """Configuration of its pods.

        None if the spec is invalid: existing objects are kept, or deleted when the job ends, but
        none are created.
        """
        return pod_config(self.job, self.validated) if self.validated is not None else None

    @cached_property
    def roles(self) -> PodNames:
        """Roles with pods of their own."""
        if self.config is None:
            return accepted_pods(self.job)
        return wanted_pods(self.config.run.topology)

    @cached_property
    def failures(self) -> list[FailureRecord]:
        """Failures that are not in the status yet."""
        return new_records(self.observed.pods, self.job.status, self.now)

    @cached_property
    def ending(self) -> Ending | None:
        """How it ended.

        It is written to the status before the pods are deleted, since only they show it.
        """
        budget = self.job.recovery.restarts_without_progress
        failure = ending_by_failures(self.failures, self.job.status, budget)
        return ending(self.job, self.observed.controller, failure, self.now)

    @cached_property
    def admission(self) -> Admission:
        """Whether it may have pods."""
        if self.config is None and not self.has_ended and not self._is_made:
            why = self.accepted.reason, self.accepted.message
            return Admission(ObservedCondition("Admitted", False, *why), may_have_pods=False)
        return admission(self.job, self.observed, self.now)

    @cached_property
    def has_old_layout(self) -> bool:
        """Whether objects of another layout exist; they are deleted first.

        The API server allows a new layout only while the status says that no pods exist, but the
        status may be outdated. So existing pods write a checkpoint and are deleted, and never run
        beside pods of the new layout.
        """
        if self.config is None:
            return False
        children = self.observed.children.values()
        layouts = {pod.layout for pod in self.observed.pods}
        layouts |= {
            layout_of(child.manifest["metadata"])
            for child in children
            if child.owner_uid == self.job.uid
        }
        return bool(layouts - {"", self.config.layout})

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, by its status."""
        return has_ended(self.job.status)

    @property
    def should_run(self) -> bool:
        """Whether its controller should run."""
        should_stop = self.has_ended or self.job.lifecycle.suspend or self.has_old_layout
        return self.admission.may_have_pods and not should_stop

    @cached_property
    def desired(self) -> PodNames:
        """Roles that should have pods: all, all but the controller while it checkpoints, or none.

        The controller of a job that should stop is deleted first. On SIGTERM it finishes its step
        and writes a checkpoint, for which it needs all other roles; they are deleted after it. To
        resume, a new controller reads the checkpoint.
        """
        roles = self.roles.items()
        if self.should_run:
            return {role: pods for role, pods in roles if not _is_terminating(role, self.observed)}
        checkpoints = not self.has_ended or self.job.status.reason == "DeadlineExceeded"
        if checkpoints and _is_saving(self.observed):
            return {role: pods for role, pods in roles if role != "controller"}
        return {}

    @property
    def wants_gang(self) -> bool:
        """Whether the objects of gang scheduling are needed."""
        is_released = self.admission.admitted.reason in {START_DEADLINE_EXCEEDED, INVALID}
        should_stop = self.has_ended or self.job.lifecycle.suspend or is_released
        return not (should_stop or self.has_old_layout) or bool(self.observed.pods)

    @property
    def step(self) -> int:
        """Completed steps."""
        return self.job.status.training.step if self.job.status.training else 0

    @property
    def _is_made(self) -> bool:
        """Whether the StatefulSets of all roles exist."""
        sets = self.observed.children_of("StatefulSet")
        names = {child.name for child in sets if child.owner_uid == self.job.uid}
        return names.issuperset(workload_name(self.job.name, role) for role in self.roles)


def _is_terminating(role: RoleName, observed: Observed) -> bool:
    """Whether pods of a deleted StatefulSet still exist.

    The pods of a new StatefulSet have the same names, so it would wait with growing delays.
    Orphaned pods are no reason to wait: a new StatefulSet adopts them.
    """
    pods = observed.pods_of(role)
    sets = {child.uid for (kind, _), child in observed.children.items() if kind == "StatefulSet"}
    return any(pod.owner_uid and pod.owner_uid not in sets for pod in pods)


def _is_saving(observed: Observed) -> bool:
    """Whether a controller exists that may still write a checkpoint."""
    report = observed.controller
    return any(
        not (report is not None and report.pod_uid == pod.uid and report.phase == "done")
        for pod in observed.pods_of("controller")
        if pod.is_ready or pod.is_deleting
    )


def pod_config(job: Job, validated: PPOJob) -> PodConfig:
    """The configuration of the pods, without the sections `lifecycle`, `pods` and `scheduling`.

    So suspending a job or changing its node selector does not change what its pods mount.
    """
    return _pod_config(_ByIdentity(validated), job.uid)


class _ByIdentity:
    """Cache key of a job: comparing contents would cost as much as the cache saves."""

    def __init__(self, validated: PPOJob) -> None:
        self.validated = validated

    def __hash__(self) -> int:
        return id(self.validated)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.validated is self.validated


@functools.lru_cache(maxsize=JOBS_REMEMBERED)
def _pod_config(given: _ByIdentity, uid: str) -> PodConfig:
    config = resolve(given.validated)
    spec = config.spec.model_copy(
        update={"lifecycle": LifecycleSpec(), "pods": (), "scheduling": SchedulingSpec()}
    )
    run = config.model_copy(update={"spec": spec, "uid": uid})
    return PodConfig.of(run, layout_json(given.validated.spec), config.spec.pods)
