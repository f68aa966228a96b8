"""Models in pods of their own: ranks that compute on rows, or texts, of others."""

from collections.abc import Iterator
from contextlib import contextmanager

from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.workers.critic import open_critic
from ppojob_trainer.workers.model_stages import ModelStages
from ppojob_trainer.workers.policy import open_reference
from ppojob_trainer.workers.rank_start import open_channels, open_role_world
from ppojob_trainer.workers.reward_model import open_reward_model_worker
from ppojob_trainer.workers.worker import WorkerFactory


@contextmanager
def open_reference_worker(
    environment: PodEnvironment, rank: RankEnvironment, _keys: KeyRing
) -> Iterator[ModelStages]:
    """The reference in pods of its own; its model lives as long as the block."""
    with open_role_world(environment, rank) as world:
        reference = open_reference(environment.config.spec, world)
        channels = open_channels(environment, world)
        yield ModelStages(environment.run_folder, channels, frozen={"reference": reference})


@contextmanager
def open_critic_worker(
    environment: PodEnvironment, rank: RankEnvironment, _keys: KeyRing
) -> Iterator[ModelStages]:
    """The critic in pods of its own; its model lives as long as the block."""
    with open_role_world(environment, rank) as world:
        critic = open_critic(environment.config.spec, world)
        channels = open_channels(environment, world)
        yield ModelStages(environment.run_folder, channels, trained={"critic": critic})


GUESTS: dict[str, WorkerFactory] = {
    "reference": open_reference_worker,
    "critic": open_critic_worker,
    "rewardModel": open_reward_model_worker,
}
"""What builds the worker of each of these roles."""
