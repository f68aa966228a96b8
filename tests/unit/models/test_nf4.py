"""Matrices in four bits against the formula, and layers that keep them."""

from statistics import NormalDist

import pytest
import torch
from tiny_models import MIXTURE, TWO_LAYERS, save_model
from transformers import Qwen2ForCausalLM, Qwen2MoeForCausalLM

from ppojob_api.problem import ReasonCode
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models import nf4
from ppojob_trainer.models.architectures import linear_layers, nf4_bytes, sizes_of
from ppojob_trainer.models.layout_checks import check_targets
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_of, adapters_off
from ppojob_trainer.models.state_dict import (
    every_tensor,
    hf_named_tensors,
    named_full_tensors,
    plain_weights,
    trained_tensors,
)
from ppojob_trainer.models.weight_stream import stored_weights

WIDE = {**TWO_LAYERS, "hidden_size": 72, "intermediate_size": 160}  # blocks of a row: 64 and 8
NF4 = LoraSpec(rank=4, alpha=6.0, base_type="nf4", target_modules=("q_proj", "down_proj"))
PLAIN = NF4.model_copy(update={"base_type": None})
CPU = torch.device("cpu")
BITSANDBYTES = "00000111111112222233344445556667788899aaabbbccccddddeeeeeeefffff"


def test_values_are_quantiles_of_a_normal_distribution_between_minus_one_and_one():
    """As the paper's code makes them: eight above nothing, nothing, and seven below."""
    offset, inverse = 0.9677083, NormalDist().inv_cdf
    above = [inverse(offset + (0.5 - offset) * i / 8) for i in range(8)]
    below = [-inverse(offset + (0.5 - offset) * i / 7) for i in range(7)]
    made = sorted([*above, 0.0, *below])
    expected = [value / max(made) for value in made]
    assert list(nf4.VALUES) == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 64, 130])
def test_each_number_is_the_nearest_value_times_the_largest_of_its_block(dtype, columns):
    weight = torch.randn(5, columns, generator=torch.Generator().manual_seed(1)).to(dtype)
    codes, scales = nf4.quantised(weight)
    found = nf4.dequantised(codes, scales, columns, dtype)
    assert (codes.dtype, found.dtype) == (torch.uint8, dtype)
    for row, made in zip(weight.tolist(), found, strict=True):
        literal = []
        for first in range(0, columns, 64):
            block = row[first : first + 64]
            scale = max(map(abs, block))
            nearest = (min(nf4.VALUES, key=lambda v, x=x, s=scale: abs(x / s - v)) for x in block)
            literal += [value * scale for value in nearest]
        assert torch.equal(made, torch.tensor(literal, dtype=torch.float64).float().to(dtype))
    assert torch.equal(nf4.rounded(found), found)


def test_codes_lie_two_a_byte_as_bitsandbytes_has_them():
    """What its `quantize_4bit` of 0.50.2 says of the same numbers."""
    codes, scales = nf4.quantised(torch.linspace(-2.0, 2.0, 64)[None])
    assert scales.tolist() == [[2.0]]
    assert bytes(codes[0].tolist()).hex() == BITSANDBYTES


def test_rows_alone_have_the_bits_that_they_have_in_the_whole():
    weight = torch.randn(7, 100)
    whole = nf4.quantised(weight)
    for cut in (slice(0, 4), slice(4, 7), slice(7, 7)):
        for part, all_of_it in zip(nf4.quantised(weight[cut]), whole, strict=True):
            assert torch.equal(part, all_of_it[cut])


def test_nothing_stays_nothing():
    assert torch.equal(nf4.rounded(torch.zeros(2, 70)), torch.zeros(2, 70))


def adapted(folder, lora=NF4, dtype=torch.float32):
    model = load_model(folder, dtype, lora=lora, seed=5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for adapter in adapters_of(model).values():
            adapter.b.normal_(std=0.1, generator=generator)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("nf4") / "model"
    save_model(path, Qwen2ForCausalLM, **WIDE)
    return path


def save_plain(folder, dtype, path):
    plain = load_model(folder, dtype)
    nf4.round_layers(plain)
    plain.save_pretrained(path)
    return path


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_passes_are_those_of_plain_weights_bit_for_bit(folder, tmp_path, dtype, autocast):
    plain = save_plain(folder, dtype, tmp_path)
    ids = torch.randint(50, (2, 9))
    said = []
    for path, spec in ((folder, NF4), (plain, PLAIN)):
        model = adapted(path, spec, dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(ids).logits
            with adapters_off(model), torch.no_grad():
                base = model(ids).logits
        logits.float().square().sum().backward()
        grads = {name: one.grad for name, one in model.named_parameters() if one.requires_grad}
        said.append({"logits": logits.detach(), "base": base, **grads})
    ours, theirs = said
    assert not torch.equal(ours["logits"], ours["base"])
    assert len(ours) == 2 + 2 * 2 * 2  # A and B of two matrices of two layers
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_engines_and_exports_get_what_the_trainer_computes_with(folder, tmp_path):
    plain = save_plain(folder, torch.float32, tmp_path / "plain")
    model, same = adapted(folder), adapted(plain, PLAIN)
    for merges in (True, False):
        ours = dict(named_full_tensors(model, merges=merges))
        expected = dict(named_full_tensors(same, merges=merges))
        assert list(ours) == list(expected)
        assert [name for name in ours if not torch.equal(ours[name], expected[name])] == []
    # An engine that reads the folder itself, adapters beside.
    base = dict(stored_weights(folder, torch.float32, CPU, lora=NF4))
    assert [name for name in ours if not torch.equal(ours[name], base[name])] == []

    values = plain_weights(model, lambda tensor: tensor)
    for name, one, kept in (("ours", model, values), ("theirs", same, lambda _, tensor: tensor)):
        export_model(
            tmp_path / name,
            every_tensor(one),
            model_folder=folder,
            dtype=torch.float32,
            adapters=adapters_of(one),
            wrap_join=lambda join, kept=kept: (
                lambda n, tensor, dtype: join(n, kept(n, tensor), dtype)
            ),
        )
    exports = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("ours", "theirs")]
    assert exports[0] == exports[1]


def test_all_matrices_of_blocks_are_in_four_bits_and_nothing_else(folder):
    model = load_model(folder, lora=NF4)
    ours, plain = dict(hf_named_tensors(model)), dict(hf_named_tensors(load_model(folder)))
    assert {name: one.shape for name, one in ours.items()} == {
        name: one.shape for name, one in plain.items()
    }
    matrices = {name for name in plain if name.endswith("_proj.weight")}
    assert nf4.nf4_layers(model).keys() == matrices
    for name in plain.keys() - matrices:
        assert torch.equal(ours[name], plain[name]), name
    kept = {name for name in trained_tensors(model) if name.endswith(("lora_a", "lora_b"))}
    assert trained_tensors(model).keys() == kept, "a checkpoint holds adapters alone"
    assert not any(one.requires_grad for n, one in model.named_parameters() if n not in kept)


def test_memory_is_what_is_planned(folder):
    model, sizes = load_model(folder, lora=NF4), sizes_of(str(folder))
    held = sum(
        one.nbytes
        for layer in model.modules()
        if isinstance(layer, nf4.Nf4Linear)
        for one in (layer.weight, layer.weight_scales)
    )
    shapes = [shape for n in range(sizes.layers) for shape in linear_layers(sizes, n).values()]
    assert held == sum(nf4_bytes(*shape) for shape in shapes)
    assert nf4_bytes(4096, 4096) == 4096 * 4096 * 9 / 16


def test_weights_of_no_meaning_are_refused(folder, tmp_path):
    broken = load_model(folder)
    layer = next(one for n, one in broken.named_modules() if n.endswith("q_proj"))
    with torch.no_grad():
        layer.weight.fill_(float("nan"))
    broken.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"NaN or infinite in .*q_proj\.weight"):
        load_model(tmp_path, lora=NF4)


def test_mixtures_are_refused_by_name(tmp_path):
    save_model(tmp_path, Qwen2MoeForCausalLM, **{**TWO_LAYERS, **MIXTURE})
    (problem,) = check_targets(LoraSpec(rank=4, base_type="nf4"), str(tmp_path), "spec.model.lora")
    assert problem.where == "spec.model.lora.baseType"
    assert problem.reason_code == ReasonCode.NOT_IN_THIS_VERSION
    assert "qwen2_moe" in problem.why
