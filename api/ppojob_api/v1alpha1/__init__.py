"""Version v1alpha1 of the resource: its public names."""

from ppojob_api.v1alpha1.algorithm import (
    AlgorithmSpec,
    AlgorithmType,
    GrpoSpec,
    KlEstimator,
    KlSpec,
    LossAggregation,
    PolicyLossSpec,
    PpoSpec,
    ReinforcePlusPlusSpec,
)
from ppojob_api.v1alpha1.critic import CriticOptimizerSpec, CriticSpec
from ppojob_api.v1alpha1.job import Logger, Metadata, PPOJob, PPOJobSpec
from ppojob_api.v1alpha1.roles import (
    ColocatableRole,
    RewardRole,
    RolePods,
    RolesSpec,
    TrainingParallelism,
)
from ppojob_api.v1alpha1.rollout import (
    ConfigMapSource,
    RewardModelSpec,
    RewardSource,
    RewardSpec,
    RolloutParallelism,
    RolloutSpec,
    ValidationSamplingSpec,
)
from ppojob_api.v1alpha1.schedule import (
    BestCommitSpec,
    CheckpointSpec,
    LifecycleSpec,
    StepsSpec,
    TimeoutsSpec,
    VolumeSpec,
)
from ppojob_api.v1alpha1.scheduling import (
    KueueSpec,
    SchedulingSpec,
    SchedulingType,
    VolcanoSpec,
)
from ppojob_api.v1alpha1.status import (
    Condition,
    Phase,
    PPOJobStatus,
    RoleStatus,
    TrainingStatus,
)
from ppojob_api.v1alpha1.training import (
    DataFile,
    DataSpec,
    ModelSpec,
    OptimizerSpec,
    TrainingSpec,
)

__all__ = [
    "AlgorithmSpec",
    "AlgorithmType",
    "BestCommitSpec",
    "CheckpointSpec",
    "ColocatableRole",
    "Condition",
    "ConfigMapSource",
    "CriticOptimizerSpec",
    "CriticSpec",
    "DataFile",
    "DataSpec",
    "GrpoSpec",
    "KlEstimator",
    "KlSpec",
    "KueueSpec",
    "LifecycleSpec",
    "Logger",
    "LossAggregation",
    "Metadata",
    "ModelSpec",
    "OptimizerSpec",
    "PPOJob",
    "PPOJobSpec",
    "PPOJobStatus",
    "Phase",
    "PolicyLossSpec",
    "PpoSpec",
    "ReinforcePlusPlusSpec",
    "RewardModelSpec",
    "RewardRole",
    "RewardSource",
    "RewardSpec",
    "RolePods",
    "RoleStatus",
    "RolesSpec",
    "RolloutParallelism",
    "RolloutSpec",
    "SchedulingSpec",
    "SchedulingType",
    "StepsSpec",
    "TimeoutsSpec",
    "TrainingParallelism",
    "TrainingSpec",
    "TrainingStatus",
    "ValidationSamplingSpec",
    "VolcanoSpec",
    "VolumeSpec",
]
