"""The resource itself: PPOJob of ppojob.dev/v1alpha1."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.agent import AgentSpec, InteractionSpec, ToolSpec
from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, SupervisedSpec
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.model import LoraSpec, ModelSpec
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
from ppojob_api.v1alpha1.training import CriticSpec, OptimizerSpec, TrainingSpec

Logger = Literal["console", "tensorboard", "wandb", "mlflow", "swanlab", "trackio", "clearml"]


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
    data: DataSpec
    algorithm: AlgorithmSpec
    optimizer: OptimizerSpec = OptimizerSpec()
    training: TrainingSpec = TrainingSpec()
    rollout: RolloutSpec = RolloutSpec()

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

    roles: RolesSpec = RolesSpec()

    pods: Annotated[Items[PodSettings], Field(max_length=16)] = ()
    """Platform settings of the pods; used on a cluster only."""

    scheduling: SchedulingSpec = SchedulingSpec()
    steps: StepsSpec
    checkpoint: CheckpointSpec = CheckpointSpec()
    lifecycle: LifecycleSpec = LifecycleSpec()

    loggers: Annotated[Items[Logger], Field(max_length=8)] = ("console",)
    """Where metrics go besides metrics.jsonl. verl: trainer.logger."""

    profile: ProfileSpec | None = None
    """Steps to trace; absent: none. It changes no number."""

    num_examine: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Samples shown per step and validation, in the controller's log and by `ppojob run`. verl:
    reward_manager num_examine."""

    timeouts: TimeoutsSpec = TimeoutsSpec()
    recovery: RecoverySpec = RecoverySpec()

    @property
    def code_maps(self) -> list[tuple[str, str, ConfigMapSource]]:
        """ConfigMaps with code: the field, the role whose pods mount it, and the ConfigMap."""
        return [
            (f"{field}.configMap", role, source.config_map)
            for field, role, source in self.code_sources
            if source.config_map is not None
        ]

    @property
    def code_sources(self) -> list[tuple[str, str, CodeSource]]:
        """Sources of custom code: the field, the role that runs it, and the source."""
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
        """Whether responses are scored, for training or as a metric only."""
        has_some = bool(self.rewards) or self.reward_model is not None
        return has_some or self.algorithm.learns_scores

    @property
    def is_own_reference(self) -> bool:
        """Whether a reference beside the policy is the policy without its adapters."""
        lora = self.model.lora
        return self.reference is None and lora is not None and not lora.modules_to_save

    @property
    def lora_of_reference(self) -> LoraSpec | None:
        """Adapters whose four-bit base is the reference; None if the reference is not quantized."""
        lora = self.model.lora
        return lora if lora and lora.base_type and self.reference is None else None

    @property
    def adapters_of_engines(self) -> LoraSpec | None:
        """Adapters that engines get beside the base weights; None if they get merged weights.

        The engines' base weights are not quantized, even if the trainer's are.
        """
        lora, is_beside = self.model.lora, self.rollout.adapters == "beside" and self.steps.trains
        return lora.model_copy(update={"base_type": None}) if lora and is_beside else None

    @property
    def phases_of_rows(self) -> int:
        """Number of generation phases in which a row must be finished."""
        ahead = self.rollout.max_staleness if self.steps.trains else 0
        if self.rollout.replay is not None or ahead == 0:
            return 1
        # Engines in separate pods start rows while the previous step trains.
        return ahead if self.roles.rollout is not None else ahead + 1

    @property
    def reference_paths(self) -> tuple[str, ...]:
        """Folders of the reference models, by number."""
        return (self.model.path,) if self.reference is None else self.reference.paths

    @property
    def critic_paths(self) -> tuple[str, ...]:
        """Folders of the critic and, if different, of its reference."""
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
        """The data that the job reads; with `generateOnly` the held-out files."""
        return self.data.of_validation if self.steps.generate_only else self.data

    @property
    def supervised(self) -> SupervisedSpec | None:
        """The SFT loss on demonstrations, if the job trains."""
        return self.algorithm.supervised if self.steps.trains else None

    @property
    def drops_responses(self) -> bool:
        """Whether responses with a failed reward function are excluded from training."""
        return any(reward.on_error == "drop" for reward in self.rewards)

    @property
    def leaves_responses_out(self) -> bool:
        """Whether some responses may be excluded from training."""
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

    status: PPOJobStatus | None = None
    """Written by the operator and the job's controller."""
