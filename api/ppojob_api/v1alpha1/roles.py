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
    """FSDP shards, each cut over `sequence` ranks; absent: what the ranks, `sequence`, `tensor` and
    `pipeline` leave. Fewer: the ranks hold copies of the model (HSDP).
    verl: fsdp_config.fsdp_size, -1."""

    sequence: Count = 1
    """Ranks that share the tokens of a micro-batch (Ulysses); a divisor of the query heads.
    verl: ulysses_sequence_parallel_size, 1."""

    tensor: Count = 1
    """Ranks that share each matrix product, the heads and the vocabulary of a model; a divisor of
    its key heads."""

    pipeline: Count = 1
    """Ranks that each have a run of a model's layers, and pass micro-batches on (1F1B); at most its
    layers. They wait for each other the less, the more micro-batches a mini-batch has."""

    expert: Count = 1
    """Ranks that share the experts of a mixture's layers, to which tokens travel; a divisor of
    dataShard x sequence x tensor, and of the experts. With tensor experts are whole, as by verl's
    expert_tensor_parallel_size of 1. verl: megatron.expert_model_parallel_size, 1."""


class DevicePods(Section):
    """Pods whose ranks compute on GPUs, or on processors."""

    replicas: Replicas = 1
    """Pods. verl: trainer.nnodes, 1."""

    gpus_per_replica: Gpus = 0
    """GPUs of a pod; 0: CPU. verl: trainer.n_gpus_per_node."""

    ranks_per_replica: Ranks | None = None
    """Processes of a pod; absent: one a GPU, 1 on CPU."""

    threads_per_rank: Threads | None = None
    """Threads of a process; absent: cpu / ranksPerReplica where cpu is given, else 1.
    Part of the resolved configuration, since it changes the order of sums."""

    cpu: Threads | None = None
    """CPU cores of a pod."""


class RolePods(DevicePods):
    """Pods of a role whose ranks share a model."""

    parallelism: TrainingParallelism = TrainingParallelism()
    """Layout over the ranks."""


class TrainedPods(RolePods):
    """Pods of a role whose ranks train a model."""

    offload: Annotated[Items[Offloaded], Field(max_length=3)] = ()
    """What of the model lies in the host's memory instead of the GPU's. weights, with gradients:
    while another model or the engine works; optimizer: the moments, but those of the weight that is
    updated; activations: inputs of layers until their backward pass, with
    training.activationCheckpointing. No number changes.
    verl: fsdp_config.param_offload and optimizer_offload, model.enable_activation_offload."""


class ColocatableRole(RolePods):
    """A role that lives in another's ranks or in pods of its own; one field says which."""

    colocate_with: Literal["actorRollout", "none"] = "actorRollout"
    """In whose pods and ranks it lives; none: pods of its own, and only then the settings of pods
    have an effect. verl: always colocated."""


class FrozenRole(ColocatableRole):
    """A role whose ranks hold a model that nobody trains."""

    offload: Annotated[Items[Literal["weights"]], Field(max_length=1)] = ()
    """weights: they lie in the host's memory instead of the GPU's while another model or the
    engine works there. It changes no number. verl: ref.fsdp_config.param_offload."""


class CriticRole(ColocatableRole, TrainedPods):
    """The role of the model of spec.critic."""


class CodePods(Section):
    """Pods that run users' code and hold no model."""

    replicas: Replicas = 1
    """Pods."""

    cpu: Threads = 1
    """CPU cores of a pod, and processes in it that run that code. verl: reward.num_workers."""


class RetrieverPods(Section):
    """Pods that search a corpus, each with the whole index in its memory."""

    replicas: Replicas = 1
    """Pods."""

    cpu: Threads = 1
    """CPU cores of a pod, and threads of its rank."""


class JudgePods(Section):
    """Pods that each serve the whole model of `judge`."""

    replicas: Replicas = 1
    """Pods."""

    gpus_per_replica: Gpus = 0
    """GPUs of a pod, which share each matrix product of its model; 0: CPU."""

    cpu: Threads = 1
    """CPU cores of a pod, and on CPU threads of its server."""


class RolesSpec(Section):
    """The roles; the controller has no settings."""

    actor_rollout: TrainedPods = TrainedPods()
    """The policy, trained here, and generating here unless `rollout` is given."""

    rollout: DevicePods | None = None
    """Pods of its own for generation, without a trainer; absent: engines in the ranks of
    actorRollout, which take turns with training."""

    reference: FrozenRole | None = None
    """The frozen model of the KL; absent: colocated with actorRollout when the KL needs one."""

    critic: CriticRole | None = None
    """The model of spec.critic; absent: colocated with actorRollout when the algorithm has one."""

    reward_model: FrozenRole | None = None
    """The model of spec.rewardModel; absent: colocated with actorRollout when there is one."""

    reward: CodePods = CodePods()
    """Where responses are scored."""

    tools: CodePods = CodePods()
    """Where the tools of `agent` are called, and its users speak."""

    retriever: RetrieverPods = RetrieverPods()
    """Where the corpus of `agent.retriever` is searched."""

    judge: JudgePods = JudgePods()
    """Where the model of spec.judge is served."""
