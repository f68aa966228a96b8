"""What is seen of a job when somebody asks why it does not go on: plain facts of one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ppojob_operator.state import ControllerReport, Job, Node, Pod, Time


@dataclass(frozen=True, slots=True)
class ToldWarning:
    """A warning that somebody has written as an Event about the object of this kind and name."""

    kind: str
    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SeenLease:
    """The Lease of the operator.

    Attributes:
        holder: replica that leads; empty: none.
        renewed: when it said so last; None: never.
    """

    holder: str
    renewed: Time | None
    seconds: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A job and its surroundings.

    Attributes:
        pods: that are there; None: they may not be seen.
        nodes: of the pods, as far as they may be seen.
        warnings: about the job's objects, the latest last.
        lease: of the operator; None: there is none, or it may not be seen.
        progressed: when the controller last told of progress; None: never.
        reports: what the supervisors of pods say, by uid of the pod.
        hidden: what could not be looked at, and why, a line each.
    """

    job: Job
    now: Time
    pods: tuple[Pod, ...] | None = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    warnings: tuple[ToldWarning, ...] = ()
    lease: SeenLease | None = None
    progressed: Time | None = None
    reports: Mapping[str, ControllerReport] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
