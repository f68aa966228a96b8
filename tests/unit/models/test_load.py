import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import hf_named_tensors


def save(folder, *, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_comes_back(tmp_path, tied):
    saved = save(tmp_path, tied=tied)
    loaded = load_model(tmp_path)
    assert not loaded.training
    named = dict(hf_named_tensors(loaded))
    assert ("lm_head.weight" in named) is not tied
    for name, tensor in hf_named_tensors(saved):
        assert torch.equal(named[name], tensor)
        assert not named[name].requires_grad


def test_the_dtype_is_that_asked_for(tmp_path):
    save(tmp_path, tied=True)
    assert load_model(tmp_path, torch.bfloat16).dtype == torch.bfloat16


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"spec.model.path: got .*gives no model_type"):
        load_model(tmp_path)


def test_an_architecture_that_is_not_supported_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ConfigError, match="'gpt2' is not supported; use one of llama, qwen2"):
        load_model(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    save(tmp_path, tied=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="the model cannot be loaded"):
        load_model(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path):
    save(tmp_path, tied=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 25}))
    with pytest.raises(ConfigError, match=r"down_proj.weight has shape \(16, 24\): .*\(16, 25\);"):
        load_model(tmp_path)
