"""Status of a job, written by the operator and the job's controller."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import Items, Section

Phase = Literal["Pending", "Starting", "Running", "Recovering", "Suspended", "Succeeded", "Failed"]
FailureKind = Literal["configuration", "application", "transient", "disruption"]
Text = Annotated[str, Field(max_length=32_768)]
Word = Annotated[str, Field(max_length=316)]


class Condition(Section):
    """One condition, in Kubernetes' form."""

    type: Word
    """Type of the condition."""

    status: Literal["True", "False", "Unknown"]
    """Whether it is true."""

    reason: Word
    """CamelCase reason for programs."""

    message: Text = ""
    """Message for people."""

    last_transition_time: Word
    """When `status` last changed, RFC 3339."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """Generation that the condition is about."""


class RoleStatus(Section):
    """Pods of one role."""

    name: Word
    """Role."""

    replicas: Annotated[int, Field(ge=0)]
    """Pods wanted."""

    ready: Annotated[int, Field(ge=0)]
    """Pods ready."""

    restarts: Annotated[int, Field(ge=0)] = 0
    """Restarted containers of the role, without disruptions."""

    ended: Annotated[int, Field(ge=0)] = 0
    """Container terminations of the current pods at the last reconcile."""

    losses: Annotated[int, Field(ge=0)] = 0
    """Used restart budget: how often the role was lost at `lossesStep`, without disruptions."""

    losses_step: Annotated[int, Field(ge=0)] = 0
    """Completed steps when the role was last lost; another number starts a new count."""


class FailureRecord(Section):
    """How a container of the job failed; kept after the pod is deleted."""

    pod: Word
    """Pod."""

    uid: Word
    """Uid of the pod."""

    restart: Annotated[int, Field(ge=0)]
    """Number of this termination of its container."""

    role: Word
    """Role of the pod."""

    kind: FailureKind
    """Class of the failure, which decides what the operator does."""

    reason: Word
    """The kubelet's reason, or the exit status."""

    message: Text = ""
    """Message for people."""

    step: Annotated[int, Field(ge=0)] = 0
    """Completed steps when it happened."""

    time: Word
    """When, RFC 3339."""


class TrainingStatus(Section):
    """Progress, written by the job's controller."""

    attempt: Annotated[int, Field(ge=0)] = 0
    """The controller's attempt; it never decreases."""

    step: Annotated[int, Field(ge=0)] = 0
    """Completed steps."""

    total_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in total."""

    reward: float | None = None
    """Mean reward of the last step."""

    loss: float | None = None
    """Loss of the last step, of supervised fine-tuning."""

    kl: float | None = None
    """KL of the last step: to the reference, or without one to the rollout policy."""

    entropy: float | None = None
    """Mean entropy of the last step, in nats per token."""

    response_tokens: float | None = None
    """Mean length of a response in the last step."""

    validation: float | None = None
    """Mean score of the last validation."""

    tokens_per_second: float | None = None
    """Tokens trained per second."""

    eta: Word | None = None
    """Time to the last step, such as 1h30m."""

    stage: Word = ""
    """Starting, Training, Recovering or Finishing; empty: a newer controller has taken over."""

    last_checkpoint_step: Annotated[int, Field(ge=0)] | None = None
    """Step from which a restart resumes."""


class PPOJobStatus(Section):
    """State of a job."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """Generation that was last reconciled."""

    phase: Phase = "Pending"
    """Phase of the job."""

    reason: Word = ""
    """Reason of the most important condition: why the job does not run, or how it ended."""

    message: Text = ""
    """Message of the same condition."""

    conditions: Annotated[Items[Condition], Field(max_length=32)] = ()
    """Conditions."""

    roles: Annotated[Items[RoleStatus], Field(max_length=8)] = ()
    """Pods by role."""

    restarts: Annotated[int, Field(ge=0)] = 0
    """Restarts of all roles."""

    failures: Annotated[Items[FailureRecord], Field(max_length=8)] = ()
    """The latest container failures, including the last of each role; the newest is last."""

    image: Text = ""
    """Image of the pods: that of the job, or the operator's when the pods were created. An upgraded
    operator does not change the image of running jobs."""

    start_time: Word | None = None
    """When the pods were first created, RFC 3339."""

    finish_time: Word | None = None
    """When the job ended, RFC 3339."""

    training: TrainingStatus | None = None
    """Progress."""
