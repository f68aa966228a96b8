import pytest
import torch
from padded_reference import gradients, padded_logprobs, relative_difference

from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.packed_rows import pack_rows
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.rows.experience import Experience

DENSE = sorted(name for name, family in FAMILIES.items() if not family.mixture)
"""Of mixtures see `test_experts`: their products are none of float64."""
LOGPROBS = PolicyHead(LogprobSettings())


PLAIN = {
    "gemma4_text": {},
    "granitemoehybrid": {"num_local_experts": 0},
    "nemotron_h": {"layers_block_type": ["linear_attention", "full_attention", "mlp"]},
}
"""Models without experts of families that have mixtures too."""


@pytest.mark.parametrize(("tied", "share"), [(True, False), (False, True)])
@pytest.mark.parametrize("family", [*DENSE, *PLAIN])
def test_equals_the_padded_forward_in_float64(make_model, make_rows, family, tied, share):
    changes = PLAIN.get(family, {})
    model, rows = make_model(family, tied=tied, dtype=torch.float64, **changes), make_rows()
    with torch.no_grad():  # nothing is 0 or 1 throughout
        for weight in (weight for weight in model.parameters() if weight.ndim == 1):
            weight.add_(0.3 * torch.randn(weight.shape, dtype=torch.float64))
    settings = LogprobSettings(temperature=0.8, chunk_tokens=5, entropy="gradient")
    factors = torch.randn(2, rows.num_tokens, dtype=torch.float64)
    results = []
    for packed in (True, False):
        if packed:
            use_packed_attention(model)
            passed = packed_pass(model, PolicyHead(settings), rows, share_prompts=share)
            logprobs, entropy = passed.outputs
        else:
            logprobs, entropy = padded_logprobs(model, rows, temperature=0.8)
        loss = (factors[0] * logprobs + factors[1] * entropy).sum()
        results.append((logprobs, entropy, gradients(model, loss)))
    got, expected = results
    # Rotary frequencies and norms of transformers go through float32 whatever the weights are.
    for ours, theirs in zip(got[:2], expected[:2], strict=True):  # Nemotron's logits are float32
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, check_dtype=False)
    assert relative_difference(got[2], expected[2]) < 1e-5


def test_angles_of_rows_that_are_short_enough_are_fixed(make_model, make_rows):
    """Longer ones are refused, see `folder_checks.context_tokens`."""
    factors = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [3.0, 4.0, 5.0, 6.0]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    short = {"original_max_position_embeddings": 32, "rope_parameters": rope}
    model, rows = make_model("phi3", dtype=torch.float64, **short), make_rows()
    expected = padded_logprobs(model, rows)[0]
    use_packed_attention(model)
    got = packed_pass(model, LOGPROBS, rows).outputs[0]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_a_shared_prompt_lies_once_and_what_predicts_nothing_not_at_all(make_rows):
    rows = make_rows(groups=2, samples=3)
    rows.mask[:] = True
    end = int(rows.offsets[2])
    rows.mask[end - 3 : end] = False  # row 1 ends in tokens that it was given
    shared, alone = pack_rows(rows), pack_rows(rows, share_prompts=False)
    prompts, responses = int(rows.prompt_lengths.sum()), rows.num_tokens - rows.num_rows - 3
    assert shared.input_ids.numel() == prompts + responses
    assert alone.input_ids.numel() == 3 * prompts + responses


def test_a_head_meets_the_trained_tokens_alone(make_model, make_rows):
    """With many tokens of tools most of its work, the largest of a pass, goes away."""
    model, rows = make_model(), make_rows()
    rows.mask[rows.token_rows == 2] = False  # one row has none at all
    use_packed_attention(model)
    met = []

    def head(model, hidden, targets):
        met.append((hidden.shape[0], targets.numel()))
        return (hidden.sum(dim=1),)

    (values,) = packed_pass(model, head, rows).outputs
    trained = int(rows.mask.sum())
    assert met == [(trained, trained)]
    assert values[~rows.mask].eq(0).all()
    assert values[rows.mask].ne(0).all()


def test_rows_in_any_order_and_empty_responses(make_model, make_rows):
    model, rows = make_model(dtype=torch.float64), make_rows(groups=3, samples=3)
    use_packed_attention(model)
    rows = rows.select([5, 0, 8, 1, 4])
    rows.lengths = torch.cat([rows.lengths, torch.tensor([0])])
    rows.row_groups = torch.cat([rows.row_groups, torch.tensor([1])])
    got = packed_pass(model, LOGPROBS, rows).outputs[0]
    torch.testing.assert_close(got, padded_logprobs(model, rows)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_5_text"])
def test_each_context_is_read_by_itself(make_model, make_rows, family, share):
    """As if the later ones were rows of their own, whose prompts are what they begin with."""
    model, rows = make_model(family, dtype=torch.float64), make_rows(longest=30)
    parts, kept = [], []
    for row in range(rows.num_rows):
        tokens = torch.arange(*rows.offsets[row : row + 2].tolist())
        for number, part in enumerate(tokens.tensor_split(3) if len(tokens) > 12 else [tokens]):
            if number:
                rows.context_starts[part[0]] = True
                rows.mask[part[:2]] = False
            ids, given = rows.response_tokens[part], 2 if number else 0
            prompt = ids[:given] if number else rows.prompts[int(rows.row_groups[row])]
            parts.append((prompt, ids[given:], rows.mask[part[given:]]))
            kept.append(part[given:])
    alone = Experience(
        prompts=[prompt for prompt, _, _ in parts],
        row_groups=torch.arange(len(parts)),
        response_tokens=torch.cat([ids for _, ids, _ in parts]),
        lengths=torch.tensor([len(ids) for _, ids, _ in parts]),
        mask=torch.cat([mask for _, _, mask in parts]),
        rollout_logprobs=torch.zeros(sum(len(ids) for _, ids, _ in parts)),
    )
    assert rows.context_starts.sum() > 4, "too few contexts to tell"
    expected = torch.zeros(rows.num_tokens, dtype=torch.float64)
    expected[torch.cat(kept)] = padded_logprobs(model, alone)[0]
    factors = torch.randn(rows.num_tokens, dtype=torch.float64)
    of_alone = gradients(model, (factors * expected).sum())
    use_packed_attention(model)
    got = packed_pass(model, LOGPROBS, rows, share_prompts=share).outputs[0]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert relative_difference(gradients(model, (factors * got).sum()), of_alone) < 1e-5
