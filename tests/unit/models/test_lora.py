import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import MIXTURE, TWO_LAYERS, make_model, save_model
from torch import nn
from transformers import (
    GPT2LMHeadModel,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2ForCausalLM,
    Qwen2MoeForCausalLM,
)

from ppojob_api.problem import ReasonCode
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.checkpoint.export import export_adapters, export_model
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.adapter_dropout import dropped, keys_of_tokens
from ppojob_trainer.models.adapter_files import check_adapters
from ppojob_trainer.models.architectures import adapter_shapes, count_adapters, sizes_of
from ppojob_trainer.models.kinds import CRITIC, POLICY
from ppojob_trainer.models.layout_checks import check_targets
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.lora import (
    LoraLinear,
    adapters_of,
    adapters_off,
    add_adapters,
    draw_adapters,
    seed_dropout,
)
from ppojob_trainer.models.state_dict import (
    hf_named_tensors,
    named_full_adapters,
    named_full_tensors,
    trained_tensors,
)

LLAMA_8B = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
ALL = {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}


def adapted(model=None, *, seed=5, **lora):
    model = model or make_model(Qwen2ForCausalLM, **TWO_LAYERS)
    add_adapters(model, LoraSpec(**{"rank": 4, "alpha": 6.0, **lora}))
    draw_adapters(model, seed)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for adapter in adapters_of(model).values():
            adapter.b.normal_(std=0.1, generator=generator)
    return model


def layer_of(model):
    """One with a bias."""
    return model.model.layers[1].self_attn.q_proj


@pytest.mark.parametrize(("lora", "scale"), [({}, 6.0 / 4.0), ({"rank_stabilized": True}, 3.0)])
def test_a_layer_and_its_gradients_are_those_of_the_dense_formula(lora, scale):
    layer = layer_of(adapted(**lora))
    assert layer.bias is not None
    x = torch.randn(3, 5, 32, requires_grad=True)
    y = layer(x)
    slope = torch.randn(y.shape)
    y.backward(slope)

    w, a, b = (t.detach().double() for t in (layer.weight, layer.lora_a, layer.lora_b))
    dense = w + scale * b @ a
    rows, slopes = x.detach().double().flatten(0, 1), slope.double().flatten(0, 1)
    expected = {
        "y": (y.detach(), (rows @ dense.T + layer.bias.double()).view(y.shape)),
        "x": (x.grad, (slopes @ dense).view(x.shape)),
        "a": (layer.lora_a.grad, scale * b.T @ slopes.T @ rows),
        "b": (layer.lora_b.grad, scale * slopes.T @ rows @ a.T),
    }
    for name, (found, literal) in expected.items():
        torch.testing.assert_close(found.double(), literal, rtol=1e-5, atol=1e-5, msg=name)
    assert layer.weight.grad is None
    assert layer.bias.grad is None


def indices(count):
    return torch.arange(count, dtype=torch.int32)


def test_masks_are_made_of_a_seed_tokens_and_features_alone():
    """So a part of either has the part of the mask, and no two of them have the same."""
    x, keys = torch.ones(300, 40), torch.arange(300, dtype=torch.int32)
    with keys_of_tokens(keys):
        whole = dropped(x, 0.25, 7, indices(40))
        assert whole.mean() == pytest.approx(1.0, abs=0.02)
        assert not torch.equal(dropped(x, 0.25, 8, indices(40)), whole)
        assert torch.equal(dropped(x[:, 8:16], 0.25, 7, indices(40)[8:16]), whole[:, 8:16])
    with keys_of_tokens(keys[100:]):
        assert torch.equal(dropped(x[100:], 0.25, 7, indices(40)), whole[100:])
    for rows in whole, whole.T:
        centred = rows - rows.mean(1, keepdim=True)
        between = (centred @ centred.T / rows.shape[1]).fill_diagonal_(0.0)
        assert between.abs().max() < 0.33  # of a deviation of 1/3


@pytest.mark.parametrize("position", ["pre", "post"])
def test_in_training_the_adapter_alone_loses_numbers_of_its_inputs_or_outputs(position):
    settings = {"dropout": 0.5, "dropout_position": position}
    model, x = adapted(**settings), torch.randn(200, 32)
    seed_dropout(model, 5)
    layer = layer_of(model).train()
    keys, others = torch.randint(-(2**31), 2**31, (2, len(x)), dtype=torch.int32)
    with keys_of_tokens(others):
        other = layer(x)
    with keys_of_tokens(keys):
        found = layer(x)
        assert not torch.equal(other, found)
        width = 32 if position == "pre" else found.shape[1]
        kept = dropped(torch.ones(200, width), 0.5, layer.dropout_seed, indices(width))
        assert torch.equal(layer(x), found)
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    for means in kept.mean(0), kept.mean(1), kept.mean():
        assert means.min() > 0.2
        assert means.mean() == pytest.approx(1.0, abs=0.05)
    dropped_x = (x * kept) if position == "pre" else x
    change = 6.0 / 4.0 * dropped_x @ layer.lora_a.T @ layer.lora_b.T
    change = change if position == "pre" else change * kept
    expected = nn.functional.linear(x, layer.weight, layer.bias) + change
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    layer.eval()
    assert torch.equal(layer(x), layer_of(adapted())(x))


@pytest.mark.parametrize(
    ("init", "deviation"),
    [("gaussian", 1 / 4), ("xavier", math.sqrt(2 / (32 + 4))), ("normal", 0.2)],
)
def test_a_begins_normally_as_peft_and_as_megatron_draw_it(init, deviation):
    drawn = [one.a for one in adapters_of(adapted(init=init)).values() if one.a.shape == (4, 32)]
    values = torch.cat([one.flatten() for one in drawn])
    assert values.std().item() == pytest.approx(deviation, rel=0.05)
    assert 3.0 < values.abs().max() / deviation < 5.0  # and not uniform


def test_merged_weights_give_the_model_s_own_logits_and_without_adapters_the_base_s():
    model, plain = adapted(), make_model(Qwen2ForCausalLM, **TWO_LAYERS)
    ids = torch.randint(50, (2, 9))
    with torch.no_grad():
        with adapters_off(model):
            assert torch.equal(model(ids).logits, plain(ids).logits)
        found = model(ids).logits
        assert not torch.allclose(found, plain(ids).logits, atol=1e-2)
        for name, tensor in named_full_tensors(model):
            plain.get_parameter(name).copy_(tensor)
        torch.testing.assert_close(found, plain(ids).logits, rtol=1e-4, atol=1e-4)


def test_experts_and_their_gradients_are_those_of_merged_weights(tmp_path):
    """With a shared expert beside them. What is saved is taken up again."""
    sizes = {**TWO_LAYERS, **MIXTURE, "shared_expert_intermediate_size": 24}
    save_model(tmp_path / "model", Qwen2MoeForCausalLM, **sizes)
    lora = LoraSpec(rank=8, alpha=6.0, experts=True)
    plain, model = load_model(tmp_path / "model"), load_model(tmp_path / "model", lora=lora, seed=5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for adapter in adapters_of(model).values():
            adapter.b.normal_(std=0.1, generator=generator)
    ids = torch.randint(50, (2, 9))
    with adapters_off(model):
        assert torch.equal(model(ids).logits, plain(ids).logits)
    with torch.no_grad():
        for name, tensor in named_full_tensors(model):
            plain.get_parameter(name).copy_(tensor)
    said, expected = model(ids).logits, plain(ids).logits
    torch.testing.assert_close(said, expected, rtol=1e-5, atol=1e-5)
    slope = torch.randn(said.shape)
    for one in (said, expected):
        one.backward(slope)
    adapters = adapters_of(model)
    names = [name for name in adapters if ".experts." in name]
    assert len(names) == 2 * MIXTURE["num_experts"] * 3
    assert any("shared_expert.gate_proj" in name for name in adapters)
    held = dict(model.named_parameters())
    for name, adapter in adapters.items():
        layer, dense = name.removesuffix("weight"), plain.get_parameter(name).grad
        for end, literal in (("lora_a", adapter.b.T @ dense), ("lora_b", dense @ adapter.a.T)):
            found = held[f"{layer}{end}"].grad
            torch.testing.assert_close(found, lora.scale * literal, rtol=1e-4, atol=1e-4)
        assert held[name].grad is None
    export_adapters(tmp_path / "adapter", adapters, str(tmp_path / "model"), {})
    begun = lora.model_copy(update={"path": tmp_path / "adapter"})
    again = dict(load_model(tmp_path / "model", lora=begun).named_parameters())
    assert all(torch.equal(again[name], weight) for name, weight in held.items())


@pytest.mark.parametrize("has_some", [True, False])
def test_adapters_that_differ_in_experts_are_told_by_that_field(tmp_path, has_some):
    save_model(tmp_path / "model", Qwen2MoeForCausalLM)
    lora = LoraSpec(rank=8, alpha=6.0, experts=has_some)
    adapters = adapters_of(load_model(tmp_path / "model", lora=lora))
    export_adapters(tmp_path / "adapter", adapters, str(tmp_path / "model"), {})
    asked = {"path": tmp_path / "adapter", "experts": not has_some}
    found = check_adapters(lora.model_copy(update=asked), str(tmp_path / "model"), "lora")
    assert [one.where for one in found] == ["lora.experts"]


@pytest.mark.parametrize(
    ("lora", "model", "where"),
    [
        ({}, Qwen2MoeForCausalLM, None),
        ({"rank": 4}, Qwen2MoeForCausalLM, "rank"),
        ({"dropout": 0.1}, Qwen2MoeForCausalLM, "dropout"),
        ({"weight_decomposed": True}, Qwen2MoeForCausalLM, "weightDecomposed"),
        ({"target_modules": ("q_proj",)}, Qwen2MoeForCausalLM, "experts"),
        ({"target_modules": ("down_proj",)}, Qwen2MoeForCausalLM, None),
        ({}, GptOssForCausalLM, None),
        ({"dropout": 0.1}, GptOssForCausalLM, "dropout"),
        ({"weight_decomposed": True}, GptOssForCausalLM, "weightDecomposed"),
        ({"target_modules": ("down_proj",)}, GptOssForCausalLM, None),
        ({"target_modules": ("q_proj",)}, GptOssForCausalLM, "experts"),
        ({}, Qwen2ForCausalLM, "experts"),
    ],
)
def test_experts_that_take_no_adapters_are_refused(tmp_path, lora, model, where):
    save_model(tmp_path, model)
    found = check_targets(LoraSpec(**{"rank": 8, "experts": True, **lora}), str(tmp_path), "lora")
    assert [one.where for one in found] == ([] if where is None else [f"lora.{where}"])


@pytest.mark.parametrize(
    ("targets", "layers"),
    [(None, ALL), (("all-linear",), ALL), (("v_proj", "down_proj"), {"v_proj", "down_proj"})],
)
def test_the_chosen_layers_alone_are_trained_and_all_names_stand(targets, layers):
    plain = make_model(**TWO_LAYERS, tie_word_embeddings=False)
    model = adapted(make_model(**TWO_LAYERS, tie_word_embeddings=False), target_modules=targets)
    chosen = [name for name, layer in model.named_modules() if isinstance(layer, LoraLinear)]
    assert {name.split(".")[-1] for name in chosen} == layers
    assert all(name.startswith("model.layers.") for name in chosen)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == trained_tensors(model).keys()
    assert trained == {f"{name}.lora_{kind}" for name in chosen for kind in "ab"}
    ours, theirs = dict(hf_named_tensors(model)), dict(plain.named_parameters())
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("modules", "is_tied"), [(("embed_tokens",), True), (("lm_head",), False)])
def test_layers_that_are_trained_whole_are_saved_beside_adapters(tmp_path, modules, is_tied):
    """Of a tied model both ends, as PEFT has a copy of each."""
    name = {"embed_tokens": "model.embed_tokens.weight", "lm_head": "lm_head.weight"}[modules[0]]
    save_model(tmp_path / "model", **TWO_LAYERS, tie_word_embeddings=is_tied)
    lora = LoraSpec(rank=4, modules_to_save=modules)
    model = load_model(tmp_path / "model", lora=lora)
    whole = model.get_parameter(name)
    trained = {own for own, one in model.named_parameters() if one.requires_grad}
    assert trained == trained_tensors(model).keys() == {name, *dict(named_full_adapters(model))}
    shapes = adapter_shapes(sizes_of(str(tmp_path / "model")), lora)
    counted = count_adapters(lora, str(tmp_path / "model"))
    assert counted == whole.numel() + sum(map(math.prod, shapes.values()))
    model(torch.randint(50, (1, 9))).logits.square().sum().backward()
    assert whole.grad.any()
    with torch.no_grad():
        whole.add_(1.0)
    assert torch.equal(dict(named_full_tensors(model))[name], whole)

    export_model(
        tmp_path / "export",
        hf_named_tensors(model),
        model_folder=tmp_path / "model",
        dtype=torch.float32,
        adapters=adapters_of(model),
    )
    assert torch.equal(load_file(tmp_path / "export" / "model.safetensors")[name], whole)
    apart = tmp_path / "export" / "adapter"
    again = load_model(tmp_path / "model", lora=lora.model_copy(update={"path": str(apart)}))
    kept = trained_tensors(model)
    assert all(torch.equal(one, kept[own]) for own, one in trained_tensors(again).items())
    adapters_alone = LoraSpec(rank=4, path=str(apart))
    problem, *_ = check_adapters(adapters_alone, str(tmp_path / "model"), "lora")
    assert (problem.where, problem.reason_code) == ("lora.modulesToSave", ReasonCode.CONFLICT)

    stored = load_file(apart / "adapter_model.safetensors")
    if is_tied:
        apart_ends = {**stored, "base_model.model.lm_head.weight": whole.detach() + 1.0}
        save_file(apart_ends, apart / "adapter_model.safetensors")
        with pytest.raises(ConfigError, match="an embedding and an output layer that differ"):
            load_model(tmp_path / "model", lora=lora.model_copy(update={"path": str(apart)}))
    ends = ["lm_head", "model.embed_tokens"] if is_tied else ["lm_head"]
    assert json.loads((apart / "adapter_config.json").read_text())["modules_to_save"] == ends
    for end in ends:
        assert torch.equal(stored.pop(f"base_model.model.{end}.weight"), whole)
    assert len(stored) == len(shapes)


@pytest.mark.parametrize(
    ("kind", "sizes", "modules", "reason"),
    [
        (LlamaForCausalLM, {"tie_word_embeddings": True}, ("lm_head",), ReasonCode.CONFLICT),
        (GPT2LMHeadModel, {}, ("embed_tokens",), ReasonCode.NOT_IN_THIS_VERSION),
        (LlamaForCausalLM, {"tie_word_embeddings": True}, ("embed_tokens",), None),
    ],
)
def test_layers_that_cannot_be_trained_whole_are_refused(tmp_path, kind, sizes, modules, reason):
    save_model(tmp_path, kind, **sizes)
    found = check_targets(LoraSpec(rank=4, modules_to_save=modules), str(tmp_path), "lora")
    expected = [] if reason is None else [("lora.modulesToSave", reason)]
    assert [(one.where, one.reason_code) for one in found] == expected


def test_a_sync_of_adapters_alone_is_a_hundredth_of_one_of_all_weights():
    """Bytes in bfloat16 of a llama of 8 billion weights, with adapters in all of its layers."""
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**LLAMA_8B))
    add_adapters(model, LoraSpec(rank=32))

    def size(tensors):
        return sum(tensor.bfloat16().nbytes for _, tensor in tensors)

    assert size(named_full_tensors(model)) == 16_060_522_496
    assert size(named_full_adapters(model)) == 167_772_160


def test_the_beginning_is_the_model_as_it_is_and_follows_from_seed_and_name(tmp_path):
    plain = save_model(tmp_path, **TWO_LAYERS).eval()
    first, again, other = (
        load_model(tmp_path, lora=LoraSpec(rank=8), seed=seed) for seed in (7, 7, 8)
    )
    ids = torch.randint(50, (1, 9))
    assert torch.equal(first(ids).logits, plain(ids).logits)
    drawn = []
    for name, tensor in trained_tensors(first).items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, again.get_parameter(name))
        if name.endswith("lora_b"):
            assert not tensor.any()
            continue
        # Kaiming with a = √5: uniform up to 1 / √in.
        bound = 1.0 / math.sqrt(tensor.shape[1])
        assert 0.9 * bound < tensor.abs().max() <= bound
        assert not torch.equal(tensor, other.get_parameter(name))
        drawn.append(tensor[0, :4])
    assert len({tuple(row.tolist()) for row in drawn}) == len(drawn)


def test_a_model_begins_with_the_adapters_of_a_folder_in_peft_s_form(tmp_path):
    plain = dict(save_model(tmp_path / "model", **TWO_LAYERS).named_parameters())
    lora = {"rank": 3, "alpha": 5.0, "target_modules": ("q_proj", "down_proj")}
    kept = {}
    for layer in range(2):
        for name in ("self_attn.q_proj", "mlp.down_proj"):
            at = f"model.layers.{layer}.{name}"
            rows, columns = plain[f"{at}.weight"].shape
            kept[at] = torch.randn(3, columns).bfloat16(), torch.randn(rows, 3).bfloat16()
    folder = tmp_path / "adapters"
    folder.mkdir()
    matrices = {}
    for at, (a, b) in kept.items():
        matrices |= {f"base_model.model.{at}.lora_A.weight": a}
        matrices |= {f"base_model.model.{at}.lora_B.weight": b}
    save_file(matrices, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 5, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))

    spec = LoraSpec(**lora, path=str(folder))
    for kind in (POLICY, CRITIC):  # a critic may begin with those of the policy
        merged = dict(named_full_tensors(load_model(tmp_path / "model", kind=kind, lora=spec)))
        for at, (a, b) in kept.items():
            w = plain[f"{at}.weight"].double()
            dense = w + 5.0 / 3.0 * b.double() @ a.double()
            found = merged[f"{at}.weight"].double()
            torch.testing.assert_close(found, dense, rtol=1e-5, atol=1e-5)

    begun = adapters_of(load_model(tmp_path / "model", lora=spec))
    export_adapters(tmp_path / "again", begun, str(tmp_path / "model"), head={})
    again = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert again.keys() == matrices.keys()
    assert all(torch.equal(again[name], matrices[name].float()) for name in matrices)

    matrices[next(iter(matrices))][0, 0] = torch.nan
    save_file(matrices, folder / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors: got values that are NaN"):
        load_model(tmp_path / "model", lora=spec)


@pytest.mark.parametrize("autocast", [True, False])
def test_below_weights_of_bfloat16_adapters_are_float32(tmp_path, autocast):
    save_model(tmp_path, **TWO_LAYERS)
    model = load_model(tmp_path, torch.bfloat16, lora=LoraSpec(rank=4))
    layer = layer_of(model)
    with torch.no_grad():
        nn.init.normal_(layer.lora_b)
    x = torch.randn(2, 32, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    merged = adapters_of(model)["model.layers.1.self_attn.q_proj.weight"].merged(layer.weight)
    assert merged.dtype == torch.float32
    torch.testing.assert_close(y.float(), x.float() @ merged.T, rtol=0.05, atol=0.1)
