from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import training_cases
from lone_role import pod_of, rows_alone

from ppojob_trainer.models.load import load_model
from ppojob_trainer.parallel.world import World
from ppojob_trainer.pod_environment import RankEnvironment
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rpc.keys import read_key_ring, write_key_folders
from ppojob_trainer.workers.actor_rollout import open_actor_rollout_worker
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.learner import Learner


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    """Undoes for the tests behind this one what a rank sets for its whole process."""
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)


@pytest.fixture
def open_worker(torch_as_it_was: None, tmp_path: Path) -> Callable[..., Any]:
    tiny_models.save_policy(tmp_path / "model", dropout=0.1)
    write_key_folders(tmp_path / "keys", ("actorRollout",))
    keys = read_key_ring(tmp_path / "keys" / "actorRollout", "actorRollout")
    rank = RankEnvironment(rank=0, local_rank=0, attempt=1)

    def opened(**changes: object) -> Any:
        return open_actor_rollout_worker(pod_of(tmp_path, "actorRollout", **changes), rank, keys)

    return opened


@pytest.fixture
def copies() -> Callable[..., dict[str, torch.Tensor]]:
    return lambda tensors: {name: tensor.clone() for name, tensor in dict(tensors).items()}


@pytest.fixture
def is_equal() -> Callable[..., bool]:
    return lambda one, other: (
        one.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in one.items())
    )


@pytest.fixture
def make_learner(tmp_path: Path) -> Callable[..., Learner]:
    """A rank that trains the tiny policy, or adapters of it, by itself."""
    training_cases.save_plain_model(tmp_path)
    world = World.alone()
    case = training_cases.CASES["even"]
    return lambda lora=None: Learner(
        role="actorRollout",
        world=world,
        seed=7,
        load=lambda: load_model(tmp_path / "tied", lora=lora, seed=7),
        train=lambda model, _: training_cases.make_engine(model, case, world),
    )


@pytest.fixture
def rows() -> BatchRows:
    mine = training_cases.rows_of_step()
    lengths = (tuple(one.tolist()) for one in (mine.prompt_lengths, mine.lengths))
    groups, samples = training_cases.GROUPS, training_cases.SAMPLES
    return rows_alone(BatchIndex(*lengths, samples=samples, owners=(0,) * groups), mine)
