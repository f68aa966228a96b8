"""Which models live in a rank, and loading them: one answer for all roles."""

from collections.abc import Callable

from ppojob_trainer.parallel.world import World
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.workers.critic import open_critic
from ppojob_trainer.workers.model_stages import ModelStages, StageModel, TrainedModel
from ppojob_trainer.workers.policy import Policy
from ppojob_trainer.workers.rank_start import open_channels
from ppojob_trainer.workers.reference import BaseReference, FollowingReference, Reference


def open_stages(
    environment: PodEnvironment,
    world: World,
    policy: Policy | None = None,
    make_room: Callable[[], None] = lambda: None,
) -> ModelStages:
    """Load the reference and the critic where they live here.

    Args:
        environment: of the pod.
        world: of the rank's role.
        policy: where it lives here, as it was loaded.
        make_room: called before any of the models computes.
    """
    spec = environment.config.spec
    trained: dict[str, TrainedModel] = {} if policy is None else {"policy": policy}
    frozen: dict[str, StageModel] = {}
    living = environment.config.topology.living_in(environment.role)
    following: FollowingReference | None = None
    if "reference" in living:
        refresh = spec.algorithm.kl.reference_refresh
        if refresh is not None:
            assert policy is not None, "a reference that follows lives with the policy"
            following = FollowingReference(spec, world, refresh, policy.learner)
        if policy is not None and spec.model.lora is not None:
            reference: Reference = BaseReference(spec, world, policy.learner)
        else:
            reference = following or Reference(spec, world)
        frozen["reference"] = reference
        if spec.algorithm.kl.is_full and policy is not None:
            policy.reference = reference
    if "critic" in living:
        trained["critic"] = open_critic(spec, world)
    return ModelStages(
        environment.run_folder,
        open_channels(environment, world),
        frozen=frozen,
        trained=trained,
        following=following,
        make_room=make_room,
    )
