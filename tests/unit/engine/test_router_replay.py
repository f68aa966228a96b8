"""Experts that a pass over rows has recorded, and later passes take, against forced routers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from engine_phase import generate
from family_models import MIXTURE_MODELS
from padded_reference import gradients, padded_logprobs, relative_difference
from tiny_models import MIXTURE, TWO_LAYERS, save_model
from torch import Tensor
from transformers import PreTrainedModel, Qwen3MoeForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.models.experts import freeze_routers, mixture_of
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.transformers_modules import unify_modules
from ppojob_trainer.models.weight_files import own_name
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import Request, SamplingParams
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.rollout import PromptTokens
from ppojob_trainer.workers.row_store import build_rows

SIZES = {**TWO_LAYERS, **MIXTURE, "vocab_size": 97}
HEAD = PolicyHead(LogprobSettings(chunk_tokens=5, entropy="value"))
GOAL = PolicyObjective.of(AlgorithmSpec(type="grpo", prompts_per_step=3, samples_per_prompt=3))
RATIO_OF_ONE = "actor/ppo_kl"


def save_mixture(folder: Path, family: str, **changes: object) -> PreTrainedModel:
    kind, own = MIXTURE_MODELS[family]
    return save_model(folder, kind, **{**TWO_LAYERS, "vocab_size": 97, **own, **changes})


def engine_of(folder, **training) -> TrainEngine:
    spec = TrainingSpec(autocast="none", **training)
    return TrainEngine(load_model(folder), HEAD, spec, OptimizerSpec(learning_rate=1e-3), 10)


def read_tokens(rows: Experience) -> Tensor:
    """(tokens,) those that a pass reads: all in front of the last trained one of their row."""
    places = torch.arange(rows.num_tokens)
    last = torch.full((rows.num_rows,), -1)
    last.scatter_reduce_(0, rows.token_rows[rows.mask], places[rows.mask], "amax")
    return places < last[rows.token_rows]


def padded_experts(rows: Experience) -> Tensor:
    """(rows, longest, layers, k) the record as a padded batch has its tokens."""
    of_prompts = torch.split(rows.prompt_experts, rows.prompt_lengths.tolist())
    of_responses = torch.split(rows.experts, rows.lengths.tolist())
    groups = rows.row_groups.tolist()
    whole = [torch.cat([of_prompts[g], own]) for g, own in zip(groups, of_responses, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)


def routers_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    mixture = FAMILIES[model.config.model_type].mixture
    blocks = [
        (getattr(layer, "mlp", None) or getattr(layer, mixture.block)) if mixture.block else layer
        for layer in model.model.layers
    ]
    found = [getattr(block, mixture.router, None) for block in blocks]
    return [router for router in found if router is not None]


def sparse_weights(logits: Tensor, chosen: Tensor, noise: float) -> Tensor:
    """Of each of two experts, its share among those of about its logit, token by token."""
    found = []
    for own, pair in zip(logits, chosen.tolist(), strict=True):
        for place, expert in enumerate(pair):
            left = [n for n in range(len(own)) if n not in pair[:place]]
            best = own[left].max()
            near = [n for n in left if (best - own[n]) / max(own[n].abs(), best) <= 2 * noise]
            others = [own[n] for n in {*near} - {expert}]
            found.append(torch.stack([own[expert], *others]).softmax(dim=0)[0])
    return torch.stack(found).view(chosen.shape)


@contextmanager
def watched(model: PreTrainedModel, forced: Tensor | None = None) -> Iterator[list[Tensor]]:
    """What the routers of transformers choose, layer by layer; or are made to, as GSPO has it."""
    found: list[Tensor] = []

    mixture = mixture_of(model)

    def route(router, _args, told):
        if mixture.weighs_inputs:  # Llama 4's tells weights of all experts
            logits = told[1]
            chosen = logits.argmax(dim=-1, keepdim=True)
            if forced is not None:
                chosen = forced[:, :, first + len(found)].flatten(0, 1).long()
            found.append(chosen)
            weights = logits.gather(-1, chosen).sigmoid()
            return torch.zeros_like(logits).scatter(-1, chosen, weights), logits
        logits, weights, chosen = told[::-1] if mixture.returns_experts_first else told
        if forced is not None:
            chosen = forced[:, :, first + len(found)].flatten(0, 1).long()
            is_sigmoid = mixture.scoring == "sigmoid"
            scores = logits.sigmoid() if is_sigmoid else logits.softmax(dim=-1)
            if (scales := getattr(router, "per_expert_scale", None)) is not None:  # Gemma 4's
                scores = logits  # are probabilities
            weights = scores.gather(-1, chosen)
            if mixture.scoring == "sparsemixer":
                weights = sparse_weights(logits, chosen, router.router_jitter_noise)
            # Mixtral's says nothing, and does; nor does DeepSeek-V2's, and does not.
            as_is = model.config.model_type in ("deepseek_v2", "phimoe")
            if getattr(router, "norm_topk_prob", not as_is):
                weights = weights / weights.sum(dim=-1, keepdim=True)
            weights = weights * getattr(router, mixture.scale, 1.0)
            weights = weights if scales is None else weights * scales[chosen]
        found.append(chosen)
        told = logits, weights, chosen
        return told[::-1] if mixture.returns_experts_first else told

    routers = routers_of(model)
    first = len(model.model.layers) - len(routers)
    hooks = [router.register_forward_hook(route) for router in routers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def perturb(model: PreTrainedModel) -> None:
    """Move the routers so far that many tokens go elsewhere."""
    generator = torch.Generator().manual_seed(7)
    mixture = FAMILIES[model.config.model_type].mixture
    with torch.no_grad():
        for router in routers_of(model):
            gate = attrgetter(mixture.router_weight)(router)
            gate.add_(0.2 * torch.randn(gate.shape, generator=generator))


@pytest.mark.parametrize("training", [{}, {"share_prompts": False}, {"micro_batch_tokens": 20}])
def test_the_record_is_what_routers_choose_for_each_token(make_rows, tmp_path, training):
    theirs, rows = save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES), make_rows()
    engine = engine_of(tmp_path, **training)
    plain = engine.predict(rows)
    assert rows.experts is None
    for with_record, without in zip(engine.predict(rows, records=True), plain, strict=True):
        assert torch.equal(with_record, without)
    with watched(theirs) as found, torch.no_grad():
        padded_logprobs(theirs, rows)
    record = padded_experts(rows)
    chosen = torch.stack(found, dim=1).view(record.shape)
    reads = [
        torch.cat([torch.ones(len(rows.prompts[group]), dtype=torch.bool), own])
        for group, own in zip(
            rows.row_groups.tolist(),
            torch.split(read_tokens(rows), rows.lengths.tolist()),
            strict=True,
        )
    ]
    is_read = torch.nn.utils.rnn.pad_sequence(reads, batch_first=True)
    assert torch.equal(record[is_read].long(), chosen[is_read])
    assert not rows.experts[~read_tokens(rows)].any()


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in MIXTURE_MODELS), ("qwen3_moe", {"norm_topk_prob": False})],
)
def test_later_passes_take_the_record_with_weights_of_then(make_rows, tmp_path, family, changes):
    theirs, rows = save_mixture(tmp_path, family, **changes), make_rows()
    theirs.set_experts_implementation("eager")
    engine = engine_of(tmp_path)
    before, _ = engine.predict(rows, records=True)
    assert torch.equal(engine.predict(rows)[0], before)  # to the bit
    for model in (theirs, engine.model):
        perturb(model)
    free = replace(rows, experts=None, prompt_experts=None)
    engine.predict(free, records=True)
    flipped = (free.experts != rows.experts)[read_tokens(rows)].any(dim=-1).float().mean()
    assert flipped * len(theirs.model.layers) > 0.15 * len(routers_of(theirs))

    factors = torch.randn(rows.num_tokens)
    with watched(theirs, padded_experts(rows)) as found:
        expected, _ = padded_logprobs(theirs, rows)
        references = gradients(theirs, (factors * expected).sum())
    if not FAMILIES[family].mixture.is_out_first:
        converted = revert_weight_conversion(theirs, references)  # to the names of files
        kind = theirs.config.model_type
        references = {own_name(name, kind): gradient for name, gradient in converted.items()}
    assert len(found) == len(routers_of(theirs))
    logprobs = packed_pass(engine.model, HEAD, rows).outputs[0]
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    assert (engine.predict(free)[0] - expected).abs().max() > 0.1
    grads = gradients(engine.model, (factors * logprobs).sum())
    routers = {name: grad for name, grad in references.items() if name.endswith("gate.weight")}
    assert all(grad.norm() > 0.01 for grad in routers.values())
    shared = {name: grad for name, grad in references.items() if ".experts." not in name}
    assert relative_difference({name: grads[name] for name in shared}, shared) < 1e-5


@pytest.mark.parametrize(
    "training",
    [{"micro_batch_tokens": 20}, {"activation_checkpointing": True}, {"share_prompts": False}],
)
def test_an_update_by_the_record_is_the_same_however_it_is_computed(make_rows, tmp_path, training):
    save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES)
    rows, found = make_rows(), []
    engine_of(tmp_path).predict(rows, records=True)
    for options in ({}, training):
        engine = engine_of(tmp_path, skip_zero_gradient_groups=False, **options)
        perturb(engine.model)
        engine.update(rows, GOAL)
        grads = {name: p.grad.clone() for name, p in engine.model.named_parameters()}
        found.append(grads)
    assert relative_difference(found[1], found[0]) < 1e-5


def test_a_ratio_is_one_to_the_bit_before_the_first_update(make_rows, tmp_path):
    """And without the record as well, but not once the weights have moved."""
    save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES)
    rows, engine = make_rows(), engine_of(tmp_path)
    rows.old_logprobs, _ = engine.predict(rows, records=True)
    measured = engine.update(rows, GOAL)
    assert measured.token_sums[RATIO_OF_ONE] == 0.0
    assert engine.update(rows, GOAL).token_sums[RATIO_OF_ONE] != 0.0


@pytest.mark.parametrize("family", MIXTURE_MODELS)
def test_an_engine_tells_its_experts_and_rows_keep_them(tmp_path, family):
    """They are those that the trainer's routers choose for the same rows."""
    model = save_mixture(tmp_path, family)
    unify_modules(model)
    engine = HuggingFaceEngine(model, max_model_tokens=64, max_sequences=4, records_experts=True)
    prompts = [PromptTokens(0, [5, 9, 60, 2, 7]), PromptTokens(1, [3, 3])]
    asked = [
        Request(f"{n}", tuple(prompts[n // 3].tokens), SamplingParams(1.0, 1.0, -1, 4 + n), seed=n)
        for n in range(6)
    ]
    drawn = [
        Trajectory(
            (Segment(one.tokens, one.logprobs, one.policy_version),),
            one.finish_reason,
            experts=one.experts,
        )
        for one in generate(engine, asked)
    ]
    owned = build_rows(0, prompts, 3, drawn, mixture=model.config)
    rows = replace(owned.experience, experts=None, prompt_experts=None)
    engine_of(tmp_path).predict(rows, records=True)
    assert torch.equal(owned.experience.experts, rows.experts)
    assert torch.equal(owned.experience.prompt_experts, rows.prompt_experts)
    assert rows.experts.any()


@pytest.mark.parametrize(
    ("family", "kind", "names"),
    [
        ("qwen3_moe", "adamw", ["mlp.gate"]),
        ("qwen3_moe", "muon", ["mlp.gate"]),
        ("qwen2_moe", "adamw", ["mlp.gate", "mlp.shared_expert_gate"]),
        ("mixtral", "adamw", ["block_sparse_moe.gate"]),
        ("gpt_oss", "muon", ["mlp.router"]),
        ("gemma4_text", "adamw", ["router", "router.proj"]),
    ],
)
def test_routers_that_are_frozen_stay_as_they_are(make_rows, tmp_path, family, kind, names):
    save_mixture(tmp_path, family)
    model, before = load_model(tmp_path), load_model(tmp_path).state_dict()
    freeze_routers(model)
    training = TrainingSpec(autocast="none")
    engine = TrainEngine(model, HEAD, training, OptimizerSpec(type=kind, weight_decay=0.1), 10)
    rows = make_rows()
    assert engine.update(rows, GOAL).values["actor/grad_norm"] > 0.0
    same = {
        name
        for name, weight in model.state_dict().items()
        if torch.equal(weight, before[name]) and not name.endswith("layer_scalar")
    }
    frozen = {f"model.layers.{layer}.{one}." for layer in range(2) for one in names}
    assert {name.rpartition(".")[0] + "." for name in same} == frozen
    assert not any(one in name for name in engine.state_tensors() for one in frozen)


def test_rows_are_taken_and_joined_with_their_experts(make_rows, tmp_path):
    save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES)
    rows, engine = make_rows(), engine_of(tmp_path)
    whole, _ = engine.predict(rows, records=True)
    some = rows.select([7, 2, 2, 0])
    perturb(engine.model)
    expected = engine.predict(rows)[0]
    found = engine.predict(some)[0]
    assert not torch.allclose(expected, whole)
    torch.testing.assert_close(found, expected[rows.token_index(torch.tensor([7, 2, 2, 0]))])
