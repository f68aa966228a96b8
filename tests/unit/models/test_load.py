import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_model
from torch import Tensor

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import hf_named_tensors

NORM = "model.norm.weight"
QUERY, OUTPUT = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qo")


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_comes_back(tmp_path, tied):
    saved = save_model(tmp_path, tie_word_embeddings=tied)
    loaded = load_model(tmp_path)
    assert not loaded.training
    named = dict(hf_named_tensors(loaded))
    assert ("lm_head.weight" in named) is not tied
    for name, tensor in hf_named_tensors(saved):
        assert torch.equal(named[name], tensor)
        assert not named[name].requires_grad


def test_the_dtype_is_that_asked_for(tmp_path):
    save_model(tmp_path, tie_word_embeddings=True)
    assert load_model(tmp_path, torch.bfloat16).dtype == torch.bfloat16


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"spec.model.path: got .*config.json cannot be read"):
        load_model(tmp_path)


def test_an_architecture_that_is_not_supported_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ConfigError, match=r'config.json:model_type: got "gpt2": .* one of llama, '):
        load_model(tmp_path)


def test_what_the_checks_before_a_run_refuse_is_not_loaded_either(tmp_path):
    """On a cluster they have not been asked."""
    save_model(tmp_path, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0})
    with pytest.raises(
        ConfigError, match=r'config.json:rope_parameters: got "dynamic": the angles '
    ):
        load_model(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    save_model(tmp_path, tie_word_embeddings=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="the model cannot be loaded"):
        load_model(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path):
    save_model(tmp_path, tie_word_embeddings=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 25}))
    with pytest.raises(ConfigError, match=r"down_proj.weight has shape \(16, 24\): .*\(16, 25\);"):
        load_model(tmp_path)


def spoil(folder, **changes: Tensor) -> None:
    """Save a model some of whose tensors are others."""
    save_model(folder, tie_word_embeddings=True)
    path = folder / "model.safetensors"
    save_file({**load_file(path), **changes}, path, {"format": "pt"})


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    query = torch.ones(16, 16)
    query[3, 5:7] = torch.nan
    spoil(tmp_path, **{NORM: torch.full((16,), torch.inf), QUERY: query})
    with pytest.raises(ConfigError) as refused:
        load_model(tmp_path)
    assert refused.value.problems == (
        f"spec.model.path: got 18 values that are NaN or infinite in {QUERY}, {NORM} of "
        f"{tmp_path}: nothing can be computed with them; the weights as they were trained",
    )


def test_weights_that_were_never_written_are_refused(tmp_path):
    spoil(tmp_path, **{NORM: torch.zeros(16), QUERY: torch.zeros(16, 16)})
    match = f"^spec.model.path: got nothing but zeros in {QUERY}, {NORM} of .*: the file was never "
    with pytest.raises(ConfigError, match=match):
        load_model(tmp_path)


def test_a_block_that_was_put_in_as_the_identity_is_fine(tmp_path):
    spoil(tmp_path, **{OUTPUT: torch.zeros(16, 16)})
    assert not load_model(tmp_path).get_parameter(OUTPUT).any()
