from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lone_role import ask

from ppojob_trainer.rollout.protocol import Request, RolloutError, SamplingParams
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.messages.rollout import Generate, PromptTokens, SyncWeights
from ppojob_trainer.rpc.messages.rows import PlaceRows
from ppojob_trainer.rpc.messages.saving import Restore
from ppojob_trainer.rpc.messages.training import Advantages, Forward, Update
from ppojob_trainer.workers.actor_rollout import ActorRolloutWorker

pytestmark = pytest.mark.processes

PROMPTS = [PromptTokens(number, [4, 5, 6]) for number in range(4)]
SAMPLES = 4


@pytest.fixture
def worker(open_worker: Callable[..., Any]) -> Iterator[ActorRolloutWorker]:
    with open_worker() as opened:
        yield opened


def restore(worker: ActorRolloutWorker) -> None:
    ask(worker, methods.RESTORE, Restore(None, [], {"policy": 2}))


def generate(worker: ActorRolloutWorker, purpose: str) -> list[int]:
    request = Generate(purpose, 1, 0, PROMPTS, SAMPLES, (0, len(PROMPTS)))
    return [row.length for row in ask(worker, methods.GENERATE, request).rows]


def train(worker: ActorRolloutWorker, lengths: list[int]) -> Iterator[str]:
    owners = (0,) * len(PROMPTS)
    index = BatchIndex((3,) * len(PROMPTS), tuple(lengths), SAMPLES, owners)
    scores = [float(row % 2) for row in range(len(lengths))]
    for method, request in (
        (methods.PLACE_ROWS, PlaceRows(index)),
        (methods.FORWARD, Forward("policy")),
        (methods.ADVANTAGES, Advantages(scores, 0.0)),
        (methods.UPDATE, Update("policy", [0, 1])),
        (methods.UPDATE, Update("policy", [2, 3])),
        (methods.SYNC_WEIGHTS, SyncWeights(1)),
    ):
        ask(worker, method, request)
        yield method.name


def is_asleep(worker: ActorRolloutWorker) -> bool:
    sampling = SamplingParams(1.0, 1.0, -1, max_tokens=1)
    try:
        worker.generation.engine.submit(Request("are you awake", (4,), sampling, seed=0))
    except RolloutError as refused:
        return str(refused).endswith("the engine is asleep")
    worker.generation.engine.abort("are you awake")
    worker.generation.engine.step()
    return False


def test_the_engine_sleeps_while_models_compute_and_wakes_with_new_weights(worker) -> None:
    assert is_asleep(worker)
    for _ in range(2):
        restore(worker)
        assert is_asleep(worker)
        ask(worker, methods.SYNC_WEIGHTS, SyncWeights(0))
        generate(worker, "validation")
        lengths = generate(worker, "train")
        seen = [(done, is_asleep(worker)) for done in train(worker, lengths)]
        assert seen == [
            ("place_rows", False),
            ("forward", True),
            ("advantages", True),
            ("update", True),
            ("update", True),
            ("sync_weights", False),
        ]
