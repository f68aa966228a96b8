"""What the operator and the controller report; nobody writes it by hand."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import Items, Section

Phase = Literal["Pending", "Starting", "Running", "Recovering", "Suspended", "Succeeded", "Failed"]
Text = Annotated[str, Field(max_length=32_768)]
Word = Annotated[str, Field(max_length=316)]


class Condition(Section):
    """One condition in the form of Kubernetes' own."""

    type: Word
    """Name of the claim."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    reason: Word
    """CamelCase word for programs."""

    message: Text = ""
    """Sentence for people."""

    last_transition_time: Word
    """When `status` last changed, RFC 3339."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """Generation the claim is about."""


class RoleStatus(Section):
    """Pods of one role."""

    name: Word
    """Role."""

    replicas: Annotated[int, Field(ge=0)]
    """Pods wanted."""

    ready: Annotated[int, Field(ge=0)]
    """Pods ready."""

    epoch: Annotated[int, Field(ge=0)] = 0
    """How often the role was started."""


class TrainingStatus(Section):
    """Progress, written by the job's controller."""

    epoch: Annotated[int, Field(ge=0)] = 0
    """The controller's epoch; never falls."""

    step: Annotated[int, Field(ge=0)] = 0
    """Steps done."""

    total_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps to do."""

    reward: float | None = None
    """Mean reward of the last step."""

    tokens_per_second: float | None = None
    """Tokens trained a second."""

    eta: Word | None = None
    """Time to the last step, such as 1h30m."""

    last_committed_step: Annotated[int, Field(ge=0)] | None = None
    """Step a restart goes on from."""


class PPOJobStatus(Section):
    """State of a job."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """Generation that was reconciled last."""

    phase: Phase = "Pending"
    """The state in one word."""

    conditions: Annotated[Items[Condition], Field(max_length=32)] = ()
    """The state in detail."""

    roles: Annotated[Items[RoleStatus], Field(max_length=8)] = ()
    """Pods by role."""

    training: TrainingStatus | None = None
    """Progress."""
