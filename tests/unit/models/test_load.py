from pathlib import Path

import pytest
import torch
from family_models import FAMILY_MODELS
from refused_jobs import edit
from safetensors.torch import load_file, save_file
from tiny_models import MIXTURE, save_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3MoeForCausalLM

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.family import CORRECTION
from ppojob_trainer.models.load import cast_weights, load_model
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.models.transformers_modules import unify_modules

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
    assert load_model(tmp_path, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["deepseek_v3", "minimax_m2", "ernie4_5_moe"])
def test_routers_alone_choose_by_more_than_16_bits(tmp_path, family):
    kind, options = FAMILY_MODELS[family]
    save_model(tmp_path, kind, num_hidden_layers=2, **options)
    stored = load_file(tmp_path / "model.safetensors")
    loaded = dict(load_model(tmp_path, torch.bfloat16).named_parameters())
    exact = {name for name, weight in loaded.items() if weight.dtype != torch.bfloat16}
    assert exact == {name for name in stored if name.endswith(CORRECTION)} != set()
    assert all(torch.equal(loaded[name], stored[name]) for name in exact)
    config = AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):  # as ranks that share a model begin
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    unify_modules(model)
    cast_weights(torch.bfloat16, model)
    kept = {name for name, weight in model.named_parameters() if weight.dtype == torch.float32}
    assert kept == exact


def test_steps_of_nemotron_have_no_limit(tmp_path):
    """Of transformers those of a text have one, and those of a token that it goes on with none."""
    kind, options = FAMILY_MODELS["nemotron_h"]
    save_model(tmp_path, kind, **{**options, "time_step_min": 0.5, "initializer_range": 0.3})
    model, text = load_model(tmp_path), torch.arange(3, 15)[None]
    with torch.no_grad():
        whole = model(text, use_cache=False).logits
        cache, found = None, []
        for token in text.split(1, dim=1):
            told = model(token, past_key_values=cache, use_cache=True)
            cache = told.past_key_values
            found.append(told.logits)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=0, atol=1e-5)


def spoil(folder: Path, **changes: Tensor) -> None:
    """Save a model some of whose tensors are others."""
    save_model(folder, tie_word_embeddings=True)
    path = folder / "model.safetensors"
    save_file({**load_file(path), **changes}, path, {"format": "pt"})


def no_numbers(folder: Path) -> None:
    query = torch.ones(16, 16)
    query[3, 5:7] = torch.nan
    spoil(folder, **{NORM: torch.full((16,), torch.inf), QUERY: query})


def other_shape(folder: Path) -> None:
    save_model(folder, tie_word_embeddings=True)
    edit(folder / "config.json", {"intermediate_size": 25})


def other_angles(folder: Path) -> None:
    """What the checks before a run refuse: on a cluster they have not been asked."""
    save_model(folder, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0})


def one_expert_less(folder: Path) -> None:
    save_model(folder, Qwen3MoeForCausalLM, **MIXTURE)
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.0.mlp.experts.4.up_proj.weight"]
    save_file(weights, path, {"format": "pt"})


def no_weights(folder: Path) -> None:
    save_model(folder, tie_word_embeddings=True)
    (folder / "model.safetensors").unlink()


def never_written(folder: Path) -> None:
    spoil(folder, **{NORM: torch.zeros(16), QUERY: torch.zeros(16, 16)})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda folder: None, r"spec.model.path: got .*config.json cannot be read"),
        (
            lambda folder: (folder / "config.json").write_text('{"model_type": "bloom"}'),
            r'config.json:model_type: got "bloom": ',
        ),
        (other_angles, r'config.json:rope_parameters: got "dynamic": '),
        (no_weights, "the model cannot be loaded"),
        (one_expert_less, r"it holds no model.layers.0.mlp.experts.4.up_proj.weight; all weights"),
        (other_shape, r"gate_proj.weight has shape \(24, 16\): .*\(25, 16\);"),
        (no_numbers, rf"spec.model.path: got 18 values that are NaN .* in {QUERY}, {NORM} of "),
        (never_written, rf"^spec.model.path: got only zeros in {QUERY}, {NORM} of "),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, make, told):
    make(tmp_path)
    with pytest.raises(ConfigError, match=told) as refused:
        load_model(tmp_path)
    assert len(refused.value.problems) == 1


def test_a_block_that_was_put_in_as_the_identity_is_fine(tmp_path):
    spoil(tmp_path, **{OUTPUT: torch.zeros(16, 16)})
    assert not load_model(tmp_path).get_parameter(OUTPUT).any()
