"""The roles of a job and the pods of each."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import Count, Items, Section

Replicas = Annotated[int, Field(ge=1, le=4_096)]
Gpus = Annotated[int, Field(ge=0, le=64)]
Ranks = Annotated[int, Field(ge=1, le=256)]
Threads = Annotated[int, Field(ge=1, le=1_024)]
Offloaded = Literal["weights", "optimizer", "activations"]


class TrainingParallelism(Section):
    """Layout of a trained model over the ranks of its role."""

    data_shard: Count | None = None
    """FSDP shards, each split over `sequence` ranks; absent: the ranks divided by `sequence`,
    `tensor` and `pipeline`. Fewer: the ranks hold copies of the model (HSDP). verl:
    fsdp_config.fsdp_size, -1."""

    sequence: Count = 1
    """Sequence parallelism (Ulysses): ranks that share the tokens of a micro-batch; a divisor of
    the query heads. verl: ulysses_sequence_parallel_size, 1."""

    tensor: Count = 1
    """Tensor parallelism: ranks that share each matrix product, the heads and the vocabulary of a
    model; a divisor of its query heads, and a divisor or a multiple of its key heads."""

    pipeline: Count = 1
    """Pipeline parallelism: ranks that each have a run of a model's layers, and pass micro-batches
    on (1F1B); at most its layers. More micro-batches per mini-batch mean less waiting."""

    expert: Count = 1
    """Expert parallelism: ranks that share the experts of MoE layers, to which tokens
    travel; a divisor of dataShard x sequence x tensor, and of the experts. With `tensor`
    experts stay whole, as with verl's expert_tensor_parallel_size of 1. verl:
    megatron.expert_model_parallel_size, 1."""


class DevicePods(Section):
    """Pods whose ranks compute on GPUs or CPUs."""

    replicas: Replicas = 1
    """Number of pods. verl: trainer.nnodes, 1."""

    gpus_per_replica: Gpus = 0
    """GPUs per pod; 0: CPU. verl: trainer.n_gpus_per_node."""

    ranks_per_replica: Ranks | None = None
    """Processes per pod; absent: one per GPU, 1 on CPU."""

    threads_per_rank: Threads | None = None
    """Threads per process; absent: cpu / ranksPerReplica if cpu is given, else 1. Part of the
    resolved configuration, because it changes the order of sums."""

    cpu: Threads | None = None
    """CPU cores of a pod."""


class RolePods(DevicePods):
    """Pods of a role whose ranks share a model."""

    parallelism: TrainingParallelism = TrainingParallelism()


class TrainedPods(RolePods):
    """Pods of a role whose ranks train a model."""

    offload: Annotated[Items[Offloaded], Field(max_length=3)] = ()
    """What of the model is in host memory instead of GPU memory. weights, with gradients: while
    another model or the engine works; optimizer: the moments, except those of the weight that is
    updated; activations: inputs of layers until their backward pass, with
    training.activationCheckpointing. It changes no number. verl: fsdp_config.param_offload and
    optimizer_offload, model.enable_activation_offload."""


class ColocatableRole(RolePods):
    """A role in another role's ranks or in its own pods; one field decides."""

    colocate_with: Literal["actorRollout", "none"] = "actorRollout"
    """The role whose pods and ranks it shares; none: its own pods, and only then pod settings have
    an effect. verl: always colocated."""


class FrozenRole(ColocatableRole):
    """A role whose ranks hold a frozen model."""

    offload: Annotated[Items[Literal["weights"]], Field(max_length=1)] = ()
    """weights: they are in host memory instead of GPU memory while another model or the engine
    works there. It changes no number. verl: ref.fsdp_config.param_offload."""


class CriticRole(ColocatableRole, TrainedPods):
    """The role of the model of spec.critic."""


class CodePods(Section):
    """Pods that run your code and hold no model."""

    replicas: Replicas = 1
    """Number of pods."""

    cpu: Threads = 1
    """CPU cores per pod, and processes in it that run that code. verl: reward.num_workers."""


class RetrieverPods(Section):
    """Pods that search a corpus, each with the whole index in memory."""

    replicas: Replicas = 1
    """Number of pods."""

    cpu: Threads = 1
    """CPU cores per pod, and threads of its rank."""


class JudgePods(Section):
    """Pods that each serve the whole model of `judge`."""

    replicas: Replicas = 1
    """Number of pods."""

    gpus_per_replica: Gpus = 0
    """GPUs per pod, with tensor parallelism over them; 0: CPU."""

    cpu: Threads = 1
    """CPU cores per pod, and on CPU threads of its server."""


class RolesSpec(Section):
    """Pods of each role; the controller has no settings."""

    actor_rollout: TrainedPods = TrainedPods()
    """The policy: it is trained here, and generates here unless `rollout` is given."""

    rollout: DevicePods | None = None
    """Separate pods for generation, without a trainer; absent: engines in the ranks of
    actorRollout, which alternate with training."""

    reference: FrozenRole | None = None
    """The frozen model of the KL; absent: colocated with actorRollout if the KL needs one."""

    critic: CriticRole | None = None
    """The model of spec.critic; absent: colocated with actorRollout if the algorithm has one."""

    reward_model: FrozenRole | None = None
    """The model of spec.rewardModel; absent: colocated with actorRollout if there is one."""

    reward: CodePods = CodePods()
    """Where responses are scored."""

    tools: CodePods = CodePods()
    """Where the tools and user simulators of `agent` run."""

    retriever: RetrieverPods = RetrieverPods()
    """Where the corpus of `agent.retriever` is searched."""

    judge: JudgePods = JudgePods()
    """Where the model of spec.judge is served."""
