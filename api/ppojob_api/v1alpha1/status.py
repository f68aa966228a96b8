"""What the operator and the controller report; nobody writes it by hand."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import Items, Section

Phase = Literal["Pending", "Starting", "Running", "Recovering", "Suspended", "Succeeded", "Failed"]
FailureKind = Literal["configuration", "application", "transient", "disruption"]
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

    restarts: Annotated[int, Field(ge=0)] = 0
    """Containers of the role that ended and were started again, disruptions aside."""

    ended: Annotated[int, Field(ge=0)] = 0
    """Ends of containers of the pods that are there, as counted last; a replaced pod has none."""

    losses: Annotated[int, Field(ge=0)] = 0
    """How often the role was lost at `lossesStep`, disruptions aside: its spent budget."""

    losses_step: Annotated[int, Field(ge=0)] = 0
    """Steps that were done when the role was lost last; another number begins a new count."""


class FailureRecord(Section):
    """How a container of the job ended; what is left of the evidence when the pod is gone."""

    pod: Word
    """Pod."""

    uid: Word
    """Of the pod."""

    restart: Annotated[int, Field(ge=0)]
    """The how manieth end of its container."""

    role: Word
    """Role of the pod."""

    kind: FailureKind
    """What it is a sign of, and so what is done about it."""

    reason: Word
    """The kubelet's word, or the exit status."""

    message: Text = ""
    """Sentence for people."""

    step: Annotated[int, Field(ge=0)] = 0
    """Steps that were done when it happened."""

    time: Word
    """When, RFC 3339."""


class TrainingStatus(Section):
    """Progress, written by the job's controller."""

    attempt: Annotated[int, Field(ge=0)] = 0
    """The controller's attempt; never falls."""

    step: Annotated[int, Field(ge=0)] = 0
    """Steps done."""

    total_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps to do."""

    reward: float | None = None
    """Mean reward of the last step."""

    loss: float | None = None
    """Loss of the last step, of supervised fine-tuning."""

    kl: float | None = None
    """KL divergence of the last step, from the reference or else from the rollout policy."""

    entropy: float | None = None
    """Mean entropy of the last step, in nats a token."""

    response_tokens: float | None = None
    """Mean length of a response in the last step."""

    validation: float | None = None
    """Mean score of the last validation."""

    tokens_per_second: float | None = None
    """Tokens trained a second."""

    eta: Word | None = None
    """Time to the last step, such as 1h30m."""

    stage: Word = ""
    """Starting, Training, Recovering or Finishing; empty: the controller made way for another."""

    last_checkpoint_step: Annotated[int, Field(ge=0)] | None = None
    """Step a restart goes on from."""


class PPOJobStatus(Section):
    """State of a job."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """Generation that was reconciled last."""

    phase: Phase = "Pending"
    """The state in one word."""

    reason: Word = ""
    """Why it is not further, or how it ended: the reason of the condition that says so."""

    message: Text = ""
    """The same as a sentence."""

    conditions: Annotated[Items[Condition], Field(max_length=32)] = ()
    """The state in detail."""

    roles: Annotated[Items[RoleStatus], Field(max_length=8)] = ()
    """Pods by role."""

    restarts: Annotated[int, Field(ge=0)] = 0
    """Restarts of all roles."""

    failures: Annotated[Items[FailureRecord], Field(max_length=8)] = ()
    """The last ends of containers, the last of each role among them; the latest last."""

    image: Text = ""
    """Image of the pods: that of the job, or the operator's when the pods were made. An upgraded
    operator changes the image of no running job."""

    start_time: Word | None = None
    """When the pods were made first, RFC 3339."""

    finish_time: Word | None = None
    """When the job ended, RFC 3339."""

    training: TrainingStatus | None = None
    """Progress."""
