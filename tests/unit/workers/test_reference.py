import pytest
import torch
from lone_role import grpo_spec
from training_cases import objective, rows_of_step, save_plain_model

from ppojob_api.v1alpha1.algorithm import ReferenceRefreshSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.errors import DamagedCheckpoint
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rpc.messages.saving import SaveShards
from ppojob_trainer.workers.reference import (
    Reference,
    SyncedReference,
    Teachers,
    open_reference,
)
from ppojob_trainer.workers.state_writer import shard_writer


@pytest.fixture
def learner(make_learner):
    learner = make_learner()
    learner.restore(None, [], 10)
    return learner


@pytest.fixture
def make_reference(learner, tmp_path):
    spec = grpo_spec(1, 1)
    model = spec.model.model_copy(update={"path": str(tmp_path / "tied")})
    spec = spec.model_copy(update={"model": model})

    def make(mixup: float) -> SyncedReference:
        refresh = ReferenceRefreshSpec(every_steps=1, mixup=mixup)
        return SyncedReference(spec, World.alone(), refresh, learner)

    return make


@pytest.fixture
def weights(copies):
    return lambda of: copies(hf_named_tensors(of.engine.model))


def test_a_copy_is_the_policy_and_stays_behind_it(make_reference, learner, weights, is_equal):
    reference = make_reference(1.0)
    learner.engine.update(rows_of_step(), objective())
    trained = weights(learner)
    assert not is_equal(weights(reference), trained)
    reference.sync()
    assert is_equal(weights(reference), trained)
    learner.engine.update(rows_of_step(), objective())
    assert is_equal(weights(reference), trained)
    assert not is_equal(weights(reference), weights(learner))


def test_a_mixture_takes_a_share_of_each_weight(make_reference, learner, weights):
    reference = make_reference(0.6)
    before = weights(reference)
    learner.engine.update(rows_of_step(), objective())
    trained = weights(learner)
    reference.sync()
    for name, found in weights(reference).items():
        expected = 0.6 * trained[name].double() + 0.4 * before[name].double()
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)


def test_a_checkpoint_brings_the_reference_back_and_none_the_beginning(
    make_reference, learner, weights, is_equal, tmp_path
):
    reference = make_reference(0.6)
    beginning = weights(reference)
    learner.engine.update(rows_of_step(), objective())
    reference.sync()
    kept = weights(reference)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    files = shard_writer(lambda: [reference.state_file()])(SaveShards("", 1))(checkpoint)
    assert [file.path for file in files] == ["reference/rank-00000/model.safetensors"]

    learner.engine.update(rows_of_step(), objective())
    reference.sync()
    assert not is_equal(weights(reference), kept)
    reference.restore(checkpoint, files)
    assert is_equal(weights(reference), kept)

    other = make_reference(0.6)
    other.restore(checkpoint, files)
    assert is_equal(weights(other), kept)
    other.restore(None, [])
    assert is_equal(weights(other), beginning)
    with pytest.raises(DamagedCheckpoint):
        other.restore(checkpoint, [])


def test_each_of_several_models_reads_its_own_rows_while_the_other_is_away(tmp_path, learner):
    """The numbers are those of each alone; a model that is not at work has no byte there."""
    save_plain_model(tmp_path, "untied")
    job = grpo_spec(1, 1).model_dump(mode="json")
    job["model"]["path"] = str(tmp_path / "tied")
    job["reference"] = {
        "path": str(tmp_path / "tied"),
        "teachers": [{"path": str(tmp_path / "untied"), "dataSources": ["a"]}],
    }
    job["roles"]["reference"] = {"offload": ["weights"]}
    spec = PPOJobSpec.model_validate(job)
    rows = rows_of_step()
    rows.teachers = [1, 0, 0, 1, 0]
    world = World.alone()
    alone = [open_reference(spec, world, number) for number in range(2)]
    expected = torch.zeros(rows.num_tokens)
    for number, model in enumerate(alone):
        with model.resident.on_device():
            (logprobs,) = model.predict(rows)
        own = torch.tensor([rows.teachers[group] == number for group in rows.row_groups.tolist()])
        expected = torch.where(own[rows.token_rows], logprobs, expected)

    teachers, there = Teachers(spec, world), []
    for model in teachers._models:
        model.engine.model.base_model.register_forward_pre_hook(
            lambda *_: there.append(list(map(on_device, teachers._models)))
        )
    (found,) = teachers.predict(rows)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert {tuple(one) for one in there} == {(True, False), (False, True)}
    nobody = rows.select(torch.arange(0))
    assert teachers.predict(nobody)[0].numel() == 0
    teachers.resident.offload()
    assert not any(map(on_device, teachers._models))


def on_device(reference: Reference) -> bool:
    return any(w.untyped_storage().nbytes() for w in reference.engine.model.parameters())
