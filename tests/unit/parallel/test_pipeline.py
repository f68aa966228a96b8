import queue
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from family_models import FAMILY_MODELS
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_model

from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.log_partition import add_log_partition, is_log_partition
from ppojob_trainer.models.pipeline_stages import PassThrough, keep_stage, layers_of
from ppojob_trainer.models.transformers_modules import rename_modules
from ppojob_trainer.parallel.experts import ExpertRanks
from ppojob_trainer.parallel.pipeline import Direction, PipelineRanks, _Lane, schedule_1f1b


def told(stage: int, stages: int, passes: int) -> str:
    return " ".join(
        f"{turn[0]}{number}" for turn, number in schedule_1f1b(passes, stages - 1 - stage)
    )


def test_a_stage_runs_ahead_by_the_stages_behind_it():
    assert told(0, 3, 4) == "f0 f1 f2 b0 f3 b1 b2 b3"
    assert told(1, 3, 4) == "f0 f1 b0 f2 b1 f3 b2 b3"
    assert told(2, 3, 4) == "f0 b0 f1 b1 f2 b2 f3 b3"
    assert told(0, 3, 1) == "f0 b0"


@given(st.integers(1, 6), st.integers(0, 12))
def test_passes_wait_for_passes_of_smaller_numbers_alone(stages, passes):
    """As `parallel.pipeline` numbers them: what is received, and what a neighbour has to take."""

    def number(stage: int, turn: Direction, batch: int) -> int:
        return 2 * batch + (stage if turn == "forward" else 2 * stages - 1 - stage)

    for stage in range(stages):
        mine = [number(stage, *turn) for turn in schedule_1f1b(passes, stages - 1 - stage)]
        assert mine == sorted(set(mine))
        for turn, batch in schedule_1f1b(passes, stages - 1 - stage):
            step = 1 if turn == "forward" else -1
            before, behind = stage - step, stage + step
            if before in range(stages):
                assert number(before, turn, batch) < number(stage, turn, batch)
            if behind in range(stages) and batch:
                assert number(behind, turn, batch - 1) < number(stage, turn, batch)


class Connecting:
    """A stage's group whose first send waits, as by nccl, until the other rank receives."""

    def __init__(self, wires: Mapping, stage: int) -> None:
        self._wires, self._stage = wires, stage
        self._connected: set[tuple[int, int]] = set()

    def _wire(self, *ends: int) -> queue.Queue:
        rendezvous, sent = self._wires[ends]
        if ends not in self._connected:
            rendezvous.wait(timeout=10)
            self._connected.add(ends)
        return sent

    def send(self, tensors: list[torch.Tensor], stage: int, _: int) -> SimpleNamespace:
        self._wire(self._stage, stage).put(tensors[0].clone())
        return SimpleNamespace(wait=lambda: None)

    def recv(self, tensors: list[torch.Tensor], stage: int, _: int) -> SimpleNamespace:
        tensors[0].copy_(self._wire(stage, self._stage).get(timeout=10))
        return SimpleNamespace(wait=lambda: None)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_that_have_to_connect_come_to_an_end(stages):
    lanes = [
        {ends: (threading.Barrier(2), queue.Queue()) for ends in permutations(range(stages), 2)}
        for _ in range(2)
    ]

    def update(stage: int) -> float:
        ranks = PipelineRanks(stage, stages, [_Lane(Connecting(wires, stage)) for wires in lanes])
        one = torch.ones(1)
        for turn, _ in schedule_1f1b(5, ranks.stages_after):
            if turn == "forward":
                states = one if ranks.is_first else ranks.receive(torch.empty(1)) + 1
                if not ranks.is_last:
                    ranks.send(states)
            else:
                gradient = one if ranks.is_last else ranks.receive_back(one)
                if not ranks.is_first:
                    ranks.send_back(gradient + 1)
        if ranks.is_first or ranks.is_last:
            ranks.all_reduce_ends(one.mul_(stage + 1))
        return one.item()

    with ThreadPoolExecutor(stages) as pool:
        found = list(pool.map(update, range(stages)))
    assert found[0] == found[-1] == 1 + stages


@given(st.integers(1, 9), st.integers(0, 30))
def test_stages_share_the_layers_and_the_last_has_no_more_than_others(stages, more):
    layers, places = stages + more, range(stages)
    runs = [layers_of(stage, places, layers) for stage in places]
    assert [layer for run in runs for layer in run] == list(range(layers))
    assert {len(run) for run in runs} <= {layers // stages, -(-layers // stages)}
    assert len(runs[-1]) == layers // stages


@pytest.mark.parametrize("is_tied", [True, False])
def test_each_weight_is_of_one_stage_but_an_embedding_that_is_the_head_too(is_tied):
    with torch.device("meta"):
        whole = make_model(num_hidden_layers=3, tie_word_embeddings=is_tied)
    add_log_partition(whole)
    holders: dict[str, list[int]] = {name: [] for name, _ in whole.named_parameters()}
    for number in range(3):
        stage = deepcopy(whole)
        keep_stage(stage, PipelineRanks(number, 3), ExpertRanks())
        for name, _ in stage.named_parameters():
            holders[name].append(number)
    assert holders.pop("model.embed_tokens.weight") == ([0, 2] if is_tied else [0])
    assert {len(held) for held in holders.values()} == {1}
    assert {name: [2] for name in holders if is_log_partition(name)}.items() <= holders.items()


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("gpt_neox", "hidden_dropout"),
        ("granite", "embedding_multiplier"),
        ("phi", "embd_pdrop"),
        ("starcoder2", "embedding_dropout"),
    ],
)
def test_only_the_first_stage_scales_and_drops_the_embedding(family, key):
    kind, options = FAMILY_MODELS[family]
    stage = make_model(kind, **{**options, key: 0.5, "num_hidden_layers": 3}).train()
    rename_modules(stage, FAMILIES[family])
    keep_stage(stage, PipelineRanks(1, 3), ExpertRanks())
    stage.base_model.layers[1] = PassThrough()
    states = torch.randn(1, 9, stage.config.hidden_size)
    assert torch.equal(stage.base_model(inputs_embeds=states).last_hidden_state, states)
