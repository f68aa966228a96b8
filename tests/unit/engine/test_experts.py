"""Mixtures of experts, each expert by itself, against transformers' own, which are stacked."""

import pytest
import torch
from family_models import MIXTURE_MODELS
from padded_reference import as_in_files, gradients, padded_logprobs, relative_difference
from tiny_models import MIXTURE, TWO_LAYERS, save_model
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from ppojob_api.problem import ReasonCode
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.models.experts import grouped_product
from ppojob_trainer.models.layout_checks import check_targets
from ppojob_trainer.models.load import load_model

VOCAB = 97
SIZES = {**TWO_LAYERS, **MIXTURE, "vocab_size": VOCAB}
HEAD = PolicyHead(LogprobSettings(chunk_tokens=5))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in MIXTURE_MODELS),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("qwen3_moe", {"num_experts_per_tok": 6}),
        ("ernie4_5_moe", {"moe_num_shared_experts": 0}),
        ("ernie4_5_moe", {"moe_layer_interval": 2, "num_hidden_layers": 4}),
        ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 4}),
    ],
)
def test_packed_rows_have_the_numbers_of_rows_by_themselves(make_rows, tmp_path, family, changes):
    kind, own = MIXTURE_MODELS[family]
    sizes = {**TWO_LAYERS, "vocab_size": VOCAB, **own, **changes}
    theirs, rows = save_model(tmp_path, kind, **sizes), make_rows()
    theirs.set_experts_implementation("eager")
    ours = load_model(tmp_path)
    use_packed_attention(ours)
    factors = torch.randn(rows.num_tokens)

    def packed() -> tuple[Tensor, dict[str, Tensor]]:
        (logprobs, *_) = packed_pass(ours, HEAD, rows).outputs
        return logprobs, gradients(ours, (factors * logprobs).sum())

    logprobs, grads = packed()
    expected, _ = padded_logprobs(theirs, rows)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    references = as_in_files(theirs, gradients(theirs, (factors * expected).sum()))
    assert relative_difference(grads, references) < 1e-5
    for name, gradient in references.items():
        # Keys near zero, which are normalised, have large gradients beside small ones.
        near = max(1e-4, 1e-5 * float(gradient.abs().max()))
        torch.testing.assert_close(grads[name], gradient, rtol=1e-3, atol=near)

    again, grads_again = packed()
    assert torch.equal(again, logprobs)
    assert all(torch.equal(grads_again[name], gradient) for name, gradient in grads.items())


def test_an_expert_without_tokens_has_a_gradient_of_zeros(make_rows, tmp_path):
    """Ranks that have tokens for it add theirs up with it."""
    save_model(tmp_path, Qwen3MoeForCausalLM, **{**SIZES, "num_experts": 64})
    model, rows = load_model(tmp_path), make_rows(groups=1, samples=1)
    use_packed_attention(model)
    chosen = set()
    gate = model.model.layers[0].mlp.gate
    gate.register_forward_hook(lambda *told: chosen.update(told[2][2].flatten().tolist()))
    packed_pass(model, HEAD, rows).outputs[0].sum().backward()
    assert 0 < len(chosen) < 64
    for number, expert in enumerate(model.model.layers[0].mlp.experts):
        is_zero = not expert.down_proj.weight.grad.any()
        assert is_zero == (number not in chosen)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_moe", {}),
        ("gpt_oss", {"num_experts_per_tok": 6}),
        ("granitemoehybrid", {"num_experts_per_tok": 6}),
        ("nemotron_h", {"num_experts_per_tok": 6}),
    ],  # so rounding sends none elsewhere
)
def test_autocast_stays_close(make_rows, tmp_path, family, changes):
    kind, own = MIXTURE_MODELS[family]
    save_model(tmp_path, kind, **{**TWO_LAYERS, "vocab_size": VOCAB, **own, **changes})
    model, rows, found = load_model(tmp_path), make_rows(), []
    use_packed_attention(model)
    for is_cast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            logprobs = packed_pass(model, HEAD, rows).outputs[0]
        found.append(gradients(model, logprobs.sum()))
    assert {gradient.dtype for gradient in found[1].values()} == {torch.float32}
    assert 1e-4 < relative_difference(found[1], found[0]) < 0.1


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_autocast_rounds_no_choice_of_routers_with_a_bias(tmp_path, family):
    kind, own = MIXTURE_MODELS[family]
    save_model(tmp_path, kind, **{**TWO_LAYERS, "vocab_size": VOCAB, **own})
    router = load_model(tmp_path).base_model.layers[-1].mlp.gate
    states = torch.randn(1, 9, TWO_LAYERS["hidden_size"])
    expected = router(states)
    with torch.autocast("cpu", torch.bfloat16):
        found = router(states)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_runs_of_rows_are_multiplied_by_their_matrices(dtype):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(9, 8, generator=generator).to(dtype).requires_grad_()
    matrices = [torch.randn(16, 8, generator=generator).to(dtype).requires_grad_() for _ in "abcd"]
    sizes = [4, 0, 5, 0]
    ends = torch.tensor(sizes).cumsum(0, dtype=torch.int32)
    plain = torch.cat([run @ m.T for run, m in zip(rows.split(sizes), matrices, strict=True)])
    factors = torch.randn(plain.shape, generator=generator)
    results = []
    for product in (grouped_product(rows, ends, matrices), plain):
        grads = torch.autograd.grad((factors * product.float()).sum(), [rows, *matrices])
        results.append((product, *grads))
    exact = dtype == torch.float32
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-5 if exact else 2e-2, atol=1e-5 if exact else 0.1
        )


def test_frozen_experts_beside_adapters_of_attention(make_rows, tmp_path):
    save_model(tmp_path, Qwen3MoeForCausalLM, **SIZES)
    model = load_model(tmp_path, lora=LoraSpec(rank=2))
    adapted = {name.split(".")[-2] for name, p in model.named_parameters() if p.requires_grad}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}
    use_packed_attention(model)
    packed_pass(model, HEAD, make_rows()).outputs[0].sum().backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained == {name for name, p in model.named_parameters() if p.requires_grad}

    lora = LoraSpec(rank=2, target_modules=("q_proj", "gate_proj"))
    (problem,) = check_targets(lora, str(tmp_path), "spec.model.lora")
    assert problem.where == "spec.model.lora.targetModules[1]"
    assert problem.reason_code == ReasonCode.NOT_ONE_OF
