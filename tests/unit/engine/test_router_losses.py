"""Losses of routers against transformers' balance loss and literal sums, row by row."""

from pathlib import Path
from typing import Any

import pytest
import torch
from padded_reference import read_ids, relative_difference
from tiny_models import MIXTURE, TWO_LAYERS, save_model
from torch import Tensor
from transformers import PreTrainedModel, Qwen2MoeForCausalLM, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.objective import Aggregation, SftObjective
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.models.load import load_model
from ppojob_trainer.rows.experience import Experience

SIZES = {**TWO_LAYERS, **MIXTURE, "vocab_size": 97}
WITH_A_SHARED_EXPERT = {"shared_expert_intermediate_size": 24}
HEAD = PolicyHead(LogprobSettings(chunk_tokens=5, entropy="value"))
SPEC = AlgorithmSpec(
    type="grpo",
    prompts_per_step=3,
    samples_per_prompt=3,
    router_balance_coefficient=0.3,
    router_z_coefficient=0.02,
)
GOAL = PolicyObjective.of(SPEC)


def engine_of(folder: Path, routers: AlgorithmSpec | None, **training: Any) -> TrainEngine:
    spec = TrainingSpec(**{"autocast": "none", **training})
    optimizer = OptimizerSpec(gradient_clip=0.0)
    return TrainEngine(load_model(folder), HEAD, spec, optimizer, 10, routers=routers)


def literal(model: PreTrainedModel, rows: Experience) -> tuple[Tensor, Tensor]:
    """Both losses, by transformers' routers and its balance loss of one row and layer."""
    balances, squares = [], []
    experts, chosen = model.config.num_experts, model.config.num_experts_per_tok
    for ids in read_ids(rows):
        told = model(input_ids=ids[None], output_router_logits=True, use_cache=False)
        for logits in told.router_logits:
            balances.append(load_balancing_loss_func((logits,), experts, chosen) / chosen)
            squares.append((logits.exp().sum(dim=-1).log() ** 2).mean())
    count = len(balances) / model.config.num_hidden_layers
    return torch.stack(balances).sum() / count, torch.stack(squares).sum() / count


def gradient_of_routers(folder: Path, rows: Experience, **training: Any) -> dict[str, Tensor]:
    """What the losses of routers add to the gradient of the objective."""
    parts = []
    for routers in (SPEC, None):
        engine = engine_of(folder, routers, skip_zero_gradient_groups=False, **training)
        engine.update(rows, GOAL)
        parts.append({n: p.grad.clone() for n, p in engine.model.named_parameters()})
    with_losses, without = parts
    return {name: with_losses[name] - without[name] for name in without}


@pytest.fixture
def rows(partly_trained: Experience) -> Experience:
    return partly_trained


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(Qwen3MoeForCausalLM, SIZES), (Qwen2MoeForCausalLM, {**SIZES, **WITH_A_SHARED_EXPERT})],
)
def test_losses_and_their_gradient_are_those_of_single_rows_in_transformers(
    tmp_path, rows, kind, sizes
):
    theirs = save_model(tmp_path, kind, **sizes).float()
    theirs.set_experts_implementation("eager")
    balance, z = literal(theirs, rows)
    of_rows, logits = balance.item(), z.item()
    plain, engine = engine_of(tmp_path, None), engine_of(tmp_path, SPEC)
    measured, before = (one.update(rows, GOAL).values for one in (engine, plain))
    layers = theirs.config.num_hidden_layers
    assert measured["actor/router_balance_loss"] == pytest.approx(of_rows / layers, rel=1e-5)
    assert measured["actor/router_z_loss"] == pytest.approx(logits / layers, rel=1e-5)
    added = 0.3 * of_rows + 0.02 * logits
    assert measured["actor/loss"] - before["actor/loss"] == pytest.approx(added, rel=1e-4)
    assert measured["actor/pg_loss"] == pytest.approx(before["actor/pg_loss"], rel=1e-5)
    found = gradient_of_routers(tmp_path, rows)
    names = [name for name, _ in theirs.named_parameters() if ".experts." not in name]
    weights = [theirs.get_parameter(name) for name in names]
    grads = torch.autograd.grad(0.3 * balance + 0.02 * z, weights, materialize_grads=True)
    shared = dict(zip(names, grads, strict=True))
    routers = {name: grad for name, grad in shared.items() if name.endswith("mlp.gate.weight")}
    assert len(routers) == layers
    assert all(grad.norm() > 1e-3 for grad in routers.values())
    assert relative_difference({name: found[name] for name in shared}, shared) < 1e-4


@pytest.mark.parametrize(
    "training",
    [
        {"micro_batch_tokens": 20},
        {"micro_batch_tokens": 1, "share_prompts": False},
        {"share_prompts": False},
        {"activation_checkpointing": True, "micro_batch_tokens": 20},
    ],
)
def test_how_rows_are_packed_changes_neither_loss_nor_gradient(tmp_path, rows, training):
    save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES)
    told = []
    for options in ({}, training):
        engine = engine_of(tmp_path, SPEC, **options)
        measured = engine.update(rows, GOAL).values
        grads = {name: p.grad.clone() for name, p in engine.model.named_parameters()}
        told.append((measured, grads))
    (expected, references), (found, grads) = told
    for name in ("actor/router_balance_loss", "actor/router_z_loss", "actor/loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)
    assert relative_difference(grads, references) < 1e-5


def test_float16_scales_the_losses_of_routers_as_the_others(tmp_path, rows):
    save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES)
    found, exact = (
        gradient_of_routers(tmp_path, rows, autocast=one) for one in ("float16", "none")
    )
    assert relative_difference(found, exact) < 0.02


def test_routers_learn_from_rows_without_advantage(tmp_path, rows):
    """Which a policy loss by itself leaves out."""
    save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES)
    rows.advantages = torch.zeros(rows.num_tokens)
    engine = engine_of(tmp_path, SPEC)
    assert engine.update(rows, GOAL).values["actor/grad_norm"] > 0.0
    assert engine_of(tmp_path, None).update(rows, GOAL).values["actor/grad_norm"] == 0.0


def test_replayed_experts_leave_the_losses_to_the_routers_of_now(tmp_path, rows):
    """One layer: what its router reads has been through no experts."""
    save_model(tmp_path, Qwen3MoeForCausalLM, **{**SIZES, "num_hidden_layers": 1})
    expected = engine_of(tmp_path, SPEC).update(rows, GOAL).values
    engine = engine_of(tmp_path, SPEC)
    engine.predict(rows, records=True)
    rows.experts = (rows.experts + 1) % MIXTURE["num_experts"]
    found = engine.update(rows, GOAL).values
    assert found["actor/grad_norm"] != pytest.approx(expected["actor/grad_norm"], rel=1e-3)
    for name in ("actor/router_balance_loss", "actor/router_z_loss"):
        assert found[name] == expected[name]


def test_given_answers_train_routers_too(tmp_path, rows):
    theirs = save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES).float()
    balance, _ = literal(theirs, rows)
    goal = SftObjective(Aggregation("token_mean"))
    measured = engine_of(tmp_path, SPEC).update(rows, goal).values
    assert measured["train/router_balance_loss"] == pytest.approx(balance.item() / 2, rel=1e-5)
    plain = engine_of(tmp_path, None).update(rows, goal).values
    assert measured["train/loss"] > plain["train/loss"]
