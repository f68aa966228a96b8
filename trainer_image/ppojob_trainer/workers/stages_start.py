"""Which models live in a rank, and loading them: one answer for owners of rows and for guests."""

from ppojob_api.well_known import RoleName
from ppojob_trainer.parallel.world import World
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.workers.critic import open_critic
from ppojob_trainer.workers.model_stages import ModelStages, StageModel, TrainedModel
from ppojob_trainer.workers.policy import open_reference
from ppojob_trainer.workers.rank_start import open_channels


def lives_here(environment: PodEnvironment, name: RoleName) -> bool:
    """Whether a role's model is in the ranks of this pod: its own, or those it lives with."""
    topology = environment.config.topology
    if not topology.has(name):
        return False
    role = topology.role(name)
    return (role.colocated_with or role.role) == environment.role


def open_stages(
    environment: PodEnvironment, world: World, trained: dict[str, TrainedModel] | None = None
) -> ModelStages:
    """Load the reference and the critic where they live here.

    Args:
        environment: of the pod.
        world: of the rank's role.
        trained: models that have been loaded already.
    """
    spec = environment.config.spec
    trained = dict(trained or {})
    frozen: dict[str, StageModel] = {}
    if lives_here(environment, "reference"):
        frozen["reference"] = open_reference(spec, world)
    if lives_here(environment, "critic"):
        trained["critic"] = open_critic(spec, world)
    return ModelStages(
        environment.run_folder, open_channels(environment, world), frozen=frozen, trained=trained
    )
