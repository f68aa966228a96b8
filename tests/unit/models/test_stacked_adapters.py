"""Adapters of experts of one tensor, against transformers' models whose stacks PEFT's rule changes.

The rule is that of `ParamWrapper.get_delta_weight` of PEFT 0.21, and so are the names.
"""

import json
import math

import pytest
import torch
from family_models import FAMILY_MODELS, MIXTURE_MODELS
from safetensors.torch import load_file
from tiny_models import TWO_LAYERS, save_model

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_adapters, export_model
from ppojob_trainer.models.adapter_files import check_adapters
from ppojob_trainer.models.adapter_names import matrix_names
from ppojob_trainer.models.architectures import adapter_shapes, sizes_of
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.layout_checks import check_targets
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import adapters_in, adapters_of, adapters_off
from ppojob_trainer.models.state_dict import hf_named_tensors, named_full_tensors, trained_tensors

STACKED = sorted(name for name in MIXTURE_MODELS if FAMILIES[name].mixture.is_stacked)
LORA = LoraSpec(rank=8, alpha=6.0, experts=True)
EXPERTS = 6
STACKS = ("gate_up_proj", "down_proj")


def save(folder, family):
    kind, own = MIXTURE_MODELS[family]
    return save_model(folder, kind, **{**TWO_LAYERS, "vocab_size": 50, **own}).eval()


def adapted(folder, lora=LORA):
    model = load_model(folder, lora=lora, seed=5)
    generator = torch.Generator().manual_seed(1)
    for adapter in adapters_of(model).values():
        adapter.b.normal_(std=0.1, generator=generator)
    return model


def stacks_of(model):
    return {name: one for name, one in adapters_of(model).items() if name.endswith(STACKS)}


def change_by_rule(theirs, matrices, scale):
    for name, a in matrices.items():
        if ".lora_A." not in name:
            continue
        layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        b = matrices[name.replace(".lora_A.", ".lora_B.")]
        layer = layer.replace(".language_model.", ".")
        if not layer.endswith((".experts", ".experts.base_layer")):
            theirs.get_parameter(f"{layer}.weight").add_(scale * b @ a)
            continue
        stack = "gate_up_proj" if layer.endswith(".base_layer") else "down_proj"
        module = theirs.get_submodule(layer.removesuffix(".base_layer"))
        a = a.reshape(EXPERTS, -1, a.shape[-1])
        b = b.reshape(b.shape[0], -1, EXPERTS)
        is_transposed = getattr(module, "is_transposed", True)  # Llama 4's does not say it
        rule = "o r e, e r i -> e i o" if is_transposed else "o r e, e r i -> e o i"
        getattr(module, stack).add_(scale * torch.einsum(rule, b, a))


@pytest.mark.parametrize("family", STACKED)
def test_a_model_with_adapters_is_transformers_own_with_peft_s_changes(tmp_path, family):
    theirs, model = save(tmp_path, family), adapted(tmp_path)
    ids = torch.randint(50, (2, 9))
    with torch.no_grad(), adapters_off(model):
        before = model(input_ids=ids).logits
        torch.testing.assert_close(before, theirs(input_ids=ids).logits, rtol=1e-4, atol=5e-5)
    export_adapters(tmp_path / "adapter", adapters_of(model), str(tmp_path), {})
    with torch.no_grad():
        change_by_rule(
            theirs, load_file(tmp_path / "adapter" / "adapter_model.safetensors"), LORA.scale
        )
        found = model(input_ids=ids).logits
        torch.testing.assert_close(found, theirs(input_ids=ids).logits, rtol=1e-4, atol=5e-5)
    assert (found - before).abs().max() > 1e-3
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["target_parameters"] == ["experts.down_proj", "experts.gate_up_proj"]
    assert "o_proj" in config["target_modules"]

    begun = LORA.model_copy(update={"path": str(tmp_path / "adapter")})
    assert not list(check_adapters(begun, str(tmp_path), "lora"))
    again, held = trained_tensors(load_model(tmp_path, lora=begun)), trained_tensors(model)
    assert again.keys() == held.keys()
    assert all(torch.equal(again[name], weight) for name, weight in held.items())


@pytest.mark.parametrize("family", STACKED)
def test_gradients_are_those_of_merged_weights(tmp_path, family):
    save(tmp_path, family)
    plain, model = load_model(tmp_path), adapted(tmp_path)
    merged = dict(named_full_tensors(model))
    with torch.no_grad():
        for name, tensor in merged.items():
            plain.get_parameter(name).copy_(tensor)
    ids = torch.randint(50, (2, 9))
    said, expected = model(input_ids=ids).logits, plain(input_ids=ids).logits
    torch.testing.assert_close(said, expected, rtol=1e-4, atol=5e-5)
    slope = torch.randn(said.shape)
    said.backward(slope)
    expected.backward(slope)
    stacks, held = stacks_of(model), dict(model.named_parameters())
    assert len(stacks) == 2 * sum(name.endswith("experts.gate_up_proj") for name in merged)
    for name, adapter in stacks.items():
        dense = plain.get_parameter(name).grad
        if FAMILIES[family].mixture.is_transposed:
            dense = dense.mT
        literal = adapter.b.mT @ dense, dense @ adapter.a.mT
        for matrix, own in zip(matrix_names(name), literal, strict=True):
            assert own.any()
            torch.testing.assert_close(held[matrix].grad, LORA.scale * own, rtol=1e-4, atol=1e-4)
        assert held[name].grad is None


@pytest.mark.parametrize("family", ["gpt_oss", "granitemoehybrid"])
def test_an_export_holds_merged_stacks(tmp_path, family):
    """By the files' names, also of matrices that a checkpoint has, which says nothing of axes."""
    save(tmp_path, family)
    model = adapted(tmp_path)
    transposed_dims = 3 if FAMILIES[family].mixture.is_transposed else 0
    adapters = adapters_in(trained_tensors(model), LORA, transposed_dims=transposed_dims)
    tensors = dict(hf_named_tensors(model))
    target = tmp_path / "export"
    export_model(
        target, tensors.items(), model_folder=tmp_path, dtype=torch.float32, adapters=adapters
    )
    found = dict(hf_named_tensors(load_model(target)))
    for name, adapter in stacks_of(model).items():
        change = LORA.scale * torch.einsum("eor, eri -> eoi", adapter.b, adapter.a)
        literal = tensors[name] + (change.mT if transposed_dims else change)
        torch.testing.assert_close(found[name], literal, rtol=1e-5, atol=1e-6)
        assert not torch.equal(found[name], tensors[name])


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (("gate_up_proj",), {"experts.lora_A.weight"}),
        (("down_proj",), {"experts.lora_A.weight"}),
        (STACKS, {"experts.lora_A.weight", "experts.base_layer.lora_A.weight"}),
    ],
)
def test_stacks_alone_are_named_as_peft_wraps_them(tmp_path, targets, names):
    save(tmp_path, "gpt_oss")
    lora = LORA.model_copy(update={"target_modules": targets})
    model = adapted(tmp_path, lora)
    assert {name.rpartition(".")[2] for name in adapters_of(model)} == set(targets)
    export_adapters(tmp_path / "adapter", adapters_of(model), str(tmp_path), {})
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    at = "base_model.model.model.layers.0.mlp."
    assert {name.removeprefix(at) for name in stored if at in name and "lora_A" in name} == names
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == []
    assert config["target_parameters"] == sorted(f"experts.{name}" for name in targets)
    (other,) = {"gate_up_proj", "down_proj"}.difference(targets[:1])
    for asked in (targets, (other,)):
        begun = lora.model_copy(update={"path": str(tmp_path / "adapter"), "target_modules": asked})
        problems = list(check_adapters(begun, str(tmp_path), "lora"))
        assert bool(problems) == (asked != targets)


@pytest.mark.parametrize("family", ["gemma4_text", "qwen3_5_moe_text"])
def test_experts_alone_are_adapted_beside_blocks_of_such_names(tmp_path, family):
    """As PEFT's parameters are matched: by the end of their paths."""
    save(tmp_path, family)
    lora = LORA.model_copy(update={"target_modules": ("experts.down_proj", "q_proj")})
    assert not list(check_targets(lora, str(tmp_path), "lora"))
    found = {name.split(".")[-2:][0] for name in adapters_of(load_model(tmp_path, lora=lora))}
    assert found == {"experts", "q_proj"}
    without = lora.model_copy(update={"experts": False})
    (problem,) = check_targets(without, str(tmp_path), "lora")
    assert problem.where == "lora.targetModules[0]"
    assert "experts: true" in problem.why


def test_each_matrix_of_a_stack_is_drawn_by_its_own_width(tmp_path):
    save(tmp_path, "gpt_oss")
    model = load_model(tmp_path, lora=LORA, seed=7)
    again, other = (load_model(tmp_path, lora=LORA, seed=seed) for seed in (7, 8))
    for name, adapter in stacks_of(model).items():
        assert not adapter.b.any()
        bound = 1.0 / math.sqrt(adapter.a.shape[-1])
        assert (
            (0.9 * bound < adapter.a.abs().amax((1, 2))) & (adapter.a.abs().amax() <= bound)
        ).all()
        assert len({tuple(one[0, :4].tolist()) for one in adapter.a}) == EXPERTS
        assert torch.equal(adapter.a, stacks_of(again)[name].a)
        assert not torch.equal(adapter.a, stacks_of(other)[name].a)


@pytest.mark.parametrize(
    ("family", "model"), [*FAMILY_MODELS.items(), ("gemma4_text", MIXTURE_MODELS["gemma4_text"])]
)
def test_adapters_are_those_that_memory_is_planned_by(tmp_path, family, model):
    kind, own = model
    save_model(tmp_path, kind, **{**TWO_LAYERS, "vocab_size": 50, **own})
    lora = LORA.model_copy(update={"experts": FAMILIES[family].mixture is not None})
    found = {
        name: tuple(one.shape)
        for name, one in trained_tensors(load_model(tmp_path, lora=lora)).items()
    }
    assert found == adapter_shapes(sizes_of(str(tmp_path)), lora)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_5_moe_text"])
def test_below_stacks_of_bfloat16_adapters_are_float32(tmp_path, family, autocast):
    save(tmp_path, family)
    model = adapted(tmp_path)
    exact = next(one for one in model.modules() if hasattr(one, "gate_up_proj"))
    half = load_model(tmp_path, torch.bfloat16, lora=LORA)
    for name, tensor in trained_tensors(half).items():
        assert tensor.dtype == torch.float32
        tensor.copy_(model.get_parameter(name))
    rounded = next(one for one in half.modules() if hasattr(one, "gate_up_proj"))
    states, chosen = torch.randn(12, 32), torch.arange(24).view(12, 2) % EXPERTS
    weights = torch.rand(12, 2)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = rounded(states.bfloat16(), chosen, weights)
    found.float().sum().backward()
    expected = exact(states, chosen, weights)
    expected.sum().backward()
    assert found.dtype == torch.bfloat16
    assert (found - expected).norm() < 0.05 * expected.norm()
    for name, matrix in rounded.named_parameters():
        if matrix.requires_grad:
            assert matrix.grad.dtype == torch.float32
            own = exact.get_parameter(name).grad
            assert (matrix.grad - own).norm() < 0.05 * own.norm()
