"""Adapters with lengths of rows (DoRA), against the paper's formula written out densely."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import TWO_LAYERS, save_model
from transformers import Qwen2ForCausalLM

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_adapters
from ppojob_trainer.models.adapter_dropout import dropped, keys_of_tokens
from ppojob_trainer.models.adapter_files import check_adapters
from ppojob_trainer.models.architectures import adapter_shapes, sizes_of
from ppojob_trainer.models.kinds import CRITIC, POLICY
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_of, adapters_off, replaced
from ppojob_trainer.models.state_dict import (
    hf_named_tensors,
    named_full_adapters,
    named_full_tensors,
    trained_tensors,
)

DORA = LoraSpec(rank=4, alpha=6.0, weight_decomposed=True)
SCALE = 6.0 / 4.0
IDS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("dora") / "model"
    save_model(path, Qwen2ForCausalLM, **TWO_LAYERS)
    return path


def of(lora=DORA, **changes):
    return lora.model_copy(update=changes)


def adapted(folder, lora=DORA):
    model = load_model(folder, lora=lora, seed=5)
    generator = torch.Generator().manual_seed(1)
    for adapter in adapters_of(model).values():
        adapter.b.normal_(std=0.1, generator=generator)
        adapter.m.mul_(torch.empty_like(adapter.m).uniform_(0.5, 1.5, generator=generator))
    return model


def layer_of(model):
    """One with a bias."""
    return model.model.layers[1].self_attn.q_proj


@pytest.mark.parametrize(("dropout", "base"), [(0.0, None), (0.5, None), (0.5, "nf4")])
def test_a_layer_and_its_gradients_are_those_of_the_dense_formula(folder, dropout, base):
    """As section 4.3 of the paper has it: what lengths are divided by is a constant."""
    layer = layer_of(adapted(folder, of(dropout=dropout, base_type=base))).train()
    with torch.no_grad():
        layer.bias.normal_()
    x = torch.randn(15, 32, requires_grad=True)
    with keys_of_tokens(torch.arange(15, dtype=torch.int32)):
        y = layer(x)
        features = torch.arange(32, dtype=torch.int32)
        kept = dropped(torch.ones_like(x), dropout, layer.dropout_seed, features).double()
    slope = torch.randn(y.shape)
    y.backward(slope)

    wide, *trained = (t.detach().double().requires_grad_() for t in (x, *parts(layer)))
    w, bias = layer.matrix().double(), layer.bias.detach().double()
    a, b, m = trained
    norms = (w + SCALE * b @ a).square().sum(1).sqrt().detach()
    turned = (m / norms)[:, None] * (w + SCALE * b @ a)
    # Of what an adapter sees the whole change is dropped, as PEFT has it.
    literal = wide @ w.T + bias + (wide * kept) @ (turned - w).T
    literal.backward(slope.double())
    pairs = [(y, literal), (x.grad, wide.grad)]
    pairs += [(one.grad, same.grad) for one, same in zip(parts(layer), trained, strict=True)]
    for found, expected in pairs:
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-5)
    assert m.grad.any()


def parts(layer):
    return layer.lora_a, layer.lora_b, layer.lora_m


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", [None, "nf4"])
def test_the_beginning_is_the_model_as_it_is_bit_for_bit(folder, base, dtype, autocast):
    """Lengths are then those of its rows, and changes of them alone change what it says."""
    model = load_model(folder, dtype, lora=of(base_type=base), seed=7)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.no_grad():
        said = model(IDS).logits
        with adapters_off(model):
            assert torch.equal(model(IDS).logits, said)
        layer = layer_of(model)
        assert layer.lora_m.dtype == torch.float32
        assert torch.equal(layer.lora_m, torch.linalg.vector_norm(layer.matrix().float(), dim=1))
        layer.lora_m.mul_(1.5)
        assert not torch.equal(model(IDS).logits, said)
        with adapters_off(model):
            assert torch.equal(model(IDS).logits, said)


def test_rows_alone_have_the_lengths_that_they_have_in_the_whole(folder):
    """Ranks measure theirs at the beginning, and divide by those of all."""
    layer, matrix = layer_of(load_model(folder, lora=DORA)), torch.randn(7, 4100)
    for cut in (slice(0, 4), slice(4, 6), slice(6, 7)):
        assert torch.equal(layer.lengths(matrix[cut]), layer.lengths(matrix)[cut])


def test_merged_weights_have_these_lengths_and_give_the_model_s_own_logits(folder):
    model, plain = adapted(folder), load_model(folder)
    found = model(IDS).logits
    assert not torch.allclose(found, plain(IDS).logits, atol=1e-2)
    adapters = adapters_of(model)
    assert len(adapters) == 14
    with torch.no_grad():
        for name, tensor in named_full_tensors(model):
            plain.get_parameter(name).copy_(tensor)
            if name in adapters:
                torch.testing.assert_close(tensor.norm(dim=1), adapters[name].m)
    torch.testing.assert_close(found, plain(IDS).logits, rtol=1e-4, atol=1e-4)


def test_what_is_trained_is_what_is_planned_and_all_other_names_stand(folder):
    model = load_model(folder, lora=DORA)
    shapes = {name: tuple(tensor.shape) for name, tensor in trained_tensors(model).items()}
    assert shapes == adapter_shapes(sizes_of(str(folder)), DORA)
    assert {name.rpartition(".")[2] for name in shapes} == {"lora_a", "lora_b", "lora_m"}
    ours, theirs = dict(hf_named_tensors(model)), dict(hf_named_tensors(load_model(folder)))
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert dict(named_full_adapters(model)).keys() == shapes.keys()


def test_averages_take_the_place_of_adapters_and_of_lengths(folder):
    model = adapted(folder)
    others = {name: torch.randn(one.shape) for name, one in trained_tensors(model).items()}
    for name, adapter in replaced(adapters_of(model), others, lambda one: one).items():
        named = adapter.named(name)
        assert len(named) == 3
        assert all(one is others[own] for own, one in named.items())


def test_a_folder_is_in_peft_s_form_and_a_job_begins_with_it(folder, tmp_path):
    """PEFT calls lengths magnitudes, and has no `.weight` behind them."""
    model = adapted(folder)
    export_adapters(tmp_path, adapters_of(model), str(folder), {})
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["use_dora"] is True
    stored, held = load_file(tmp_path / "adapter_model.safetensors"), trained_tensors(model)
    own = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "lora_m": "lora_magnitude_vector"}
    for name, tensor in held.items():
        layer, _, matrix = name.rpartition(".")
        assert torch.equal(stored.pop(f"base_model.model.{layer}.{own[matrix]}"), tensor)
    assert not stored
    begun = of(path=str(tmp_path))
    for kind in (POLICY, CRITIC):  # a critic may begin with those of the policy
        again = trained_tensors(load_model(folder, kind=kind, lora=begun))
        assert all(torch.equal(again[name], tensor) for name, tensor in held.items())
    plain = of(begun, weight_decomposed=False)
    (problem,) = check_adapters(plain, str(folder), "lora")
    assert problem.where == "lora.weightDecomposed"


def test_a_folder_without_lengths_is_refused_where_they_are_asked_for(folder, tmp_path):
    plain = of(weight_decomposed=False)
    export_adapters(tmp_path, adapters_of(load_model(folder, lora=plain)), str(folder), {})
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert "use_dora" not in config
    told = json.dumps({**config, "use_dora": None, "use_rslora": None})
    (tmp_path / "adapter_config.json").write_text(told)  # null: there are none
    assert not [*check_adapters(of(plain, path=str(tmp_path)), str(folder), "lora")]
    (problem,) = check_adapters(of(path=str(tmp_path)), str(folder), "lora")
    assert (problem.where, problem.got) == ("lora.weightDecomposed", "true")
