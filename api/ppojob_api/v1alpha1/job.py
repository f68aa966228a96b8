"""The resource itself: PPOJob of ppojob.dev/v1alpha1."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.agent import AgentSpec, InteractionSpec, ToolSpec
from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, SupervisedSpec
from ppojob_api.v1alpha1.pod_settings import PodSettings
from ppojob_api.v1alpha1.reference import ReferenceSpec
from ppojob_api.v1alpha1.roles import RolesSpec
from ppojob_api.v1alpha1.rollout import (
    JudgeSpec,
    RewardModelSpec,
    RewardSpec,
    RolloutSpec,
    SandboxSpec,
)
from ppojob_api.v1alpha1.schedule import (
    CheckpointSpec,
    LifecycleSpec,
    ProfileSpec,
    RecoverySpec,
    StepsSpec,
    TimeoutsSpec,
)
from ppojob_api.v1alpha1.scheduling import SchedulingSpec
from ppojob_api.v1alpha1.section import CodeSource, ConfigMapSource, Items, Section, Seed
from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_api.v1alpha1.training import (
    CriticSpec,
    DataSpec,
    LoraSpec,
    ModelSpec,
    OptimizerSpec,
    TrainingSpec,
)

Logger = Literal["console", "tensorboard", "wandb", "mlflow", "swanlab", "trackio"]


class Metadata(Section):
    """The part of a Kubernetes object's metadata that a job reads."""

    name: Annotated[str, Field(max_length=253)]
    """Name of the job; the names of its pods begin with it."""

    namespace: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    """Namespace."""

    uid: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Set by the cluster or the runner, never by the author of a manifest."""

    labels: Annotated[dict[str, str], Field(max_length=256)] = Field(default_factory=dict)
    """Labels."""

    annotations: Annotated[dict[str, str], Field(max_length=256)] = Field(default_factory=dict)
    """Annotations."""


class PPOJobSpec(Section):
    """What to train, on which data, how, and where."""

    seed: Seed = 0
    """Seed of all random numbers. verl: data.seed and actor.data_loader_seed."""

    model: ModelSpec
    """The initial policy."""

    data: DataSpec
    """Prompts."""

    algorithm: AlgorithmSpec
    """The training objective."""

    optimizer: OptimizerSpec = OptimizerSpec()
    """Optimizer and learning rate."""

    training: TrainingSpec = TrainingSpec()
    """How forward and backward are computed."""

    rollout: RolloutSpec = RolloutSpec()
    """How responses are generated."""

    agent: AgentSpec | None = None
    """Multi-turn rollouts with tools or a user simulator; absent: each row is one response."""

    reference: ReferenceSpec | None = None
    """Another model as the reference of the KL or as the teacher, or several by data source;
    absent: the policy before training."""

    critic: CriticSpec | None = None
    """The second trained model: the value model of type ppo, the process reward model of type
    prime; absent: the defaults if the algorithm has one."""

    rewards: Annotated[Items[RewardSpec], Field(max_length=32)] = ()
    """Reward functions. Empty: the reward model alone if there is one, else each row's data source
    selects a built-in reward function; with algorithm.type: distillation nothing is scored."""

    reward_model: RewardModelSpec | None = None
    """A model that scores responses; its score is added to those of `rewards`."""

    judge: JudgeSpec | None = None
    """A model for LLM-as-a-judge rewards, served by the job."""

    sandbox: SandboxSpec = SandboxSpec()
    """Sandbox for generated code, used by the reward functions that run it."""

    roles: RolesSpec = RolesSpec()
    """Pods of each role."""

    pods: Annotated[Items[PodSettings], Field(max_length=16)] = ()
    """Platform settings of the pods; used on a cluster only."""

    scheduling: SchedulingSpec = SchedulingSpec()
    """Gang scheduling and queues."""

    steps: StepsSpec
    """Length of training, and validations."""

    checkpoint: CheckpointSpec = CheckpointSpec()
    """Checkpoints."""

    lifecycle: LifecycleSpec = LifecycleSpec()
    """Start, stop and clean-up."""

    loggers: Annotated[Items[Logger], Field(max_length=8)] = ("console",)
    """Where metrics go besides metrics.jsonl. verl: trainer.logger."""

    profile: ProfileSpec | None = None
    """Steps to trace; absent: none. It changes no number."""

    num_examine: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Samples shown per step and validation, in the controller's log and by `ppojob run`. verl:
    reward_manager num_examine."""

    timeouts: TimeoutsSpec = TimeoutsSpec()
    """When a silent process counts as failed."""

    recovery: RecoverySpec = RecoverySpec()
    """How often lost processes are restarted."""

    @property
    def code_maps(self) -> list[tuple[str, str, ConfigMapSource]]:
        """ConfigMaps that hold code: the field, the role whose pods mount it, and which one."""
        return [
            (f"{field}.configMap", role, source.config_map)
            for field, role, source in self.code_sources
            if source.config_map is not None
        ]

    @property
    def code_sources(self) -> list[tuple[str, str, CodeSource]]:
        """Where code of the job's author comes from: the field, the role that runs it, and it."""
        lists: list[tuple[str, str, Sequence[RewardSpec | ToolSpec | InteractionSpec]]] = [
            ("spec.rewards", "reward", self.rewards)
        ]
        if self.agent is not None:
            lists += [
                ("spec.agent.tools", "tools", self.agent.tools),
                ("spec.agent.interactions", "tools", self.agent.interactions),
            ]
        found: list[tuple[str, str, CodeSource]] = [
            (f"{field}[{index}].source", role, one.source)
            for field, role, items in lists
            for index, one in enumerate(items)
            if one.source is not None
        ]
        sampler, algorithm = self.data.sampler, self.algorithm
        if sampler is not None and sampler.source is not None:
            found.append(("spec.data.sampler.source", "controller", sampler.source))
        own = {"custom": algorithm.custom, "policyLoss.custom": algorithm.policy_loss.custom}
        return found + [
            (f"spec.algorithm.{field}.source", "actorRollout", one.source)
            for field, one in own.items()
            if one is not None
        ]

    @property
    def is_scored(self) -> bool:
        """Whether responses are scored: where nothing is learnt of that, rewards may measure."""
        has_some = bool(self.rewards) or self.reward_model is not None
        return has_some or self.algorithm.learns_scores

    @property
    def is_own_reference(self) -> bool:
        """Whether a reference beside the policy is the policy without its adapters."""
        lora = self.model.lora
        return self.reference is None and lora is not None and not lora.modules_to_save

    @property
    def lora_of_reference(self) -> LoraSpec | None:
        """Those whose base in four bits a reference of its own is; None where it is plain."""
        lora = self.model.lora
        return lora if lora and lora.base_type and self.reference is None else None

    @property
    def adapters_of_engines(self) -> LoraSpec | None:
        """Adapters that engines compute with; None where weights are all that they get.

        The weights beside them are plain, also where the trainer has a base in four bits.
        """
        lora, is_beside = self.model.lora, self.rollout.adapters == "beside" and self.steps.trains
        return lora.model_copy(update={"base_type": None}) if lora and is_beside else None

    @property
    def phases_of_rows(self) -> int:
        """Phases of generation that a row has to end in; with one it is drawn at once."""
        ahead = self.rollout.max_staleness if self.steps.trains else 0
        if self.rollout.replay is not None or ahead == 0:
            return 1
        # Engines in pods of their own begin with rows when the step before them trains.
        return ahead if self.roles.rollout is not None else ahead + 1

    @property
    def reference_paths(self) -> tuple[str, ...]:
        """Folders of the models of the reference, by their numbers."""
        return (self.model.path,) if self.reference is None else self.reference.paths

    @property
    def critic_paths(self) -> tuple[str, ...]:
        """Folders of the critic and, if another, of what it is compared with."""
        if self.critic is None:
            return ()
        path = self.critic.path or self.model.path
        return tuple(dict.fromkeys((path, self.critic.reference_path or path)))

    @property
    def compared_sources(self) -> frozenset[str] | None:
        """Data sources of the rows that the reference reads; None for all."""
        if self.reference is None or self.steps.generate_only:
            return None
        return self.reference.data_sources

    @property
    def prompts(self) -> DataSpec:
        """What is read of `data`; a job that only generates draws from the held-out files."""
        if not self.steps.generate_only:
            return self.data
        draws = {"train": self.data.validation, "max_train_rows": self.data.max_validation_rows}
        return self.data.of_validation.model_copy(update={**draws, "validation": ()})

    @property
    def supervised(self) -> SupervisedSpec | None:
        """What is learnt of given answers beside what is drawn, in a job that trains."""
        return self.algorithm.supervised if self.steps.trains else None

    @property
    def drops_responses(self) -> bool:
        """Whether responses at which a reward function fails are left out of training."""
        return any(reward.on_error == "drop" for reward in self.rewards)

    @property
    def leaves_responses_out(self) -> bool:
        """Whether some responses may be left out of training."""
        return self.drops_responses or self.algorithm.group_filter is not None


class PPOJob(Section):
    """A reinforcement-learning post-training job of a language model."""

    api_version: Literal["ppojob.dev/v1alpha1"]
    """Served version."""

    kind: Literal["PPOJob"]
    """Always PPOJob."""

    metadata: Metadata
    """Name, namespace, labels."""

    spec: PPOJobSpec
    """What to train, on which data, how, and where."""

    status: PPOJobStatus | None = None
    """Written by the operator and the job's controller."""
