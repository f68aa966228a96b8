import itertools
import json
import re
from pathlib import Path

import pytest
import tiny_jobs
import torch
from family_models import FAMILY_MODELS
from safetensors.torch import load_file, save_file
from tiny_models import TWO_LAYERS, save_model
from transformers import PreTrainedModel

from ppojob_api.problem import ReasonCode
from ppojob_api.v1alpha1.model import LoraSpec, ModelSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.folder_checks import check_model_folder, context_tokens
from ppojob_trainer.models.layout_checks import check_layouts, check_targets
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_in, adapters_of
from ppojob_trainer.models.state_dict import hf_named_tensors, named_full_tensors, trained_tensors

OLDER = ("gpt_neox", "gpt2", "opt", "phi", "starcoder2", "stablelm")
LAYERS = {
    "gpt_neox": "gpt_neox.layers",
    "gpt2": "transformer.h",
    "opt": "model.decoder.layers",
    "phi": "model.layers",
}
"""transformers' name of them."""
LORA = LoraSpec(rank=3, alpha=6.0)
TOKENS = torch.arange(3, 23)[None]


def saved(folder: Path, family: str, **changes: object) -> PreTrainedModel:
    kind, options = FAMILY_MODELS[family]
    return save_model(folder, kind, **{**TWO_LAYERS, "vocab_size": 50, **options, **changes})


def states(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.base_model(input_ids=TOKENS, use_cache=False).last_hidden_state


@pytest.mark.parametrize("family", [*LAYERS, "hy_v3", "laguna", "falcon_h1"])
def test_exports_have_the_names_of_files_and_transformers_loads_them(tmp_path: Path, family: str):
    saved(tmp_path / "model", family)
    model = load_model(tmp_path / "model")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    export = tmp_path / "export"
    export_model(
        export, hf_named_tensors(model), model_folder=tmp_path / "model", dtype=torch.float32
    )
    stored = load_file(export / "model.safetensors").keys()
    assert stored == load_file(tmp_path / "model" / "model.safetensors").keys()
    loaded = FAMILY_MODELS[family][0].from_pretrained(export).eval()
    with torch.no_grad():
        ours = model(input_ids=TOKENS, use_cache=False).logits
        torch.testing.assert_close(loaded(input_ids=TOKENS).logits, ours, rtol=1e-4, atol=1e-4)


def test_old_files_of_gpt2_lack_the_name_of_the_model_and_hold_masks(tmp_path: Path):
    model, path = saved(tmp_path, "gpt2"), tmp_path / "model.safetensors"
    stored = {n.removeprefix("transformer."): one for n, one in load_file(path).items()}
    masks = {f"h.{n}.attn.bias": torch.ones(1, 1, 8, 8) for n in range(2)}
    save_file({**stored, **masks}, path, {"format": "pt"})
    report = check_model_folder(tmp_path)
    assert not [*report.errors, *report.warnings]
    assert report.parameters == model.num_parameters()  # masks are none
    assert torch.equal(states(load_model(tmp_path)), states(model.eval()))


@pytest.mark.parametrize(
    ("family", "has_lengths"),
    [("gpt2", False), *itertools.product(("gpt_neox", "opt", "phi"), (False, True))],
)
def test_adapters_change_what_their_merged_weights_change(tmp_path: Path, family, has_lengths):
    lora = LORA.model_copy(update={"weight_decomposed": has_lengths})
    saved(tmp_path / "model", family)
    model = load_model(tmp_path / "model", lora=lora)
    for name, matrix in trained_tensors(model).items():
        assert is_adapter(name)
        matrix.normal_(std=0.3)
    merged, export = load_model(tmp_path / "model"), tmp_path / "export"
    own = dict(merged.named_parameters())
    with torch.no_grad():
        for name, tensor in named_full_tensors(model):
            own[name].copy_(tensor)
    assert not torch.equal(states(load_model(tmp_path / "model")), states(model))
    torch.testing.assert_close(states(merged), states(model), rtol=1e-4, atol=1e-4)
    # A checkpoint has the matrices alone; PEFT's names of them are those of transformers' layers.
    transposed_dims = 2 if family == "gpt2" else 0
    found = adapters_in(trained_tensors(model), lora, transposed_dims=transposed_dims)
    axes = {name: adapter.is_transposed for name, adapter in adapters_of(model).items()}
    assert {name: adapter.is_transposed for name, adapter in found.items()} == axes
    export_model(
        export,
        hf_named_tensors(model),
        model_folder=tmp_path / "model",
        dtype=torch.float32,
        adapters=adapters_of(model),
    )
    names = load_file(export / "adapter" / "adapter_model.safetensors")
    assert {re.sub(r"\.\d\..*", "", name) for name in names} == {
        f"base_model.model.{LAYERS[family]}"
    }
    told = json.loads((export / "adapter" / "adapter_config.json").read_text())
    assert told["fan_in_fan_out"] is (family == "gpt2")
    again = lora.model_copy(update={"path": str(export / "adapter")})
    assert torch.equal(states(load_model(tmp_path / "model", lora=again)), states(model))


@pytest.mark.parametrize("family", OLDER)
def test_dropout_is_off_but_for_a_jobs_own(tmp_path: Path, family: str):
    keys = FAMILIES[family].dropouts
    saved(tmp_path, family, **dict.fromkeys(keys, 0.4))
    model = load_model(tmp_path)
    expected = states(model)
    assert torch.equal(states(model.train()), expected)
    asked = ModelSpec(path=str(tmp_path), attention_dropout=0.2)
    dropped = load_model(tmp_path, overrides=config_changes(tmp_path, asked)).train()
    dropped.set_attn_implementation("eager")
    assert not torch.allclose(states(dropped), expected, atol=1e-3)


def test_learnt_positions_are_as_many_as_there_are(tmp_path: Path):
    model, length = saved(tmp_path, "gpt2"), TWO_LAYERS["max_position_embeddings"]
    assert check_model_folder(tmp_path).context_tokens == length
    assert context_tokens(model.config.to_dict()) == length  # as scores ask
    asked = ModelSpec(path=str(tmp_path), max_position_embeddings=256)
    (error,) = check_model_folder(tmp_path, overrides=config_changes(tmp_path, asked)).errors
    assert error.where == "spec.model.maxPositionEmbeddings"
    assert error.reason_code == ReasonCode.CONFLICT


@pytest.mark.parametrize(
    ("family", "changes", "where"),
    [
        ("opt", {"do_layer_norm_before": False}, {"do_layer_norm_before"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_by_inverse_layer_idx"}),
        ("stablelm", {"qk_layernorm": True}, {"qk_layernorm"}),
        ("stablelm", {"use_parallel_residual": True}, {"use_parallel_residual"}),
        ("phi", {"qk_layernorm": True}, {"qk_layernorm"}),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(tmp_path, family, changes, where):
    saved(tmp_path, family)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    errors = check_model_folder(tmp_path).errors
    assert {one.where.rpartition(":")[2] for one in errors} == where


def test_layouts_engines_and_four_bits_that_gpt2_does_not_take(tmp_path: Path):
    saved(tmp_path / "model", "gpt2")
    pods = {"ranksPerReplica": 4, "parallelism": {"tensor": 2, "pipeline": 2}}
    config = tiny_jobs.config_of(
        tmp_path,
        model={"path": str(tmp_path / "model"), "lora": {"rank": 4}},
        algorithm={"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2},
        roles={"actorRollout": pods},
        rollout={"engine": "vllm", "adapters": "beside"},
    )
    found = {one.where for one in check_layouts(config.spec)}
    assert found == {"spec.rollout.adapters", "spec.roles.actorRollout.parallelism.pipeline"}
    lora = LoraSpec(
        rank=4, base_type="nf4", weight_decomposed=True, target_modules=["c_attn", "q_proj"]
    )
    refused = check_targets(lora, str(tmp_path / "model"), "spec.model.lora")
    assert {one.where for one in refused} == {
        "spec.model.lora.baseType",
        "spec.model.lora.weightDecomposed",
        "spec.model.lora.targetModules[1]",
    }
