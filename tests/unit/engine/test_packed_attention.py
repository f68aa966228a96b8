import pytest
import torch
from torch.nn import functional as F

from ppojob_trainer.engine.attention import TILE_SCORES, attend_packed, plan_attention
from ppojob_trainer.engine.layout import Span

HEADS, KEY_HEADS, SIZE = 6, 2, 4

SPANS = (
    Span(0, 5),
    Span(5, 3, 0, 5),
    Span(8, 7, 0, 5),
    Span(15, 1),
    Span(16, 1, 15, 1),
    Span(17, 9, 15, 1),
    Span(26, 11),
)
TOTAL = 37


def dense_attention(query, key, value, spans):
    visible = torch.zeros(TOTAL, TOTAL, dtype=torch.bool)
    for span in spans:
        for i in range(span.start, span.start + span.length):
            visible[i, span.prefix_start : span.prefix_start + span.prefix_length] = True
            visible[i, span.start : i + 1] = True
    key, value = (x.repeat_interleave(HEADS // KEY_HEADS, dim=1) for x in (key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=0.3)


def inputs(dtype=torch.float64):
    torch.manual_seed(5)
    return tuple(
        torch.randn(1, heads, TOTAL, SIZE, dtype=dtype, requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )


def packed_attention(query, key, value, tile_scores=TILE_SCORES, **options):
    plan = plan_attention(SPANS, heads=HEADS, key_heads=KEY_HEADS, tile_scores=tile_scores)
    module_ = torch.nn.Module()
    return attend_packed(
        module_, query, key, value, None, attention_plan=plan, scaling=0.3, **options
    )[0].transpose(1, 2)


@pytest.mark.parametrize("tile_scores", [1, 100, 700, 2**21])
def test_equals_dense_attention_with_gradients(tile_scores):
    tensors = inputs()
    got, expected = packed_attention(*tensors, tile_scores), dense_attention(*tensors, SPANS)
    torch.testing.assert_close(got, expected)
    factor = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(got, tensors, factor),
        torch.autograd.grad(expected, tensors, factor),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_small_tiles_hold_few_scores():
    plan = plan_attention(SPANS, heads=HEADS, key_heads=KEY_HEADS, tile_scores=200)
    assert plan.tiles
    for tile in plan.tiles:
        rows, _, _, queries, keys = tile.shape
        assert rows * HEADS * queries * keys <= 200
    assert plan.long_rows.spans
    assert HEADS * plan.long_rows.block**2 <= 200


@pytest.mark.parametrize("tile_scores", [100, 2**21])
def test_dropout_drops_that_share_and_its_gradient_is_that_of_what_was_kept(tile_scores):
    query, key, value = inputs()
    torch.manual_seed(0)
    out = packed_attention(query, key, torch.ones_like(value), tile_scores, dropout=0.5)
    assert out.std() > 0.1
    assert abs(out.mean() - 1.0) < 0.1

    def dropped(*tensors):
        torch.manual_seed(0)
        return packed_attention(*tensors, tile_scores, dropout=0.5)

    assert torch.autograd.gradcheck(dropped, (query, key, value), fast_mode=True)


def test_a_sliding_window_is_refused():
    with pytest.raises(ValueError, match="sliding_window: got 16"):
        packed_attention(*inputs(), sliding_window=16)
