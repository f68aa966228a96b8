"""Models in pods of their own: ranks that compute on rows, or texts, of others."""

from collections.abc import Iterator
from contextlib import contextmanager

from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.workers.model_stages import ModelStages
from ppojob_trainer.workers.rank_start import open_role_world
from ppojob_trainer.workers.reward_model import open_reward_model_worker
from ppojob_trainer.workers.stages_start import open_stages
from ppojob_trainer.workers.worker import WorkerFactory


@contextmanager
def open_standalone_model(
    environment: PodEnvironment, rank: RankEnvironment, _keys: KeyRing
) -> Iterator[ModelStages]:
    """A reference or a critic in pods of its own; its model lives as long as the block."""
    with open_role_world(environment, rank) as world:
        yield open_stages(environment, world)


STANDALONE_MODELS: dict[str, WorkerFactory] = {
    "reference": open_standalone_model,
    "critic": open_standalone_model,
    "rewardModel": open_reward_model_worker,
}
"""What builds the worker of each of these roles."""
