from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
import training_cases
from lone_role import ask
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import PreTrainedModel
from trees import tree

from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.messages.rollout import Generate, PromptTokens, SyncWeights
from ppojob_trainer.rpc.messages.rows import PlaceRows
from ppojob_trainer.rpc.messages.saving import Restore, SaveShards
from ppojob_trainer.rpc.messages.training import Advantages, Forward, Update
from ppojob_trainer.rpc.wire import Nothing
from ppojob_trainer.workers.actor_rollout import ActorRolloutWorker

OFFLOADED = {
    "actorRollout": {"offload": ["weights", "optimizer", "activations"]},
    "reference": {"offload": ["weights"]},
    "critic": {"offload": ["weights", "optimizer"]},
}
PPO = {**tiny_jobs.PPO, "training": {"autocast": "none", "activationCheckpointing": True}}
PROMPTS = [PromptTokens(number, [4, 5, 6]) for number in range(4)]


def on_device(worker: ActorRolloutWorker) -> dict[str, tuple[float, float]]:
    """Of each model: weights and gradients that are there, and moments, both in weights."""
    learners = {name: model.learner for name, model in worker.stages.trained.items()}
    models: dict[str, PreTrainedModel] = {name: one.model for name, one in learners.items()}
    models["reference"] = worker.stages.frozen["reference"].engine.model
    found = {}
    for name, model in models.items():
        weights = list(model.parameters())
        held = [*weights, *(w.grad for w in weights if w.grad is not None)]
        state = learners[name].engine.state_tensors() if name in learners else {}
        moments = [tensor for key, tensor in state.items() if "/exp_avg" in key]
        whole = sum(weight.nbytes for weight in weights)
        found[name] = tuple(
            round(sum(tensor.untyped_storage().nbytes() for tensor in tensors) / whole, 3)
            for tensors in (held, moments)
        )
    return found


def a_step(worker: ActorRolloutWorker, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """From a start to an export; says what is on the device behind each request."""
    rows = len(PROMPTS) * 2
    folder.mkdir()
    (folder / "pending").mkdir()
    ask(worker, methods.RESTORE, Restore(None, [], {"policy": 4, "critic": 4}))
    yield "restore", on_device(worker)
    ask(worker, methods.SYNC_WEIGHTS, SyncWeights(0))
    request = Generate("train", 1, 0, PROMPTS, 2, (0, len(PROMPTS)))
    lengths = [row.length for row in ask(worker, methods.GENERATE, request).rows]
    yield "generate", on_device(worker)
    index = BatchIndex((3,) * len(PROMPTS), tuple(lengths), 2, (0,) * len(PROMPTS))
    scores = [float(row % 2) for row in range(rows)]
    ask(worker, methods.PLACE_ROWS, PlaceRows(index))
    place = folder.name
    for name, method, request in (
        ("forward policy", methods.FORWARD, Forward("policy")),
        ("forward reference", methods.FORWARD, Forward("reference")),
        ("forward critic", methods.FORWARD, Forward("critic")),
        ("advantages", methods.ADVANTAGES, Advantages(scores, 0.01)),
        ("update critic", methods.UPDATE, Update("critic", [0, 1, 2, 3])),
        ("update policy", methods.UPDATE, Update("policy", [0, 1])),
        ("update policy again", methods.UPDATE, Update("policy", [2, 3])),
        ("sync", methods.SYNC_WEIGHTS, SyncWeights(1)),
        ("save", methods.SAVE_SHARDS, SaveShards(f"{place}/pending", 1)),
        ("export", methods.EXPORT_MODEL, Nothing()),
    ):
        answer = ask(worker, method, request)
        yield name, on_device(worker)
        if name == "save":
            files = answer.files
    (worker.run_folder / "export").rename(folder / "export")
    ask(worker, methods.RESTORE, Restore(f"{place}/pending", files, {"policy": 4, "critic": 4}))
    yield "restore from a checkpoint", on_device(worker)
    (folder / "again").mkdir()
    ask(worker, methods.SAVE_SHARDS, SaveShards(f"{place}/again", 1))


@pytest.mark.processes
def test_models_are_on_the_device_in_their_turns_alone(open_worker, tmp_path: Path) -> None:
    with open_worker(**PPO) as worker:
        plain = dict(a_step(worker, tmp_path / "plain"))
    with open_worker(**PPO, roles=OFFLOADED) as worker:
        found = dict(a_step(worker, tmp_path / "offloaded"))
    nothing, weights, trained = (0.0, 0.0), (1.0, 0.0), (2.0, 0.0)
    rest = dict.fromkeys(("policy", "critic", "reference"), nothing)
    assert found == {
        "restore": rest,
        "generate": rest,
        "forward policy": {**rest, "policy": weights},
        "forward reference": {**rest, "reference": weights},
        "forward critic": {**rest, "critic": weights},
        "advantages": {**rest, "critic": weights},
        "update critic": {**rest, "critic": trained},
        "update policy": {**rest, "policy": trained},
        "update policy again": {**rest, "policy": trained},
        "sync": rest,
        "save": rest,
        "export": rest,
        "restore from a checkpoint": rest,
    }
    everything = {"policy": (2.0, 2.0), "critic": (2.0, 2.0), "reference": weights}
    assert plain["sync"] == everything
    kept, expected = tree(tmp_path / "offloaded"), tree(tmp_path / "plain")
    assert len(kept) > 10
    assert kept == expected


@pytest.mark.parametrize(("offload", "kept"), [((), 3), (("activations",), 0)])
def test_inputs_of_layers_wait_for_their_backward_pass_in_host_memory(tmp_path, offload, kept):
    """Of three layers; the head is where the forward pass ends."""
    training_cases.save_plain_model(tmp_path)
    case, world = training_cases.CASES["recomputed"].alone, World.alone()
    model = training_cases.load(case, tmp_path, world)
    recomputed = replace(case, recompute=True)
    engine = training_cases.make_engine(model, recomputed, world, offload)
    inputs: list[StorageWeakRef] = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(
            lambda _, args: inputs.append(StorageWeakRef(args[0].untyped_storage()))
        )
    alive: list[int] = []

    def head(*args):
        alive.append(sum(not one.expired() for one in inputs))
        return training_cases.HEAD(*args)

    engine.update(training_cases.rows_of_step(), training_cases.objective(), [lambda _: head])
    assert alive == [kept]
