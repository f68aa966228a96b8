from dataclasses import replace
from pathlib import Path

import pytest
import torch
import training_cases
from lone_role import grpo_spec
from safetensors.torch import load_file
from tiny_models import save_model
from training_cases import CASES, make_engine, objective, rows_of_step, run_case

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.roles import Offloaded
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.errors import DamagedCheckpoint
from ppojob_trainer.models.kinds import CRITIC
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import hf_named_tensors, trained_tensors
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rpc.messages.saving import FileEntry, SaveShards
from ppojob_trainer.workers.learner import Learner
from ppojob_trainer.workers.reference import base_reference
from ppojob_trainer.workers.state_writer import shard_writer

LORA = LoraSpec(rank=4, alpha=8.0)


def saved(learner: Learner, folder: Path) -> list[FileEntry]:
    return shard_writer(learner.state_files)(SaveShards("", 1))(folder)


def restored(learner: Learner) -> Learner:
    learner.restore(None, [], 10)
    return learner


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_checkpoint_brings_everything_back(make_learner, copies, is_equal, tmp_path, lora):
    learner = restored(make_learner(lora))
    base = copies(hf_named_tensors(learner.model))
    beginning = copies(trained_tensors(learner.model))
    learner.engine.update(rows_of_step(), objective())
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    files = saved(learner, checkpoint)
    drawn = torch.rand(3)
    learner.engine.update(rows_of_step(), objective())

    second = make_learner(lora)
    second.restore(checkpoint, files, 10)
    assert torch.equal(torch.rand(3), drawn)
    second.engine.update(rows_of_step(), objective())
    trained = copies(trained_tensors(second.model))
    assert is_equal(trained, copies(trained_tensors(learner.model)))
    assert not any(torch.equal(trained[name], beginning[name]) for name in trained)
    assert is_equal(base, copies(hf_named_tensors(learner.model))) == (lora is not None)

    restored(learner)
    assert is_equal(beginning, copies(trained_tensors(learner.model)))


def test_a_critic_of_adapters_goes_on_and_back_to_its_beginning_with_its_head(
    copies, is_equal, tmp_path
):
    training_cases.save_plain_model(tmp_path)
    world, folder = World.alone(), tmp_path / "tied"

    def made(*offload: Offloaded) -> Learner:
        return Learner(
            "critic",
            world,
            0,
            lambda: load_model(folder, lora=training_cases.CRITIC_LORA, kind=CRITIC),
            lambda model, _: training_cases.value_engine(model, world),
            offload,
        )

    def update(learner: Learner) -> dict[str, torch.Tensor]:
        learner.engine.update(training_cases.valued_rows(), training_cases.VALUE_GOAL)
        return copies(trained_tensors(learner.model))

    learner, second = restored(made()), made()
    beginning = copies(trained_tensors(learner.model))
    update(learner)
    (tmp_path / "checkpoint").mkdir()
    files = saved(learner, tmp_path / "checkpoint")
    went_on = update(learner)
    second.restore(tmp_path / "checkpoint", files, 10)
    assert is_equal(update(second), went_on)
    assert not any(torch.equal(tensor, beginning[name]) for name, tensor in went_on.items())
    for one in (learner, made("weights")):
        restored(one)
        with one.resident.on_device():
            update(one)
        restored(one)
        with one.resident.on_device():
            assert is_equal(copies(trained_tensors(one.model)), beginning)


def test_ranks_that_compute_the_same_layers_of_the_same_rows_draw_the_same(make_learner):
    dims = ParallelDims(pipeline=2, shard=2, sequence=2)
    learner, streams = make_learner(), {}
    for rank in range(dims.size):
        world = replace(World.alone(), rank=rank, size=dims.size, dims=dims)
        stage, _ = dims.place(rank, "pipeline")
        learner._world = world
        streams.setdefault((stage, dims.data_coordinate(rank)), set()).add(learner._stream)
    assert len(streams) == 4
    assert all(len(found) == 1 for found in streams.values())
    assert len(set.union(*streams.values())) == 4


def test_a_checkpoint_without_one_of_the_files_is_refused(make_learner, tmp_path):
    learner = restored(make_learner())
    files = saved(learner, tmp_path)
    for missing in files:
        with pytest.raises(DamagedCheckpoint):
            learner.restore(tmp_path, [file for file in files if file != missing], 10)


def test_a_checkpoint_holds_adapters_and_their_moments_alone(tmp_path):
    save_model(tmp_path / "model", vocab_size=2000, hidden_size=64, intermediate_size=256)
    sizes = {}
    for name, lora in (("all", None), ("some", LoraSpec(rank=2, target_modules=("q_proj",)))):
        made = Learner(
            "actorRollout",
            World.alone(),
            0,
            lambda lora=lora: load_model(tmp_path / "model", lora=lora),
            lambda model, _: make_engine(model, CASES["even"], World.alone()),
        )
        restored(made).engine.update(rows_of_step(), objective())
        (tmp_path / name).mkdir()
        files = [file for file in saved(made, tmp_path / name) if "rng" not in file.path]
        sizes[name] = sum(file.size_bytes for file in files)
    assert sizes["some"] < 0.02 * sizes["all"]
    found = [load_file(tmp_path / "some" / file.path).keys() for file in files]
    layer = "model.layers.0.self_attn.q_proj"
    trained = {f"{layer}.lora_a", f"{layer}.lora_b"}
    moments = {f"{name}/{key}" for name in trained for key in ("exp_avg", "exp_avg_sq", "step")}
    assert [set(names) for names in found] == [trained, moments | {"updates"}]


def test_what_adapters_drop_is_drawn_again_where_a_layer_is_computed_again(is_equal, tmp_path):
    training_cases.save_plain_model(tmp_path)
    lora = LoraSpec(rank=3, dropout=0.3)
    plain = replace(CASES["adapters"], owners=(0,) * 5)
    cases = replace(plain, lora=lora), replace(plain, lora=lora, recompute=True), plain
    found, again, whole = (run_case(case, tmp_path, World.alone()) for case in cases)
    assert is_equal(again, found)
    name = "gradient/model.layers.0.self_attn.q_proj.lora_b"
    assert not torch.allclose(found[name], whole[name], rtol=1e-3)


def test_the_reference_is_the_policy_without_its_adapters(make_learner, tmp_path):
    learner = restored(make_learner(LORA))
    spec = grpo_spec(1, 1)
    plain = load_model(tmp_path / "tied")
    base = ForwardEngine(plain, PolicyHead.of(spec, "none"), spec.training)
    reference = base_reference(spec, World.alone(), learner).engine
    learner.engine.update(rows_of_step(), objective())
    rows = rows_of_step()
    assert torch.equal(reference.predict(rows)[0], base.predict(rows)[0])
    assert not torch.equal(learner.engine.predict(rows)[0], base.predict(rows)[0])

    # Within an update it is asked in the middle of training.
    learner.model.train()
    found, expected = reference.last_states(rows), base.last_states(rows)
    assert torch.equal(found.hidden, expected.hidden)
    assert torch.equal(found.weight, expected.weight)
    assert found.settings == expected.settings
    assert learner.model.training
