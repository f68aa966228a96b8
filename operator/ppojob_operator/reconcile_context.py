"""Lifecycle state of a job at a reconcile: the policies' results combined. Pure."""

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
from ppojob_operator.policies.placing import GAVE_BACK, Admission, admission
from ppojob_operator.policies.startup import PodNames, accepted_pods, wanted_pods
from ppojob_operator.reading import JOBS_REMEMBERED
from ppojob_operator.state import Job, Observed, Time


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """State of a job at one moment.

    Attributes:
        config: of its pods; None if the spec is refused: objects of the previous one are kept, and
            ended, but nothing more is created.
        roles: those with pods of their own.
        failures: losses that are not in the status yet.
        admission: whether it may have pods.
        moves: whether objects of another layout exist: they must go first.
        runs: whether it is to have pods beyond a final checkpoint.
        wanted: roles that are to have pods now.
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
    moves: bool
    runs: bool
    wanted: PodNames

    @property
    def has_ended(self) -> bool:
        """Whether the status says already that the job ended."""
        return has_ended(self.job.status)

    @property
    def wants_gang(self) -> bool:
        """Whether its pods, those that are there included, are to be placed together."""
        gives_up = self.admission.claim.reason in {GAVE_BACK, INVALID}
        is_to_stop = self.has_ended or self.job.lifecycle.suspend or gives_up or self.moves
        return not is_to_stop or bool(self.observed.pods)

    @property
    def step(self) -> int:
        """Steps done."""
        return self.job.status.training.step if self.job.status.training else 0


def reconcile_context(
    job: Job, manifest: PPOJob | None, accepted: ObservedCondition, observed: Observed, now: Time
) -> ReconcileContext:
    """Where a job is that is accepted, or was: of which `manifest` is None.

    A new ending is written down before the pods go, since it is known from them alone.
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
        words = ObservedCondition("Admitted", False, accepted.reason, accepted.message)
        admitted = Admission(words, may_have_pods=False)
    moves = config is not None and _is_of_another_layout(job, config, observed)
    may_run = not is_over and not job.lifecycle.suspend and not moves
    runs = may_run and admitted.may_have_pods
    wanted = _wanted_roles(
        roles,
        observed,
        runs=runs,
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
        moves=moves,
        runs=runs,
        wanted=wanted,
    )


def _wanted_roles(
    roles: PodNames, observed: Observed, *, runs: bool, checkpoints: bool
) -> PodNames:
    """Which roles have pods now: all, all but the controller while it writes a checkpoint, or none.

    A job that is to stop loses its controller first. Told to end, it ends its step and writes a
    checkpoint, and for that it needs all other roles; they go when it is gone. Going on is starting
    anew: the controller finds the checkpoint.
    """
    if runs:
        return {role: roles[role] for role in roles if not _is_leaving(role, observed)}
    if checkpoints and _is_saving(observed):
        return {role: roles[role] for role in roles if role != "controller"}
    return {}


def _is_of_another_layout(job: Job, config: PodConfig, observed: Observed) -> bool:
    """Whether anything that is there of the job was made for another layout.

    An API server lets a layout change only once the operator has said that no pods are there. It
    may have said so of an earlier time, so here nothing hangs on that: what is there saves a
    checkpoint and goes, and is not brought to the new layout pod by pod.
    """
    there = {pod.layout for pod in observed.pods}
    own = (child for child in observed.children.values() if child.owner_uid == job.uid)
    there |= {layout_of(child.manifest["metadata"]) for child in own}
    return bool(there - {"", config.layout})


def _is_leaving(role: RoleName, observed: Observed) -> bool:
    """Whether pods of a StatefulSet that is gone are still on their way out.

    They have the names of those to come. A new StatefulSet would wait for them as well, but ask
    less and less often; pods that somebody has orphaned are no reason to wait, it adopts them.
    """
    pods = observed.pods_of(role)
    sets = {child.uid for (kind, _), child in observed.children.items() if kind == "StatefulSet"}
    return any(pod.owner_uid and pod.owner_uid not in sets for pod in pods)


def _is_saving(observed: Observed) -> bool:
    """Whether there is a controller that may still have something to save."""
    report = observed.controller
    return any(
        not (report is not None and report.pod_uid == pod.uid and report.phase == "done")
        for pod in observed.pods_of("controller")
        if pod.is_ready or pod.is_deleting
    )


def _is_made(job: Job, roles: PodNames, observed: Observed) -> bool:
    """Whether all roles have what makes their pods: without one of them nothing trains."""
    there = {
        name
        for (kind, name), child in observed.children.items()
        if kind == "StatefulSet" and child.owner_uid == job.uid and not child.is_deleting
    }
    return there.issuperset(workload_name(job.name, role) for role in roles)


def pod_config(job: Job, manifest: PPOJob) -> PodConfig:
    """What the pods run: without lifecycle and pod settings, which are none of their business.

    So suspending a job, or asking for another node, gives its pods nothing new to read.
    """
    return _pod_config(_VeryManifest(manifest), job.uid)


class _VeryManifest:
    """A manifest that equals itself alone: comparing contents would cost what is to be saved."""

    def __init__(self, manifest: PPOJob) -> None:
        self.manifest = manifest

    def __hash__(self) -> int:
        return id(self.manifest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _VeryManifest) and other.manifest is self.manifest


@functools.lru_cache(maxsize=JOBS_REMEMBERED)
def _pod_config(given: _VeryManifest, uid: str) -> PodConfig:
    config = resolve(given.manifest)
    spec = config.spec.model_copy(
        update={"lifecycle": LifecycleSpec(), "pods": (), "scheduling": SchedulingSpec()}
    )
    run = config.model_copy(update={"spec": spec, "uid": uid})
    return PodConfig.of(run, layout_json(given.manifest.spec), config.spec.pods)
