"""A role of one rank, for tests of what a rank does."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import tiny_jobs

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.well_known import RoleName
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.workers.batch_rows import BatchRows, GroupCosts

if TYPE_CHECKING:
    from ppojob_trainer.workers.actor_rollout import ActorRolloutWorker


def grpo_spec(prompts: int, samples: int) -> PPOJobSpec:
    return PPOJobSpec.model_validate(
        {
            "model": {"path": "models/m"},
            "data": {"train": [{"path": "a.parquet"}]},
            "algorithm": {"type": "grpo", "promptsPerStep": prompts, "samplesPerPrompt": samples},
            "steps": {"total": 1},
        }
    )


class Alone:
    """The link of a role of one rank: nobody is asked."""

    member, size = 0, 1

    def exchange(self, outgoing, incoming):
        assert not outgoing
        assert not incoming


def rows_alone(index: BatchIndex, mine: Experience) -> BatchRows:
    """All rows of a step, on the only rank."""
    costs = GroupCosts(100, share_prompts=True)
    return BatchRows(index, mine, Alone(), costs, ParallelDims(), Alone())


def ask(worker: "ActorRolloutWorker", method: object, request: object) -> Any:
    """Have a rank do what the controller would ask for."""
    (handler,) = [route.handler for route in worker.routes() if route.method is method]
    return handler(request)


def pod_of(folder: Path, role: RoleName, **changes: object) -> PodEnvironment:
    """The first pod of a role of a tiny job, whose files lie in a folder."""
    return PodEnvironment(
        config=tiny_jobs.config_of(folder, **changes),
        role=role,
        pod_index=0,
        address="127.0.0.1",
        keys=folder / "keys" / role,
        run_folder=folder,
        scratch=folder,
        address_book={},
        api_access=None,
        parent_pid=None,
    )
