import json
import shutil
from pathlib import Path

import pytest
import torch
from refused_jobs import edit
from safetensors.torch import load_file
from seeing_models import THREE_WAYS, save_seeing_model, tried, whole_class
from tiny_models import PATCH

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_adapters, export_model
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models import families
from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.folder_checks import check_model_folder
from ppojob_trainer.models.kinds import CRITIC, SCORER
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_of
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.models.weight_stream import stored_weights


def make_older(folder: Path) -> None:
    """Write config.json as folders of the hub have it: but for Qwen3-VL all at the top."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if config["model_type"].startswith(("qwen3_5", "glm_ocr")):
        return  # there are no older ones
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    if config["model_type"].startswith("glm4v"):
        text["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if config["model_type"] == "glm4v_moe":
        path.write_text(json.dumps({**config, "text_config": text}))
        return
    if config["model_type"].startswith("qwen3_vl"):
        rope["mrope_interleaved"] = True
        path.write_text(json.dumps({**config, "text_config": text}))
        return
    qwens = "default" if config["model_type"] == "glm4v" else "mrope"
    rope["type"] = rope.pop("rope_type").replace("default", qwens)
    path.write_text(json.dumps({**text, **config}))


@pytest.mark.parametrize("is_older", [True, False])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", tried(THREE_WAYS))
def test_the_language_model_of_a_folder_says_what_the_whole_says_of_text(
    tmp_path: Path, kind: str, is_tied: bool, is_older: bool
) -> None:
    whole = save_seeing_model(tmp_path, kind, tie_word_embeddings=is_tied)
    if is_older:
        make_older(tmp_path)
    report = check_model_folder(tmp_path)
    assert (report.errors, report.warnings) == ([], [])
    assert report.context_tokens == 128
    model = load_model(tmp_path)
    named = dict(hf_named_tensors(model))
    assert ("lm_head.weight" in named) is not is_tied
    stored = {
        name.replace("model.language_model.", "model.")
        for name in load_file(tmp_path / "model.safetensors")
        if "visual." not in name
    }
    assert named.keys() == stored
    ids = torch.randint(3, 50, (2, 12))
    with torch.no_grad():
        said, expected = (one(input_ids=ids).logits for one in (model, whole))
    # Products of experts have an order of their own.
    limit = 1e-5 if families.FAMILIES[model.config.model_type].mixture else 0.0
    torch.testing.assert_close(said, expected, rtol=0, atol=limit)
    streamed = dict(stored_weights(tmp_path, torch.float32, torch.device("cpu")))
    assert list(streamed) == list(named)


@pytest.mark.parametrize("is_split", [True, False])
@pytest.mark.parametrize("kind", tried(THREE_WAYS[1:]))
def test_an_export_has_the_tower_and_loads_as_a_whole(tmp_path, kind, is_split):
    folder, target = tmp_path / "model", tmp_path / "export"
    before = save_seeing_model(folder, kind, tie_word_embeddings=True).state_dict()
    model = load_model(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.5)
    options = {"max_file_bytes": 10_000} if is_split else {}
    changes = {"max_position_embeddings": 64}
    export_model(
        target,
        hf_named_tensors(model),
        model_folder=folder,
        dtype=torch.float32,
        overrides=changes,
        **options,
    )
    loaded, info = whole_class(kind).from_pretrained(target, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    assert loaded.config.text_config.max_position_embeddings == 64
    for name, weight in loaded.named_parameters():
        learnt = 0.0 if "visual." in name else 0.5
        assert torch.equal(weight, before[name] + learnt)
    processor = json.loads((target / "preprocessor_config.json").read_text())
    assert processor["patch_size"] == PATCH
    report = check_model_folder(target)
    assert (report.errors, report.warnings) == ([], [])


@pytest.mark.parametrize("kind", THREE_WAYS)
def test_adapters_are_merged_and_apart(tmp_path: Path, kind: str) -> None:
    """Under the names that the folder has for its weights, and that PEFT has for its layers."""
    folder, target, lora = tmp_path / "model", tmp_path / "export", LoraSpec(rank=2, alpha=2)
    before = save_seeing_model(folder, kind).state_dict()
    model = load_model(folder, lora=lora, seed=3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if is_adapter(name):
                weight.fill_(1.0)
    tensors = hf_named_tensors(model)
    kept = {"model_folder": folder, "dtype": torch.float32, "adapters": adapters_of(model)}
    export_model(target, tensors, **kept)
    loaded = whole_class(kind).from_pretrained(target)
    for name, weight in loaded.named_parameters():
        is_linear = name.endswith("weight") and ("_proj" in name or "expert_gate" in name)
        is_adapted = "visual." not in name and is_linear
        assert torch.equal(weight, before[name] + (2.0 if is_adapted else 0.0)), name
    again = load_model(folder, lora=LoraSpec(rank=2, alpha=2, path=str(target / "adapter")))
    found = {name: weight for name, weight in again.named_parameters() if is_adapter(name)}
    assert all((weight == 1.0).all() for weight in found.values())
    shutil.rmtree(folder)
    with pytest.raises(ConfigError, match="no model configuration"):
        export_adapters(tmp_path / "alone", kept["adapters"], str(folder), {})


def test_what_is_not_made_of_such_a_model_is_refused(tmp_path: Path) -> None:
    save_seeing_model(tmp_path)
    assert not check_model_folder(tmp_path, CRITIC).errors
    assert not check_model_folder(tmp_path, SCORER).errors
    edit(tmp_path / "config.json", {"text_config": {"hidden_size": "wide"}})
    report = check_model_folder(tmp_path)
    assert f"{tmp_path}/config.json:hidden_size" in [one.where for one in report.errors]
