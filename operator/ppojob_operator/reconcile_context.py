"""State of a job in a reconcile: the results of the policies, combined. Pure."""

import functools
from dataclasses import dataclass

from ppojob_api.run_config import layout_json, resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.schedule import LifecycleSpec
from ppojob_api.v1alpha1.scheduling import SchedulingSpec
from ppojob_api.v1alpha1.status import FailureRecord
from ppojob_api.well_known import RoleName, workload_name
from ppojob_operator.build.metadata import layout_of
from ppojob_operator.build.pod_template import PodConfig
from ppojob_operator.conditions import INVALID, ObservedCondition, has_ended
from ppojob_operator.policies.ending import Ending, ending, ending_by_failures, new_records
from ppojob_operator.policies.placing import START_DEADLINE_EXCEEDED, Admission, admission
from ppojob_operator.policies.startup import PodNames, accepted_pods, wanted_pods
from ppojob_operator.reading import JOBS_REMEMBERED
from ppojob_operator.state import Job, Observed, Time


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """State of a job at one moment.

    Attributes:
        config: of its pods; None if the spec is invalid: existing objects are kept, or deleted when
            the job ends, but none are created.
        roles: those with pods of their own.
        failures: failures that are not in the status yet.
        admission: whether it may have pods.
        has_old_layout: whether objects of another layout exist; they are deleted first.
        should_run: whether its controller should run.
        desired: roles that should have pods now.
    """

    job: Job
    accepted: ObservedCondition
    config: PodConfig | None
    roles: PodNames
    observed: Observed
    now: Time
    failures: tuple[FailureRecord, ...]
    admission: Admission
    ending: Ending | None
    has_old_layout: bool
    should_run: bool
    desired: PodNames

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, by its status."""
        return has_ended(self.job.status)

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


def reconcile_context(
    job: Job, manifest: PPOJob | None, accepted: ObservedCondition, observed: Observed, now: Time
) -> ReconcileContext:
    """The context of a job that was accepted once; `manifest` is None if it is invalid now.

    A new ending is written to the status before the pods are deleted, since only they show it.
    """
    config = pod_config(job, manifest) if manifest is not None else None
    roles = wanted_pods(config.run.topology) if config is not None else accepted_pods(job)
    status = job.status
    failures = new_records(observed.pods, status, now)
    failure = ending_by_failures(failures, status, job.recovery.restarts_without_progress)
    found = ending(job, observed.controller, failure, now)
    is_over = has_ended(job.status)
    admitted = admission(job, observed, now)
    if config is None and not is_over and not _is_made(job, roles, observed):
        refused = ObservedCondition("Admitted", False, accepted.reason, accepted.message)
        admitted = Admission(refused, may_have_pods=False)
    has_old_layout = config is not None and _has_old_layout(job, config, observed)
    may_run = not is_over and not job.lifecycle.suspend and not has_old_layout
    should_run = may_run and admitted.may_have_pods
    desired = _desired_roles(
        roles,
        observed,
        should_run=should_run,
        checkpoints=not is_over or status.reason == "DeadlineExceeded",
    )
    return ReconcileContext(
        job=job,
        accepted=accepted,
        config=config,
        roles=roles,
        observed=observed,
        now=now,
        failures=tuple(failures),
        admission=admitted,
        ending=found,
        has_old_layout=has_old_layout,
        should_run=should_run,
        desired=desired,
    )


def _desired_roles(
    roles: PodNames, observed: Observed, *, should_run: bool, checkpoints: bool
) -> PodNames:
    """Roles that should have pods: all, all but the controller while it checkpoints, or none.

    The controller of a job that should stop is deleted first. On SIGTERM it finishes its step and
    writes a checkpoint, for which it needs all other roles; they are deleted after it. To resume,
    a new controller reads the checkpoint.
    """
    if should_run:
        return {role: roles[role] for role in roles if not _is_terminating(role, observed)}
    if checkpoints and _is_saving(observed):
        return {role: roles[role] for role in roles if role != "controller"}
    return {}


def _has_old_layout(job: Job, config: PodConfig, observed: Observed) -> bool:
    """Whether objects of the job were created for another layout.

    The API server allows a new layout only while the status says that no pods exist, but the status
    may be outdated. So existing pods write a checkpoint and are deleted, and never run beside pods
    of the new layout.
    """
    layouts = {pod.layout for pod in observed.pods}
    own = (child for child in observed.children.values() if child.owner_uid == job.uid)
    layouts |= {layout_of(child.manifest["metadata"]) for child in own}
    return bool(layouts - {"", config.layout})


def _is_terminating(role: RoleName, observed: Observed) -> bool:
    """Whether pods of a deleted StatefulSet still exist.

    They have the names of the new pods. A new StatefulSet would wait for them with growing delays.
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


def _is_made(job: Job, roles: PodNames, observed: Observed) -> bool:
    """Whether the StatefulSets of all roles exist."""
    own = {one.name for one in observed.children_of("StatefulSet") if one.owner_uid == job.uid}
    return own.issuperset(workload_name(job.name, role) for role in roles)


def pod_config(job: Job, manifest: PPOJob) -> PodConfig:
    """The configuration of the pods, without the sections `lifecycle`, `pods` and `scheduling`.

    So suspending a job or changing its node selector does not change what its pods mount.
    """
    return _pod_config(_ByIdentity(manifest), job.uid)


class _ByIdentity:
    """Cache key of a manifest: comparing contents would cost as much as the cache saves."""

    def __init__(self, manifest: PPOJob) -> None:
        self.manifest = manifest

    def __hash__(self) -> int:
        return id(self.manifest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.manifest is self.manifest


@functools.lru_cache(maxsize=JOBS_REMEMBERED)
def _pod_config(given: _ByIdentity, uid: str) -> PodConfig:
    config = resolve(given.manifest)
    spec = config.spec.model_copy(
        update={"lifecycle": LifecycleSpec(), "pods": (), "scheduling": SchedulingSpec()}
    )
    run = config.model_copy(update={"spec": spec, "uid": uid})
    return PodConfig.of(run, layout_json(given.manifest.spec), config.spec.pods)
