import json
import re
from pathlib import Path

import pytest
import torch
from omni_models import SPEAKING, save_omni_model
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.folder_checks import check_model_folder
from ppojob_trainer.models.kinds import CRITIC
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_of
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.models.weight_stream import stored_weights

LORA = LoraSpec(rank=2, alpha=2)


@pytest.mark.parametrize("kind", SPEAKING)
@pytest.mark.parametrize("speaks", [True, False])
def test_text_is_read_as_by_the_thinker(tmp_path: Path, kind: str, speaks: bool) -> None:
    thinker = save_omni_model(tmp_path, kind, speaks=speaks)
    report = check_model_folder(tmp_path)
    assert (report.errors, report.warnings, report.context_tokens) == ([], [], 256)
    model = load_model(tmp_path)
    ids = torch.randint(3, 90, (2, 12))
    with torch.no_grad():
        said, expected = (one(input_ids=ids).logits for one in (model, thinker))
    # Here experts are added up in another order.
    torch.testing.assert_close(said, expected, rtol=0, atol=1e-6 if kind == "3" else 0)
    streamed = dict(stored_weights(tmp_path, torch.float32, torch.device("cpu")))
    assert list(streamed) == list(dict(hf_named_tensors(model)))


@pytest.mark.parametrize("kind", SPEAKING)
@pytest.mark.parametrize("is_tied", [True, False])
def test_whether_the_embedding_is_the_output_layer_the_thinker_says(tmp_path, kind, is_tied):
    """Whatever its text and what is around it say, whose defaults are others."""
    thinker = save_omni_model(tmp_path, kind, speaks=True, tie_word_embeddings=is_tied)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"tie_word_embeddings": not is_tied}
    config["thinker_config"]["text_config"]["tie_word_embeddings"] = not is_tied
    path.write_text(json.dumps(config))
    assert check_model_folder(tmp_path).errors == []
    model = load_model(tmp_path)
    assert ("lm_head.weight" in dict(hf_named_tensors(model))) is not is_tied
    ids = torch.randint(3, 90, (1, 12))
    with torch.no_grad():
        said, expected = (one(input_ids=ids).logits for one in (model, thinker))
    torch.testing.assert_close(said, expected, rtol=0, atol=1e-6 if kind == "3" else 0)


@pytest.mark.parametrize("kind", SPEAKING)
@pytest.mark.parametrize("speaks", [True, False])
@pytest.mark.parametrize("has_adapters", [True, False])
def test_an_export_is_the_folder_again(tmp_path: Path, kind: str, speaks: bool, has_adapters: bool):
    """What speaks is in it as it was, with its voices, and the audio of it in its own type."""
    folder, target = tmp_path / "model", tmp_path / "export"
    save_omni_model(folder, kind, speaks=speaks)
    before = load_file(folder / "model.safetensors")
    model = load_model(folder, lora=LORA if has_adapters else None, seed=3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if is_adapter(name):
                weight.fill_(1.0)
            elif not has_adapters:
                weight.add_(0.5)
    export_model(
        target,
        hf_named_tensors(model),
        model_folder=folder,
        dtype=torch.bfloat16,
        adapters=adapters_of(model),
    )
    after = load_file(target / "model.safetensors")
    assert after.keys() == before.keys()
    beginning = "thinker." if speaks else ""
    learnt = {name for name in before if name.startswith((f"{beginning}model.", f"{beginning}lm_"))}
    made = {name for name in before if name.startswith("token2wav.")}
    assert bool(made) is (speaks and kind == "2.5")
    assert all(torch.equal(after[name], before[name]) for name in made)
    rest = before.keys() - made
    changed = {name for name in rest if not torch.equal(after[name], before[name].bfloat16())}
    assert changed == ({f"{beginning}{name}" for name in adapters_of(model)} or learnt)
    report = check_model_folder(target)
    assert (report.errors, report.warnings) == ([], [])
    speaking, thinking = SPEAKING[kind]
    whole = (speaking if speaks else thinking).from_pretrained(target, dtype=torch.float32)
    loaded = revert_weight_conversion(whole, whole.state_dict())
    loaded = {name: one for name, one in loaded.items() if name in after}
    assert loaded.keys() == after.keys()
    assert all(torch.equal(loaded[name], after[name].float()) for name in after)
    if speaks and kind == "2.5":
        assert whole.speaker_map
    if has_adapters:
        as_peft_finds_them(target / "adapter", whole, folder)


@pytest.mark.parametrize("kind", SPEAKING)
def test_a_critic_comes_back(tmp_path: Path, kind: str) -> None:
    """Beside what speaks, as a policy's export does; it begins with values of 0."""
    folder, target = tmp_path / "model", tmp_path / "export"
    save_omni_model(folder, kind, speaks=True)
    assert check_model_folder(folder, CRITIC).errors == []
    critic = load_model(folder, kind=CRITIC)
    assert not critic.score.weight.any()
    with torch.no_grad():
        critic.score.weight.normal_()
    named = dict(hf_named_tensors(critic))
    export_model(target, named, model_folder=folder, dtype=torch.float32, kind=CRITIC)
    report = check_model_folder(target, CRITIC)
    assert (report.errors, report.warnings) == ([], [])
    again = dict(hf_named_tensors(load_model(target, kind=CRITIC)))
    assert again.keys() == named.keys()
    assert all(torch.equal(again[name], named[name]) for name in named)


def as_peft_finds_them(adapter: Path, whole: PreTrainedModel, folder: Path) -> None:
    """Layers that the adapters name are those of the decoder in the whole, and no others."""
    pattern = json.loads((adapter / "adapter_config.json").read_text())["target_modules"]
    modules = {name for name, _ in whole.named_modules() if re.fullmatch(pattern, name)}
    held = load_file(adapter / "adapter_model.safetensors")
    layers = {re.sub(r"^base_model\.model\.|\.lora_[AB]\.weight$", "", name) for name in held}
    assert layers == modules
    assert len(layers) == (14 if whole.config.model_type.startswith("qwen2_5") else 8)
    again = load_model(folder, lora=LoraSpec(rank=2, alpha=2, path=str(adapter)))
    found = [one for name, one in again.named_parameters() if is_adapter(name)]
    assert found
    assert all((one == 1.0).all() for one in found)
