"""Adapters that begin as a part of the weights, against numpy's decompositions and PEFT's layer."""

import json
from typing import get_args

import numpy as np
import pytest
import torch
from tiny_models import TWO_LAYERS, save_model
from transformers import Qwen2ForCausalLM

from ppojob_api.v1alpha1.model import FROM_BASE, LoraSpec
from ppojob_trainer.checkpoint.export import export_adapters
from ppojob_trainer.models.architectures import adapter_shapes, sizes_of
from ppojob_trainer.models.layout_checks import check_targets
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_of, adapters_off
from ppojob_trainer.models.state_dict import named_full_tensors

RANK, ALPHA = 4, 6.0
IDS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("starts") / "model"
    save_model(path, Qwen2ForCausalLM, **TWO_LAYERS)
    return path


def begun(folder, init, **changes):
    spec = LoraSpec(rank=RANK, alpha=ALPHA, init=init, **changes)
    return load_model(folder, lora=spec, seed=5), spec


def halves(layer):
    """A, A0, B and -B0."""
    a, b = layer.lora_a.detach(), layer.lora_b.detach()
    return a[:RANK], a[RANK:], b[:, :RANK], b[:, RANK:]


def test_each_start_of_the_base_is_a_value_of_the_field():
    assert set(FROM_BASE) < set(get_args(LoraSpec.model_fields["init"].annotation))


@pytest.mark.parametrize("stabilized", [False, True])
@pytest.mark.parametrize("init", FROM_BASE)
def test_a_begins_with_its_part_of_the_weight_and_the_model_as_it_is(folder, init, stabilized):
    model, spec = begun(folder, init, rank_stabilized=stabilized)
    for layer in (model.model.layers[1].self_attn.k_proj, model.model.layers[0].mlp.down_proj):
        a, first_a, b, first_b = halves(layer)
        assert torch.equal(a, first_a)
        assert torch.equal(b, -first_b)
        weight = layer.weight.detach().double().numpy()
        part = spec.scale * (b.double() @ a.double()).numpy()
        if init == "olora":
            q, r = np.linalg.qr(weight)
            expected = spec.scale * q[:, :RANK] @ r[:RANK]
        else:
            u, s, v = np.linalg.svd(weight, full_matrices=False)
            expected = (u[:, :RANK] * s[:RANK]) @ v[:RANK]
        if "niter" in init:  # of a slowly falling spectrum other vectors are nearly as good
            left, least = (np.linalg.norm(weight - one) for one in (part, expected))
            assert least <= left < 1.05 * least
        else:
            assert np.linalg.norm(part - expected) < 1e-5 * np.linalg.norm(expected)
        if init == "pissa":  # as PEFT divides the singular values
            torch.testing.assert_close(a @ a.T, b.T @ b, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        found = model(IDS).logits
        with adapters_off(model):
            torch.testing.assert_close(found, model(IDS).logits, rtol=1e-4, atol=1e-4)


def test_only_half_is_trained_and_all_readers_have_the_same_model(folder, tmp_path):
    model, spec = begun(folder, "pissa")
    base = load_model(folder)
    layer = model.model.layers[1].self_attn.q_proj
    model(IDS).logits.square().sum().backward()
    assert layer.lora_a.grad[:RANK].all()
    assert layer.lora_b.grad[:, :RANK].all()
    assert not layer.lora_a.grad[RANK:].any()
    assert not layer.lora_b.grad[:, RANK:].any()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for adapter in adapters_of(model).values():
            for one in adapter.a[:RANK], adapter.b[:, :RANK]:
                one.add_(0.1 * torch.randn(one.shape, generator=generator))
        a, first_a, b, first_b = halves(layer)
        x = torch.randn(7, 32)
        residual = layer.weight + spec.scale * first_b @ first_a  # first_b is negative
        literal = x @ (residual + spec.scale * b @ a).T + layer.bias
        torch.testing.assert_close(layer(x), literal, rtol=1e-4, atol=1e-4)
        expected = model(IDS).logits
        with adapters_off(model):
            assert torch.equal(model(IDS).logits, base(IDS).logits)
        assert not torch.allclose(base(IDS).logits, expected, atol=1e-2)
        base.load_state_dict(dict(named_full_tensors(model)), strict=False)
        torch.testing.assert_close(base(IDS).logits, expected, rtol=1e-3, atol=1e-3)

        export_adapters(tmp_path / "adapter", adapters_of(model), str(folder), {})
        config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_bytes())
        assert (config["r"], config["lora_alpha"], config["init_lora_weights"]) == (8, 12, True)
        plain = LoraSpec(rank=8, alpha=12.0, path=str(tmp_path / "adapter"))
        assert adapter_shapes(sizes_of(str(folder)), plain) == adapter_shapes(
            sizes_of(str(folder)), spec
        )
        again = load_model(folder, lora=plain)
        torch.testing.assert_close(again(IDS).logits, expected, rtol=1e-3, atol=1e-3)


def test_no_matrix_has_fewer_vectors_than_adapters_take(folder):
    (problem,) = check_targets(LoraSpec(rank=100, init="olora"), str(folder), "spec.model.lora")
    assert problem.where == "spec.model.lora.rank"
    assert list(check_targets(LoraSpec(rank=RANK, init="olora"), str(folder), "")) == []
