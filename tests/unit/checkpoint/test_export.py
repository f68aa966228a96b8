import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.lora import adapters_in
from ppojob_trainer.models.weight_files import SINGLE_FILE

WEIGHTS = {
    "model.embed.weight": torch.arange(24.0).view(6, 4),
    "model.norm.weight": torch.ones(4),
    "model.steps": torch.tensor(3),
}


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    contents = {
        "config.json": '{"model_type": "llama", "torch_dtype": "float32"}',
        "generation_config.json": "{}",
        "tokenizer.json": "{}",
        "tokenizer_config.json": "{}",
        "chat_template.jinja": "theirs",
        "LICENSE": "Apache",
        "model.safetensors": "old weights",
        "model.safetensors.index.json": "{}",
        "pytorch_model.bin": "old weights",
        "README.md": "a card of another model",
        "optimizer.pt": "x",
    }
    for name, text in contents.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def export(model_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    def write(weights=WEIGHTS, dtype=torch.float32, **options: object) -> Path:
        target = tmp_path / "export"
        export_model(target, weights.items(), model_folder=model_folder, dtype=dtype, **options)
        return target

    return write


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_in_an_export(export):
    target = export(dtype=torch.bfloat16)
    assert set(contents(target)) == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "LICENSE",
        "model.safetensors",
    }
    config = json.loads((target / "config.json").read_text())
    assert config == {"model_type": "llama", "torch_dtype": "bfloat16", "dtype": "bfloat16"}
    with safe_open(target / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(WEIGHTS)
        embed = file.get_tensor("model.embed.weight")
        assert torch.equal(embed, WEIGHTS["model.embed.weight"].bfloat16())
        assert file.get_tensor("model.steps").dtype == torch.int64


def test_twice_gives_the_same_bytes(export, tmp_path: Path):
    first = contents(export())
    (tmp_path / "export" / "stray").touch()
    assert contents(export(dict(reversed(WEIGHTS.items())))) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "model"]


def test_what_routers_choose_by_is_not_rounded(export, model_folder: Path):
    bias = torch.tensor([1.0, 1.0 + 1e-4])
    weights = {**WEIGHTS, "model.layers.1.mlp.gate.e_score_correction_bias": bias}
    target = export(weights, torch.bfloat16)
    with safe_open(target / "model.safetensors", framework="pt") as file:
        found = file.get_tensor("model.layers.1.mlp.gate.e_score_correction_bias")
        assert file.get_tensor("model.norm.weight").dtype == torch.bfloat16
    assert torch.equal(found, bias)


@pytest.mark.parametrize(
    "name",
    ["model.layers.2.eh_proj.weight", "model.mtp_layers.0.input_proj.weight", "mtp.fc.weight"],
)
@pytest.mark.parametrize("scores", [False, True])
def test_layers_that_predict_further_tokens_are_kept(export, model_folder, name, scores):
    """And promised where there are any; a model that scores draws none."""
    config = {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    (model_folder / "config.json").write_text(json.dumps(config))
    further = torch.arange(8.0)
    save_file({"model.norm.weight": torch.zeros(4), name: further}, model_folder / SINGLE_FILE)
    head = {"score.weight": torch.ones(1, 4)} if scores else {}
    target = export({**WEIGHTS, **head})
    stored = load_file(target / SINGLE_FILE)
    assert torch.equal(stored["model.norm.weight"], WEIGHTS["model.norm.weight"])
    assert stored.keys() == {*WEIGHTS, *head, *([] if scores else [name])}
    assert scores or torch.equal(stored[name], further)
    exported = json.loads((target / "config.json").read_text())
    assert exported["num_nextn_predict_layers"] == (0 if scores else 1)


def test_tokenizer_and_template_of_the_job(export, tmp_path: Path):
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("other")
    found = contents(export(tokenizer_folder=tokenizer, chat_template="ours"))
    assert found["tokenizer.json"] == b"other"
    assert found["chat_template.jinja"] == b"ours"
    assert "tokenizer_config.json" not in found


def test_split_weights_have_an_index(export):
    target = export(max_file_bytes=100)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 24 * 4 + 4 * 4 + 8
    assert index["weight_map"] == {
        "model.embed.weight": "model-00001-of-00002.safetensors",
        "model.norm.weight": "model-00002-of-00002.safetensors",
        "model.steps": "model-00002-of-00002.safetensors",
    }
    for name, file in index["weight_map"].items():
        with safe_open(target / file, "pt") as opened:
            assert torch.equal(opened.get_tensor(name), WEIGHTS[name])


@pytest.mark.parametrize("text", [None, "{"])
def test_no_configuration_is_said(export, model_folder: Path, tmp_path: Path, text: str | None):
    (model_folder / "config.json").unlink()
    if text is not None:
        (model_folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"model/config\.json:"):
        export()
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "qwen2_5_vl", "vision_config": {}}, "a vision tower"),
        (
            {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1},
            "layers that predict further tokens",
        ),
        ({"model_type": "apertus"}, "untrained scalars"),
    ],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_weights_that_are_gone_are_missed(export, model_folder, config, what, is_there):
    """What is taken over from the files of the folder where training began."""
    (model_folder / "config.json").write_text(json.dumps(config))
    if not is_there:
        (model_folder / SINGLE_FILE).unlink()
        (model_folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ConfigError) as refused:
        export()
    (line,) = refused.value.problems
    assert line.startswith(str(model_folder))
    assert line.endswith("would not be in the export")
    assert what in line


def test_numbers_that_travel_with_the_weights_are_not_missed(export, model_folder: Path) -> None:
    """Those of Gemma 4 have a dimension in files, and so are as all other weights."""
    (model_folder / "config.json").write_text(json.dumps({"model_type": "gemma4_text"}))
    (model_folder / SINGLE_FILE).unlink()
    (model_folder / "model.safetensors.index.json").unlink()
    export()


@pytest.mark.slow  # imports transformers
@pytest.mark.timeout(180)
def test_transformers_loads_it_with_equal_weights(tmp_path: Path):
    from tiny_models import save_model
    from transformers import AutoModelForCausalLM

    model = save_model(tmp_path / "model", tie_word_embeddings=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    target = tmp_path / "export"
    export_model(
        target, model.named_parameters(), model_folder=tmp_path / "model", dtype=torch.bfloat16
    )
    loaded = AutoModelForCausalLM.from_pretrained(target)
    assert loaded.dtype == torch.bfloat16
    for name, tensor in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), tensor.bfloat16()), name
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


@pytest.mark.slow  # imports transformers
@pytest.mark.timeout(180)
def test_numbers_without_a_dimension_go_back_as_they_were(tmp_path: Path):
    """Of Apertus' activation: ranks hold each as a tensor of one."""
    from family_models import FAMILY_MODELS
    from tiny_models import save_model

    from ppojob_trainer.models.load import load_model

    kind, options = FAMILY_MODELS["apertus"]
    saved = save_model(tmp_path / "model", kind, **options).state_dict()
    held = load_model(tmp_path / "model").named_parameters()
    export_model(tmp_path / "export", held, model_folder=tmp_path / "model", dtype=torch.float32)
    loaded = kind.from_pretrained(tmp_path / "export").state_dict()
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [10.0, 2.5])
def test_merged_and_apart(dtype, alpha, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    generator = torch.Generator().manual_seed(0)
    w, a, b = (torch.randn(*shape, generator=generator) for shape in ((6, 8), (3, 8), (6, 3)))
    weights = {f"{LAYER}.weight": w.to(dtype), "model.norm.weight": torch.ones(8, dtype=dtype)}
    lora = LoraSpec(rank=3, alpha=alpha)
    adapters = adapters_in({f"{LAYER}.lora_a": a, f"{LAYER}.lora_b": b}, lora)
    # The same tensors: whether adapters are equal is not asked, since tensors have no such answer.
    ((name, adapter),) = adapters.items()
    assert (name, adapter.a, adapter.b, adapter.lora) == (f"{LAYER}.weight", a, b, lora)
    target = tmp_path / "export"
    export_model(
        target, weights.items(), model_folder=tmp_path / "model", dtype=dtype, adapters=adapters
    )
    found = load_file(target / "model.safetensors")
    assert found.keys() == weights.keys()
    assert torch.equal(found["model.norm.weight"], weights["model.norm.weight"])
    dense = (w.to(dtype).float() + alpha / 3 * (b @ a)).to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found[f"{LAYER}.weight"], dense, rtol=tolerance, atol=tolerance)

    # The names and words of PEFT 0.21, which loads such a folder.
    apart = load_file(target / "adapter" / "adapter_model.safetensors")
    assert apart.keys() == {f"base_model.model.{LAYER}.lora_{kind}.weight" for kind in "AB"}
    assert torch.equal(apart[f"base_model.model.{LAYER}.lora_A.weight"], a)
    assert torch.equal(apart[f"base_model.model.{LAYER}.lora_B.weight"], b)
    config = json.loads((target / "adapter" / "adapter_config.json").read_text())
    expected = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": alpha}
    expected |= {"target_modules": ["q_proj"], "bias": "none", "use_rslora": False}
    expected |= {"base_model_name_or_path": str(tmp_path / "model")}
    assert expected.items() <= config.items()
