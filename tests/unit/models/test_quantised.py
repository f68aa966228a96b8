import json
from itertools import product
from pathlib import Path

import pytest
import torch
from family_models import FAMILY_MODELS
from mtp_models import save_mtp_model
from quantised_models import FILE, FORMS, FP8, fp8_blocks, quantise
from safetensors.torch import load_file, save_file
from tiny_models import TWO_LAYERS, save_model
from transformers import AutoModelForCausalLM, Mxfp4Config, Qwen3ForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from whole_models import save_whole

from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.models.folder_checks import check_model_folder
from ppojob_trainer.models.kinds import CRITIC, JUDGE
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.models.stored_tensors import read_part, read_tensor
from ppojob_trainer.models.weight_files import read_weights
from ppojob_trainer.models.weight_stream import stored_weights
from ppojob_trainer.parallel.boxes import Box

CPU = torch.device("cpu")


@pytest.fixture(params=list(FORMS))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """A quantised folder, its twin, and what was quantised."""
    folder, twin = tmp_path / "model", tmp_path / "twin"
    if request.param == "mxfp4":
        kind, options = FAMILY_MODELS["gpt_oss"]
        save_model(folder, kind, **{**options, "hidden_size": 64, "intermediate_size": 96})
    else:
        save_model(folder, Qwen3ForCausalLM, **TWO_LAYERS, head_dim=8)
    return folder, twin, quantise(folder, request.param, twin)


def test_a_tensor_is_what_libraries_make_of_it(pair: tuple[Path, Path, list[str]]) -> None:
    folder, twin, names = pair
    ours, theirs = read_weights(folder), load_file(twin / FILE)
    assert not ours.problems
    assert set(ours.quantised) == set(names)
    assert ours.tensors.keys() == ours.files.keys() == ours.stored.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(read_tensor(ours, name), tensor), name


def test_a_part_has_the_bits_of_the_whole(pair: tuple[Path, Path, list[str]]) -> None:
    folder, twin, names = pair
    weights, theirs = read_weights(folder), load_file(twin / FILE)
    for name in names[:3]:
        whole = theirs[name]
        cuts = [((0, size), (5, size - 3), (size // 2, size)) for size in whole.shape[-2:]]
        for (top, bottom), (left, right) in product(*cuts):
            start, stop = (top, left), (bottom, right)
            if whole.dim() > 2:
                start, stop = (1, *start), (len(whole), *stop)
            box = Box(tuple(whole.shape), start, stop)
            assert torch.equal(read_part(weights, name, box), whole[box.slices]), (name, box)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_its_twin(pair: tuple[Path, Path, list[str]], dtype: torch.dtype) -> None:
    folder, twin, _ = pair
    loaded = dict(hf_named_tensors(load_model(twin, dtype)))
    model = load_model(folder, dtype)
    for found in (dict(hf_named_tensors(model)), dict(stored_weights(folder, dtype, CPU))):
        assert found.keys() == loaded.keys()
        for name, tensor in loaded.items():
            assert torch.equal(found[name], tensor), name
            assert found[name].dtype == tensor.dtype
    assert not hasattr(model.config, "quantization_config")
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        theirs = load_model(twin, dtype)(input_ids=tokens).logits
        assert torch.equal(model(input_ids=tokens).logits, theirs)


def test_a_critic_of_it_gets_a_head(pair: tuple[Path, Path, list[str]]) -> None:
    folder, twin, _ = pair
    ours, theirs = (load_model(path, kind=CRITIC).state_dict() for path in (folder, twin))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_checks_take_it_and_say_what_becomes_of_it(pair: tuple[Path, Path, list[str]]) -> None:
    folder, twin, _ = pair
    report, plain = check_model_folder(folder), check_model_folder(twin)
    assert not report.errors
    assert [warning.reason_code for warning in report.warnings] == [ModelReason.QUANTISED]
    assert report.parameters == plain.parameters
    refused = check_model_folder(folder, JUDGE).errors
    assert [problem.reason_code for problem in refused] == [ModelReason.QUANTISED]


def test_an_export_is_not_quantised(pair: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    folder, twin, _ = pair
    for source, target in ((folder, "ours"), (twin, "theirs")):
        weights = hf_named_tensors(load_model(source))
        export_model(tmp_path / target, weights, model_folder=source, dtype=torch.bfloat16)
    for path in (tmp_path / "theirs").iterdir():
        assert (tmp_path / "ours" / path.name).read_bytes() == path.read_bytes(), path.name


def test_transformers_loads_gpt_oss_as_here(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    kind, options = FAMILY_MODELS["gpt_oss"]
    save_model(folder, kind, **{**options, "hidden_size": 64, "intermediate_size": 96})
    quantise(folder, "mxfp4", tmp_path / "twin")
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16
    )
    ours = dict(hf_named_tensors(load_model(folder, torch.bfloat16)))
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_blocks_are_those_of_transformers(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = tmp_path / "model"
    save_model(folder, Qwen3ForCausalLM, **{**TWO_LAYERS, "hidden_size": 40}, head_dim=8)
    quantise(folder, "fp8 blocks", tmp_path / "twin")
    stored, ours = load_file(folder / FILE), read_weights(folder)
    compared = 0
    for name in ours.quantised:
        values, scales = stored[name], stored[f"{name}_scale_inv"]
        if values.shape[0] % 24 or values.shape[1] % 40:
            continue
        theirs = Fp8Dequantize(None)._dequantize_one(values, scales, dtype)
        assert torch.equal(read_tensor(ours, name).to(dtype), theirs), name
        compared += 1
    assert compared


def test_stacks_and_layers_of_further_tokens_are_dequantised(tmp_path: Path) -> None:
    folder, twin = tmp_path / "model", tmp_path / "twin"
    save_mtp_model(folder, "deepseek_v3")
    names = quantise(folder, "fp8 blocks", twin)
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    assert any(name.startswith(f"model.layers.{layers}.") for name in names)
    for source, target in ((folder, "ours"), (twin, "theirs")):
        weights = hf_named_tensors(load_model(source))
        export_model(tmp_path / target, weights, model_folder=source, dtype=torch.bfloat16)
    ours, theirs = (load_file(tmp_path / name / FILE) for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_a_model_that_sees_with_its_tower_quantised(tmp_path: Path) -> None:
    folder, twin = tmp_path / "model", tmp_path / "twin"
    save_whole(folder, "mistral3")
    names = quantise(folder, "fp8", twin)
    assert any("vision_tower" in name for name in names)
    trained = [dict(hf_named_tensors(load_model(one, with_tower=True))) for one in (folder, twin)]
    assert trained[0].keys() == trained[1].keys()
    assert all(torch.equal(tensor, trained[1][name]) for name, tensor in trained[0].items())
    for source, target in ((folder, "ours"), (twin, "theirs")):
        model = load_model(source)
        weights = hf_named_tensors(model)
        export_model(tmp_path / target, weights, model_folder=source, dtype=torch.bfloat16)
    for file in (FILE, "config.json"):
        ours, theirs = ((tmp_path / name / file).read_bytes() for name in ("ours", "theirs"))
        assert ours == theirs


def test_scales_may_lie_in_another_file(pair: tuple[Path, Path, list[str]]) -> None:
    folder, twin, _ = pair
    stored, theirs = load_file(folder / FILE), load_file(twin / FILE)
    (folder / FILE).unlink()
    places = {name: f"{'scale' in name}.safetensors" for name in stored}
    for file in set(places.values()):
        save_file({name: stored[name] for name in places if places[name] == file}, folder / file)
    (folder / f"{FILE}.index.json").write_text(json.dumps({"weight_map": places}))
    assert not check_model_folder(folder).errors
    weights = read_weights(folder)
    assert all(torch.equal(read_tensor(weights, name), one) for name, one in theirs.items())


def test_scales_of_stacks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = [fp8_blocks(torch.randn(50, 90)) for _ in range(3)]
    name = "model.layers.0.mlp.experts.gate_up_proj"
    parts = {
        name + end: torch.stack([parts[end].view(torch.uint8) for parts, _ in made]).view(kind)
        for end, kind in (("", FP8), ("_scale_inv", torch.float32))
    }
    save_file(parts, tmp_path / FILE)
    config = {"model_type": "qwen3", "quantization_config": dict(FORMS["fp8 blocks"][2])}
    (tmp_path / "config.json").write_text(json.dumps(config))
    box = Box((3, 50, 90), (1, 7, 30), (3, 50, 85))
    whole = torch.stack([tensor for _, tensor in made])
    assert torch.equal(read_part(read_weights(tmp_path), name, box), whole[box.slices])


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"weight_block_size": [16, 16]}, ModelReason.TENSOR_SHAPE),
        ({"weight_block_size": [0, 16]}, ModelReason.QUANTISED),
        ({"quant_method": "bitsandbytes"}, ModelReason.QUANTISED),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            ModelReason.QUANTISED,
        ),
        (None, ModelReason.QUANTISED),
    ],
)
def test_what_is_refused(tmp_path: Path, section: dict[str, object] | None, reason: str) -> None:
    folder = tmp_path / "model"
    save_model(folder, Qwen3ForCausalLM, **TWO_LAYERS, head_dim=8)
    quantise(folder, "fp8 blocks", tmp_path / "twin")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    before = config.pop("quantization_config")
    if section is not None:
        config["quantization_config"] = before | section
    path.write_text(json.dumps(config))
    assert reason in {problem.reason_code for problem in check_model_folder(folder).errors}
