import json

import pytest
import torch
from family_models import FAMILY_MODELS, OTHER_HEADS
from refused_jobs import edit
from tiny_models import TWO_LAYERS, save_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    PreTrainedModel,
)

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.folder_checks import check_model_folder
from ppojob_trainer.models.kinds import CRITIC, REWARD, SCORER, TEXTS, TOKENS
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.model_classes import class_of
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


THEIRS = {TOKENS: AutoModelForTokenClassification, TEXTS: AutoModelForSequenceClassification}


def shapes(model: PreTrainedModel) -> list[tuple[str, torch.Size]]:
    return [(name, weight.shape) for name, weight in model.named_parameters()]


@pytest.mark.parametrize("end", THEIRS)
@pytest.mark.parametrize("family", FAMILY_MODELS)
def test_a_class_has_the_weights_of_transformers_own(family, end):
    """In their order; where transformers has none, those of the decoder and a head like others'."""
    kind, own = FAMILY_MODELS[family]
    config = kind.config_class(**{**TWO_LAYERS, **own})
    with torch.device("meta"):
        found = shapes(class_of(config, end)._from_config(config))
        decoder = kind._from_config(config).base_model
        has_one = type(config) in THEIRS[end]._model_mapping and (family, end) not in OTHER_HEADS
        expected = shapes(THEIRS[end].from_config(config)) if has_one else None
    prefix, width = kind.base_model_prefix, config.hidden_size
    head = [("score.weight", (1, width)), *([("score.bias", (1,))] if end == TOKENS else [])]
    assert found == [*((f"{prefix}.{name}", shape) for name, shape in shapes(decoder)), *head]
    assert expected in (None, found)


@pytest.mark.parametrize(
    ("family", "kind", "use"),
    [
        *(("gpt2", CRITIC, CRITIC), ("gpt2", SCORER, REWARD), ("nemotron_h", SCORER, REWARD)),
        *(("granitemoehybrid", CRITIC, CRITIC), ("lfm2_moe", SCORER, SCORER)),
    ],
)
def test_an_export_is_read_back(tmp_path, family, kind, use):
    """Also where transformers has no such class, by the names of files."""
    model_class, own = FAMILY_MODELS[family]
    save_model(tmp_path / "model", model_class, **{**TWO_LAYERS, **own})
    model = load_model(tmp_path / "model", kind=kind)
    with torch.no_grad():
        model.score.weight.normal_()
    export, named = tmp_path / "export", tensors(model)
    folder = {"model_folder": tmp_path / "model", "dtype": torch.float32, "kind": kind}
    export_model(export, hf_named_tensors(model), **folder)
    report, again = check_model_folder(export, use), tensors(load_model(export, kind=use))
    assert (report.errors, report.warnings) == ([], [])
    assert again.keys() == named.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in named.items())
    config = json.loads((export / "config.json").read_text())
    assert config["architectures"] == [type(model).__name__]
    assert config["id2label"] == {"0": "LABEL_0"}


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
    with pytest.raises(ConfigError, match=r"config.json:id2label: got 3 labels: "):
        load_model(tmp_path / "labels", kind=kind)
    save(tmp_path / "layers", made, num_labels=1)
    edit(tmp_path / "layers" / "config.json", {"num_hidden_layers": 2})
    with pytest.raises(ConfigError, match=rf"{field}: got .*holds no model.layers.1\."):
        load_model(tmp_path / "layers", kind=kind)
