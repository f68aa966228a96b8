"""Adapters in training: what of them is committed, restored, and left out by the reference."""

import pytest
import torch
from lone_role import grpo_spec
from safetensors.torch import load_file
from tiny_models import save_model
from training_ranks import CASES, make_engine, objective, rows_of_step

from ppojob_api.v1alpha1.training import LoraSpec
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import hf_named_tensors, named_full_tensors, trained_tensors
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import Request, SamplingParams, generate
from ppojob_trainer.workers.learner import Learner
from ppojob_trainer.workers.reference import BaseReference

LORA = LoraSpec(rank=4, alpha=8.0)


def copies(tensors):
    return {name: tensor.clone() for name, tensor in dict(tensors).items()}


def is_equal(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture
def learner(make_learner):
    learner = make_learner(LORA)
    learner.restore(None, [], 10)
    return learner


def test_a_commit_of_adapters_brings_everything_back(make_learner, learner, tmp_path):
    base = copies(hf_named_tensors(learner.model))
    beginning = copies(trained_tensors(learner.model))
    learner.engine.update(rows_of_step(), objective())
    commit = tmp_path / "commit"
    commit.mkdir()
    files = learner.save(commit)
    learner.engine.update(rows_of_step(), objective())

    second = make_learner(LORA)
    second.restore(commit, files, 10)
    second.engine.update(rows_of_step(), objective())
    trained = copies(trained_tensors(second.model))
    assert is_equal(trained, copies(trained_tensors(learner.model)))
    assert is_equal(base, copies(hf_named_tensors(learner.model)))
    assert not any(torch.equal(trained[name], beginning[name]) for name in trained)

    learner.restore(None, [], 10)
    assert is_equal(beginning, copies(trained_tensors(learner.model)))


def test_a_commit_holds_adapters_and_their_moments_alone(tmp_path):
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
        made.restore(None, [], 1)
        made.engine.update(rows_of_step(), objective())
        (tmp_path / name).mkdir()
        files = [file for file in made.save(tmp_path / name) if "rng" not in file.path]
        sizes[name] = sum(file.size for file in files)
    assert sizes["some"] < 0.02 * sizes["all"]
    found = [load_file(tmp_path / "some" / file.path).keys() for file in files]
    layer = "model.layers.0.self_attn.q_proj"
    trained = {f"{layer}.lora_a", f"{layer}.lora_b"}
    moments = {f"{name}/{key}" for name in trained for key in ("exp_avg", "exp_avg_sq", "step")}
    assert [set(names) for names in found] == [trained, moments | {"updates"}]


def test_the_reference_is_the_policy_without_its_adapters(learner, tmp_path):
    spec = grpo_spec(1, 1)
    plain = load_model(tmp_path / "tied")
    base = ForwardEngine(plain, PolicyHead.of(spec, "none"), spec.training)
    reference = BaseReference(spec, World.alone(), learner).engine
    learner.engine.update(rows_of_step(), objective())
    rows = rows_of_step()
    assert torch.equal(reference.predict(rows)[0], base.predict(rows)[0])
    assert not torch.equal(learner.engine.predict(rows)[0], base.predict(rows)[0])

    # Within an update it is asked in the middle of training.
    learner.model.train()
    for found, expected in zip(reference.last_states(rows), base.last_states(rows), strict=True):
        assert torch.equal(found, expected)
    assert learner.model.training


def test_an_engine_that_was_synchronised_says_what_the_trainer_says(learner, tmp_path):
    learner.engine.update(rows_of_step(), objective())
    engine = HuggingFaceEngine(load_model(tmp_path / "tied"), max_model_tokens=40, max_sequences=4)
    engine.load_weights(1, named_full_tensors(learner.model))
    request = Request("r", (5, 17, 3, 41), SamplingParams(0.0, 1.0, -1, 24), seed=1)
    (response,) = generate(engine, [request])
    ids = torch.tensor([[*request.prompt, *response.tokens]])
    told = []
    for model in (learner.model, load_model(tmp_path / "tied")):
        # A model whose attention is not the packed one.
        model.set_attn_implementation("sdpa")
        with torch.no_grad():
            logprobs = model(ids).logits[0, len(request.prompt) - 1 : -1].log_softmax(-1)
        told.append(logprobs.gather(-1, torch.tensor(response.tokens)[:, None])[:, 0])
    trainer, base = told
    torch.testing.assert_close(torch.tensor(response.logprobs), trainer, rtol=0, atol=1e-5)
    assert (trainer - base).abs().max() > 1e-3
