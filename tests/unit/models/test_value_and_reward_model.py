"""Classifiers of tokens and of texts: what a critic is made of, and what scores responses."""

import json

import pytest
import torch
from refused_jobs import edit
from tiny_models import save_model
from transformers import (
    AutoModelForTokenClassification,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    PreTrainedModel,
)

from ppojob_api.v1alpha1.training import LoraSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.kinds import CRITIC, REWARD
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import hf_named_tensors, trained_tensors


def save(folder, model_class=LlamaForCausalLM, **options: object) -> PreTrainedModel:
    return save_model(folder, model_class, hidden_size=64, **options)


def tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return dict(hf_named_tensors(model))


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_gets_a_head_of_zeros(tmp_path, tied):
    backbone = tensors(save(tmp_path, tie_word_embeddings=tied))
    model = load_model(tmp_path, kind=CRITIC)
    assert not model.training
    own = tensors(model)
    # Names of transformers, without the output layer of the language model.
    assert own.keys() == (backbone.keys() - {"lm_head.weight"}) | {"score.weight", "score.bias"}
    for name in own.keys() - {"score.weight", "score.bias"}:
        assert torch.equal(own[name], backbone[name]), name
    assert own["score.weight"].shape == (1, 64)
    assert not own["score.weight"].any(), "the first values are 0"
    assert own["score.bias"].tolist() == [0.0]


def test_a_value_model_comes_back_and_loads_in_transformers(tmp_path):
    save(tmp_path / "policy")
    model = load_model(tmp_path / "policy", kind=CRITIC)
    with torch.no_grad():
        model.score.bias.fill_(0.25)
    model.save_pretrained(tmp_path / "critic")
    again = tensors(load_model(tmp_path / "critic", kind=CRITIC))
    theirs = tensors(AutoModelForTokenClassification.from_pretrained(tmp_path / "critic"))
    for name, tensor in tensors(model).items():
        assert torch.equal(again[name], tensor), name
        assert torch.equal(theirs[name], tensor), name
    config = json.loads((tmp_path / "critic" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForTokenClassification"]
    assert config["classifier_dropout"] == 0.0


def test_a_reward_model_gives_its_head(tmp_path):
    saved = tensors(save(tmp_path, LlamaForSequenceClassification, num_labels=1))
    own = tensors(load_model(tmp_path, kind=CRITIC))
    assert torch.equal(own["score.weight"], saved["score.weight"])
    assert own["score.bias"].tolist() == [0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_beside_adapters_the_head_is_trained_whole_and_in_float32(tmp_path, dtype):
    save(tmp_path, LlamaForTokenClassification, num_labels=1)
    plain = load_model(tmp_path, dtype, kind=CRITIC)
    lora = LoraSpec(rank=2, target_modules=("v_proj",))
    model = load_model(tmp_path, dtype, kind=CRITIC, lora=lora)
    head = {"score.weight", "score.bias"}
    layer = "model.layers.0.self_attn.v_proj"
    trained = trained_tensors(model)
    assert trained.keys() == {f"{layer}.lora_a", f"{layer}.lora_b"} | head
    assert {tensor.dtype for tensor in trained.values()} == {torch.float32}
    for name, tensor in tensors(plain).items():
        found = model.get_parameter(name)
        assert torch.equal(found, tensor.to(found.dtype))
        assert found.dtype == (torch.float32 if name in head else dtype)
        assert found.requires_grad == (name in head)


def test_dropout_on_the_head_is_off(tmp_path):
    save(tmp_path, LlamaForTokenClassification, num_labels=1, classifier_dropout=0.5)
    assert load_model(tmp_path, kind=CRITIC).train().dropout.p == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_reward_model_comes_back_frozen(tmp_path, dtype):
    saved = save(tmp_path, LlamaForSequenceClassification, num_labels=1)
    loaded = load_model(tmp_path, dtype, kind=REWARD)
    assert not loaded.training
    named = dict(loaded.named_parameters())
    for name, parameter in saved.named_parameters():
        assert torch.equal(named[name], parameter.to(dtype)), name
        assert not named[name].requires_grad


LOADED = [
    (CRITIC, LlamaForTokenClassification, "spec.critic.path"),
    (REWARD, LlamaForSequenceClassification, "spec.rewardModel.path"),
]


@pytest.mark.parametrize(("kind", "made", "field"), LOADED)
def test_several_labels_and_missing_weights_are_refused(tmp_path, kind, made, field):
    save(tmp_path / "labels", made, num_labels=3)
    with pytest.raises(ConfigError, match=r"config.json:id2label: got 3 labels: a score is one "):
        load_model(tmp_path / "labels", kind=kind)
    save(tmp_path / "layers", made, num_labels=1)
    edit(tmp_path / "layers" / "config.json", {"num_hidden_layers": 2})
    with pytest.raises(ConfigError, match=rf"{field}: got .*holds no model.layers.1\."):
        load_model(tmp_path / "layers", kind=kind)
