import pytest
import torch
from refused_jobs import edit
from tiny_models import save_model
from transformers import (
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    PreTrainedModel,
)

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.reward_model import load_reward_model


def save(folder, model_class=LlamaForSequenceClassification, num_labels=1) -> PreTrainedModel:
    return save_model(folder, model_class, num_labels=num_labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_comes_back_frozen(tmp_path, dtype):
    saved = save(tmp_path)
    loaded = load_reward_model(tmp_path, dtype)
    assert not loaded.training
    named = dict(loaded.named_parameters())
    for name, parameter in saved.named_parameters():
        assert torch.equal(named[name], parameter.to(dtype)), name
        assert not named[name].requires_grad


@pytest.mark.parametrize("kind", [LlamaForCausalLM, LlamaForTokenClassification])
def test_a_model_of_another_kind_is_refused(tmp_path, kind):
    # A token classifier has a bias that a sequence classifier would drop.
    save(tmp_path, kind)
    match = rf'config.json:architectures: got \["{kind.__name__}"\]: it gives no score of a text; '
    with pytest.raises(ConfigError, match=match):
        load_reward_model(tmp_path)


def test_several_labels_are_refused(tmp_path):
    save(tmp_path, num_labels=3)
    with pytest.raises(ConfigError, match=r"config.json:id2label: got 3 labels: a score "):
        load_reward_model(tmp_path)


def test_a_folder_without_all_weights_is_refused(tmp_path):
    save(tmp_path)
    edit(tmp_path / "config.json", {"num_hidden_layers": 2})
    with pytest.raises(ConfigError, match=r"spec.rewardModel.path: got .*holds no model.layers.1"):
        load_reward_model(tmp_path)
