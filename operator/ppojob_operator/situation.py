"""Where a job is in its life: what the policies make of the job and of what is seen. Pure."""

import functools
from dataclasses import dataclass

from ppojob_api.run_config import resolve
from ppojob_api.topology import RoleTopology
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.pod_settings import PodSettings
from ppojob_api.v1alpha1.schedule import LifecycleSpec
from ppojob_api.v1alpha1.scheduling import SchedulingSpec
from ppojob_api.v1alpha1.status import FailureRecord
from ppojob_operator.build.config_map import PodConfig
from ppojob_operator.conditions import holds
from ppojob_operator.policies.completion import Ending, ending
from ppojob_operator.policies.failure import judge, new_records
from ppojob_operator.policies.gang import GAVE_BACK, admission
from ppojob_operator.policies.placing import Admission
from ppojob_operator.policies.suspend import wanted_roles
from ppojob_operator.reading import JOBS_REMEMBERED
from ppojob_operator.state import Job, Observed, Time


@dataclass(frozen=True, slots=True)
class Situation:
    """A job at one moment.

    Attributes:
        job: the job.
        config: what its pods run.
        lifecycle: what its author wants of its life.
        pods: what its author wants of its pods.
        observed: what is there.
        now: the moment.
        failures: losses that are not in the status yet.
        scheduling: who places its pods.
        admission: whether it may have pods.
        ending: how it ended, where it did.
        runs: whether it is to have pods for longer than a commit takes.
        wanted: roles that are to have pods now.
    """

    job: Job
    config: PodConfig
    lifecycle: LifecycleSpec
    pods: tuple[PodSettings, ...]
    observed: Observed
    now: Time
    failures: tuple[FailureRecord, ...]
    scheduling: SchedulingSpec
    admission: Admission
    ending: Ending | None
    runs: bool
    wanted: tuple[RoleTopology, ...]

    @property
    def roles(self) -> tuple[RoleTopology, ...]:
        """The roles with pods of their own."""
        return self.config.run.topology.with_own_pods

    @property
    def has_ended(self) -> bool:
        """Whether the status says already that the job ended."""
        return holds(self.job.status, "Complete") or holds(self.job.status, "Failed")

    @property
    def wants_gang(self) -> bool:
        """Whether its pods, those that are there included, are to be placed together."""
        gave_back = self.admission.claim.reason == GAVE_BACK
        asks = not self.has_ended and not self.lifecycle.suspend and not gave_back
        return asks or bool(self.observed.pods)

    @property
    def step(self) -> int:
        """Steps done."""
        return self.job.status.training.step if self.job.status.training else 0


def situation(job: Job, manifest: PPOJob, observed: Observed, now: Time) -> Situation:
    """Where a valid job is.

    A new ending is written down before the pods go, since it is known from them alone.
    """
    config = pod_config(job, manifest)
    status, lifecycle = job.status, manifest.spec.lifecycle
    failures = new_records(observed.pods, status, now)
    budget = manifest.spec.recovery.restarts_without_progress
    failure = judge(failures, status, budget)
    found = ending(status, observed.controller, failure, lifecycle, now)
    has_ended = holds(status, "Complete") or holds(status, "Failed")
    scheduling = manifest.spec.scheduling
    admitted = admission(job, scheduling, observed, now)
    runs = not has_ended and not lifecycle.suspend and admitted.may_have_pods
    wanted = wanted_roles(
        config.run.topology.with_own_pods,
        observed,
        runs=runs,
        commits=not has_ended or status.reason == "DeadlineExceeded",
    )
    return Situation(
        job=job,
        config=config,
        lifecycle=lifecycle,
        pods=manifest.spec.pods,
        observed=observed,
        now=now,
        failures=tuple(failures),
        scheduling=scheduling,
        admission=admitted,
        ending=found,
        runs=runs,
        wanted=wanted,
    )


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
    return PodConfig.of(config.model_copy(update={"spec": spec, "uid": uid}))
