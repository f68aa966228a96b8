"""The bias of routers against Megatron's formula, by what routers of transformers choose."""

from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import FAMILY_MODELS
from padded_reference import read_ids
from tiny_models import TWO_LAYERS, make_model, write_model
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.models.experts import selection_biases_of
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.load import load_model
from ppojob_trainer.rows.experience import Experience

RATE = 0.01
SPEC = AlgorithmSpec(type="grpo", prompts_per_step=3, samples_per_prompt=3, router_bias_rate=RATE)
OPTIMIZER = OptimizerSpec(gradient_clip=0.0)
HEAD = PolicyHead(LogprobSettings(chunk_tokens=5, entropy="value"))
CORRECTED = [
    name for name, one in FAMILIES.items() if one.mixture is not None and one.mixture.selection_bias
]


def save_family(folder: Path, family: str) -> PreTrainedModel:
    kind, options = FAMILY_MODELS[family]
    model = make_model(kind, **{**TWO_LAYERS, "vocab_size": 97, "pad_token_id": None, **options})
    write_model(folder, model)
    return model.eval()


def updated(
    folder: Path, rows: Experience, **training: Any
) -> tuple[dict[int, Tensor], dict[str, float]]:
    """The biases of each layer behind an update, and what it measured."""
    spec = TrainingSpec(**{"autocast": "none", **training})
    engine = TrainEngine(load_model(folder), HEAD, spec, OPTIMIZER, 10, routers=SPEC)
    values = engine.update(rows, PolicyObjective.of(SPEC)).values
    found = selection_biases_of(engine.model)
    return {layer: bias.detach().clone().flatten() for layer, bias in found.items()}, values


def counted(model: PreTrainedModel, family: str, rows: Experience) -> dict[str, Tensor]:
    """Tokens of each expert, by the names of routers, row by row in transformers."""
    mixture, loads = FAMILIES[family].mixture, {}
    assert mixture is not None

    def count(name: str):
        def hook(_module, _args, told):
            (chosen,) = (one for one in told if one.dtype == torch.int64)
            experts = max(one.shape[-1] for one in told)
            of_pass = torch.bincount(chosen.flatten(), minlength=experts)
            loads[name] = loads.get(name, 0) + of_pass

        return hook

    for name, module in model.named_modules():
        if name.endswith(f".{mixture.router}") and ".self_attn" not in name:
            module.register_forward_hook(count(name))
    with torch.no_grad():
        for ids in read_ids(rows):
            model(input_ids=ids[None], use_cache=False)
    return loads


def megatron_updated(loads: Tensor, bias: Tensor, rate: float) -> Tensor:
    """`get_updated_expert_bias` of Megatron-LM, of one rank."""
    average = loads.sum(dim=-1, keepdim=True) / loads.shape[-1]
    offset = average - loads
    return bias + torch.sign(offset) * rate


@pytest.fixture
def rows(partly_trained: Experience) -> Experience:
    return partly_trained


@pytest.mark.parametrize("family", CORRECTED)
def test_a_bias_moves_as_megatron_s_by_the_tokens_of_each_expert(tmp_path, rows, family):
    theirs = save_family(tmp_path, family)
    before = {
        n: b.detach().clone().flatten()
        for n, b in selection_biases_of(load_model(tmp_path)).items()
    }
    found, values = updated(tmp_path, rows)
    loads = list(counted(theirs, family, rows).values())
    assert len(loads) == len(found) == len(before) > 0
    for (layer, bias), of_layer in zip(before.items(), loads, strict=True):
        assert of_layer.sum() > 0
        assert torch.equal(found[layer], megatron_updated(of_layer, bias, RATE))
        assert not torch.equal(found[layer], bias)
    violations = [float(one.max() / one.double().mean()) - 1.0 for one in loads]
    expected = sum(violations) / len(violations)
    assert values["actor/router_max_violation"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "training",
    [
        {"micro_batch_tokens": 20},
        {"micro_batch_tokens": 1, "share_prompts": False},
        {"activation_checkpointing": True, "micro_batch_tokens": 20},
    ],
)
def test_how_rows_are_packed_moves_no_bias(tmp_path, rows, training):
    save_family(tmp_path, "glm4_moe")
    (expected, told), (found, values) = updated(tmp_path, rows), updated(tmp_path, rows, **training)
    assert all(torch.equal(found[layer], bias) for layer, bias in expected.items())
    name = "actor/router_max_violation"
    assert values[name] == told[name]


def test_rows_without_advantage_count(tmp_path, rows):
    save_family(tmp_path, "glm4_moe")
    expected, _ = updated(tmp_path, rows)
    rows.advantages = torch.zeros(rows.num_tokens)
    found, _ = updated(tmp_path, rows)
    assert all(torch.equal(found[layer], bias) for layer, bias in expected.items())


def test_an_update_that_is_left_out_moves_no_bias(tmp_path, rows):
    save_family(tmp_path, "glm4_moe")
    before = selection_biases_of(load_model(tmp_path))
    rows.advantages = torch.full((rows.num_tokens,), torch.nan)
    found, values = updated(tmp_path, rows)
    assert values["actor/skipped"] == 1.0
    assert all(torch.equal(found[layer], bias) for layer, bias in before.items())


def test_replayed_experts_count_as_those_that_routers_find(tmp_path, rows):
    """One layer with experts: what its router reads has been through none."""
    kind, options = FAMILY_MODELS["glm4_moe"]
    sizes = {**TWO_LAYERS, "vocab_size": 97, "pad_token_id": None, **options}
    dense = sizes["num_hidden_layers"] - 1
    write_model(tmp_path, make_model(kind, **{**sizes, "first_k_dense_replace": dense}))
    expected, _ = updated(tmp_path, rows)
    engine = TrainEngine(load_model(tmp_path), HEAD, TrainingSpec(autocast="none"), OPTIMIZER, 10)
    engine.predict(rows, records=True)
    rows.experts = (rows.experts + 1) % options["n_routed_experts"]
    found, _ = updated(tmp_path, rows)
    assert len(found) == 1
    assert all(torch.equal(found[layer], bias) for layer, bias in expected.items())


def test_even_loads_move_nothing(tmp_path, rows):
    """All of the experts are chosen by each token."""
    kind, options = FAMILY_MODELS["glm4_moe"]
    sizes = {**TWO_LAYERS, "vocab_size": 97, "pad_token_id": None, **options}
    sizes["num_experts_per_tok"] = sizes["n_routed_experts"]
    write_model(tmp_path, make_model(kind, **{**sizes, "n_group": 1, "topk_group": 1}))
    before = selection_biases_of(load_model(tmp_path))
    found, values = updated(tmp_path, rows)
    assert values["actor/router_max_violation"] == 0.0
    assert all(torch.equal(found[layer], bias) for layer, bias in before.items())
