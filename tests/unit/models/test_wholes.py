import json
import re
from pathlib import Path

import pytest
import torch
from padded_reference import pixels_of
from refused_jobs import edit
from safetensors.torch import load_file, save_file
from seeing_models import save_seeing_model, tried, whole_class
from tiny_models import image
from whole_models import WHOLES, save_whole

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.models import families
from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.architectures import sizes_of
from ppojob_trainer.models.folder_checks import check_model_folder
from ppojob_trainer.models.kinds import CRITIC, SCORER
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_of
from ppojob_trainer.models.model_classes import language_config
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.models.vision_tower import tower_of
from ppojob_trainer.models.weight_stream import stored_weights

SEEING = ["gemma3", "gemma4", "gemma4_unified", "idefics3", "internvl", "mistral3", "smolvlm"]
SEEING += ["lfm2_vl", "lighton_ocr", "llava", "llava_next", "llava_onevision", "aya_vision"]
SEEING += ["ovis2"]
"""Of these wholes, those whose tower is read."""
MAY_TIE = [name for name in WHOLES if name != "qwen2_audio"]
"""Those that have no output layer of their own where config.json says so."""


def is_of_text(name: str) -> bool:
    own = (".language_model.", ".text_model.", ".lm_head.")
    return any(one in f".{name}" for one in own)


def test_every_whole_has_a_model() -> None:
    assert families.MULTIMODAL.keys() == {*WHOLES}


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("name", tried(MAY_TIE))
def test_text_is_read_as_by_the_whole(tmp_path: Path, name: str, is_tied: bool) -> None:
    whole = save_whole(tmp_path, name, tie_word_embeddings=is_tied)
    report = check_model_folder(tmp_path)
    assert (report.errors, report.warnings, report.context_tokens) == ([], [], 128)
    assert read_form(tmp_path) is None
    model = load_model(tmp_path)
    named = dict(hf_named_tensors(model))
    assert ("lm_head.weight" in named) is not is_tied
    ids = torch.randint(3, 50, (2, 12))
    with torch.no_grad():
        said, expected = (one(input_ids=ids).logits for one in (model, whole))
    # Of Llama 4 transformers computes all experts, and sums up the ones without weights.
    torch.testing.assert_close(said, expected, rtol=0, atol=1e-6 if name == "llama4" else 0)
    streamed = dict(stored_weights(tmp_path, torch.float32, torch.device("cpu")))
    assert list(streamed) == list(named)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("name", tried(MAY_TIE))
def test_a_head_that_is_there_is_used_where_a_whole_and_its_part_differ(tmp_path, name, is_tied):
    """transformers writes its default of the whole, tied, beside that of the part."""
    save_whole(tmp_path, name, tie_word_embeddings=is_tied)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config |= {"tie_word_embeddings": True}
    config["text_config"] |= {"tie_word_embeddings": False}
    path.write_text(json.dumps(config))
    sizes = sizes_of(str(tmp_path))
    assert sizes is not None
    assert sizes.is_tied == language_config(tmp_path).tie_word_embeddings == is_tied
    report = check_model_folder(tmp_path)
    assert (report.errors, report.warnings) == ([], [])


def test_newer_names_of_weights_are_known_and_kept(tmp_path: Path) -> None:
    """Those that the modules of transformers 5 have, which other tools write."""
    folder = tmp_path / "model"
    before = save_whole(folder, "mistral3")
    weights = {name: weight.contiguous() for name, weight in before.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    report = check_model_folder(folder)
    assert (report.errors, report.warnings) == ([], [])
    model = load_model(folder)
    export_model(
        tmp_path / "export", hf_named_tensors(model), model_folder=folder, dtype=torch.float32
    )
    exported = load_file(tmp_path / "export" / "model.safetensors")
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], weights[name]) for name in weights)


@pytest.mark.parametrize("has_adapters", [True, False])
@pytest.mark.parametrize("name", tried(WHOLES))
def test_an_export_is_a_whole_again(tmp_path: Path, name: str, has_adapters: bool) -> None:
    folder, target = tmp_path / "model", tmp_path / "export"
    before = save_whole(folder, name)
    stored = load_file(folder / "model.safetensors")
    lora = LoraSpec(rank=2, alpha=2) if has_adapters else None
    model = load_model(folder, lora=lora, seed=3)
    with torch.no_grad():
        for at, weight in model.named_parameters():
            if is_adapter(at):
                weight.fill_(1.0)
            elif not has_adapters:
                weight.add_(0.5)
    tensors = hf_named_tensors(model)
    kept = {"model_folder": folder, "dtype": torch.float32, "adapters": adapters_of(model)}
    export_model(target, tensors, **kept)
    assert load_file(target / "model.safetensors").keys() == stored.keys()
    loaded, info = whole_class(name).from_pretrained(target, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    values = dict(before.named_parameters())
    if has_adapters:  # which PEFT finds in the whole
        held = load_file(target / "adapter" / "adapter_model.safetensors")
        layers = {re.sub(r"^base_model\.model\.|lora_[AB]\.", "", at) for at in held}
        assert layers == {at for at in values if is_of_text(at)} & layers
        assert len(layers) == len(kept["adapters"])
    for at, weight in loaded.named_parameters():
        learnt = 0.5 if is_of_text(at) else 0.0
        if has_adapters:
            parts = r"^(model\.language_model|model\.text_model|language_model\.model)\."
            own = re.sub(parts, "model.", at)
            learnt = 2.0 if own in kept["adapters"] else 0.0
        assert torch.equal(weight, values[at] + learnt), at
    report = check_model_folder(target)
    assert (report.errors, report.warnings) == ([], [])
    if has_adapters:
        again = load_model(folder, lora=LoraSpec(rank=2, alpha=2, path=str(target / "adapter")))
        found = {at: weight for at, weight in again.named_parameters() if is_adapter(at)}
        assert found
        assert all((weight == 1.0).all() for weight in found.values())


@pytest.mark.parametrize("kind", tried([*SEEING, "qwen2_vl"]))
def test_a_tower_has_the_bits_of_its_file(tmp_path: Path, kind: str) -> None:
    """Those of the hub say bfloat16 in each section, which an export in float32 keeps."""
    save_seeing_model(tmp_path, kind)
    path, said = tmp_path / "config.json", []
    section = json.loads(path.read_text())["vision_config"]
    for dtype in ("float32", "bfloat16"):
        edit(path, {"vision_config": {**section, "dtype": dtype}})
        for with_tower in (False, True):
            tower = tower_of(load_model(tmp_path, with_tower=with_tower))
            assert tower is not None
            said += [one.detach() for one in tower.encode([image("red")])]
    assert all(torch.equal(one, said[0]) for one in said)


@pytest.mark.parametrize(
    ("name", "learns"),
    [("gemma3", True), ("gemma3", False), ("lfm2_vl", True), ("llava_next", True)],
)
def test_names_that_the_hub_has_for_a_tower_of_siglip_are_known_and_kept(tmp_path, name, learns):
    """Those of google/gemma-3-4b-it, which transformers 5 changes when it reads them."""
    folder, target = tmp_path / "model", tmp_path / "export"
    save_seeing_model(folder, name)
    path = folder / "model.safetensors"
    stored = {
        at.replace("vision_tower.vision_model.", "vision_tower.").replace(
            "vision_tower.", "vision_tower.vision_model."
        ): weight
        for at, weight in load_file(path).items()
    }
    save_file(stored, path, {"format": "pt"})
    report = check_model_folder(folder)
    assert (report.errors, report.warnings) == ([], [])
    model = load_model(folder, with_tower=learns)
    tower = tower_of(model)
    assert tower is not None
    (seen,) = tower.encode([image("red")])
    whole = whole_class(name).from_pretrained(folder)
    (expected,) = whole.get_image_features(**pixels_of(folder, [image("red")])).pooler_output
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-6)
    export_model(target, hf_named_tensors(model), model_folder=folder, dtype=torch.float32)
    exported = load_file(target / "model.safetensors")
    assert exported.keys() == stored.keys()
    assert all(torch.equal(exported[at], stored[at]) for at in stored)


@pytest.mark.parametrize("name", tried(SEEING))
def test_a_tower_that_learns_is_in_the_export(tmp_path: Path, name: str) -> None:
    """Under the names that the folder has, and none of it is left as it was."""
    folder, target = tmp_path / "model", tmp_path / "export"
    before = dict(save_seeing_model(folder, name).named_parameters())
    model = load_model(folder, with_tower=True)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.5)
    export_model(target, hf_named_tensors(model), model_folder=folder, dtype=torch.float32)
    stored = load_file(folder / "model.safetensors")
    assert load_file(target / "model.safetensors").keys() == stored.keys()
    loaded = whole_class(name).from_pretrained(target)
    for at, weight in loaded.named_parameters():
        assert torch.equal(weight, before[at] + 0.5), at


def test_a_config_of_the_hub_leaves_most_of_gemma_out(tmp_path: Path) -> None:
    """That of google/gemma-3-4b-it has these keys of the language model alone."""
    save_whole(tmp_path, "gemma3")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    text |= {"model_type": "gemma3_text", "sliding_window": 1024}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    del config["tie_word_embeddings"]
    path.write_text(json.dumps(config | {"text_config": text}))
    report = check_model_folder(tmp_path)
    shapes = [one.why for one in report.errors if one.reason_code == "TensorShape"]
    assert "[262208, 2560]" in shapes[0]
    assert not [one for one in report.errors if one.reason_code == "BadConfig"]


def test_configs_of_the_hub_leave_out_sizes_of_the_text_of_llava(tmp_path: Path) -> None:
    """Those of LLaVA 1.5 and 1.6 have the default sizes of Llama and Mistral in transformers."""
    for name, kind, inner in (("llava", "llama", 11008), ("llava_next", "mistral", 14336)):
        save_whole(tmp_path / name, name)
        text = {"model_type": kind, "vocab_size": 32064, "max_position_embeddings": 4096}
        edit(tmp_path / name / "config.json", {"text_config": text})
        sizes, told = sizes_of(str(tmp_path / name)), language_config(tmp_path / name)
        assert sizes is not None
        assert (sizes.hidden, sizes.layers) == (told.hidden_size, told.num_hidden_layers)
        assert told.intermediate_size == inner


def test_what_is_not_made_of_a_part_is_refused(tmp_path: Path) -> None:
    save_whole(tmp_path, "mistral3")
    assert not check_model_folder(tmp_path, CRITIC).errors
    assert not check_model_folder(tmp_path, SCORER).errors
    edit(tmp_path / "config.json", {"text_config": {"model_type": "bloom"}})
    (unknown,) = check_model_folder(tmp_path).errors
    assert (unknown.where, unknown.got) == (f"{tmp_path}/config.json:model_type", '"bloom"')
