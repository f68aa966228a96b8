"""Packed attention, in tiles and of rows too long for one, against dense attention."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from dense_attention import SPANS, dense, group

from ppojob_trainer.engine.attention import (
    HEAD_STREAM,
    TILE_SCORES,
    AttentionPlans,
    attend_packed,
    plan_attention,
)
from ppojob_trainer.engine.long_rows import _blocks
from ppojob_trainer.engine.packed_rows import Span

HEADS, KEY_HEADS, SIZE, SCALE = 6, 2, 8, 0.3
LONG, SHORT = group(30, 90, 4, 61, 5), group(6, 18, 4, 12, 5)

SEEING_AHEAD = (
    [replace(SHORT[0], bidirectional=((1, 5),)), *SHORT[1:]],
    [
        replace(LONG[0], bidirectional=((0, 3), (4, 29))),
        replace(LONG[1], bidirectional=((30, 31), (60, 119))),
        LONG[2],
        replace(LONG[3], bidirectional=((150, 160), (161, 185))),
        *LONG[4:],
    ],
)
"""The same with runs whose tokens see each other, of which some reach over blocks."""


def inputs(spans, dtype=torch.float64):
    torch.manual_seed(5)
    total = sum(span.length for span in spans)
    drawn = [torch.randn(1, heads, total, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [x.bfloat16().to(dtype).requires_grad_() for x in drawn]


def packed(spans, *tensors, tile_scores=TILE_SCORES, stream=0, chunk=None, **options):
    module = torch.nn.Module()
    module.attention_chunk = chunk
    cut = {"tile_scores": tile_scores, "stream": stream}
    options |= {"attention_plans": AttentionPlans(spans, torch.device("cpu"), **cut)}
    return attend_packed(module, *tensors, None, scaling=SCALE, **options)[0]


def with_gradients(out, tensors):
    return out, *torch.autograd.grad(out, tensors, torch.ones_like(out).cumsum(1))


@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("window", [None, 1, 4, 50])
@pytest.mark.parametrize(
    ("tile_scores", "spans"),
    # Pairs of tokens one by one, by the thousand, take seconds.
    [*product([1, 100, 700, 2**21], [SPANS]), (1, SHORT), *product([100, 700, 2**21], [LONG])],
)
def test_equals_dense_attention_with_gradients(spans, tile_scores, window, cap):
    tensors = inputs(spans)
    told = {"sliding_window": window, "softcap": cap}
    ours = packed(spans, *tensors, tile_scores=tile_scores, **told)
    theirs = dense(spans, *tensors, scale=SCALE, window=window, cap=cap)
    torch.testing.assert_close(with_gradients(ours, tensors), with_gradients(theirs, tensors))


@pytest.mark.parametrize("window", [None, 1, 4, 50])
@pytest.mark.parametrize(
    ("tile_scores", "spans"),
    [(1, SEEING_AHEAD[0]), *product([100, 700, 2**10, 2**21], SEEING_AHEAD)],
)
def test_tokens_of_a_run_see_each_other_with_gradients(spans, tile_scores, window):
    tensors = inputs(spans)
    ours = packed(spans, *tensors, tile_scores=tile_scores, sliding_window=window)
    theirs = dense(spans, *tensors, scale=SCALE, window=window)
    causal = [replace(span, bidirectional=()) for span in spans]
    assert not torch.allclose(theirs, dense(causal, *tensors, scale=SCALE, window=window))
    torch.testing.assert_close(with_gradients(ours, tensors), with_gradients(theirs, tensors))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(
    ("tile_scores", "spans"), [*product([100, 700, 2**21], [SPANS, LONG]), (1, SHORT)]
)
def test_sinks_take_a_part_of_each_query(spans, tile_scores, window):
    sinks = torch.tensor([-40.0, -1.0, 0.0, 0.5, 3.0, 60.0], dtype=torch.float64)
    tensors = [*inputs(spans), sinks.requires_grad_()]
    ours = packed(spans, *tensors[:3], tile_scores=tile_scores, sliding_window=window, s_aux=sinks)
    theirs = dense(spans, *tensors[:3], scale=SCALE, window=window, sinks=sinks)
    torch.testing.assert_close(with_gradients(ours, tensors), with_gradients(theirs, tensors))


@pytest.mark.parametrize("chunk", [1, 4, 50])
@pytest.mark.parametrize(("tile_scores", "spans"), [(2**21, SPANS), *product([700, 2**21], [LONG])])
def test_tokens_see_their_own_chunk_alone(spans, tile_scores, chunk):
    tensors = inputs(spans)
    ours = packed(spans, *tensors, tile_scores=tile_scores, chunk=chunk)
    theirs = dense(spans, *tensors, scale=SCALE, chunk=chunk)
    torch.testing.assert_close(with_gradients(ours, tensors), with_gradients(theirs, tensors))


def test_a_window_of_a_long_row_costs_its_own_length():
    """Blocks out of it are passed by."""
    counts = []
    for length in (400, 800):
        plans = AttentionPlans([Span(0, length)], torch.device("cpu"))
        rows = replace(plans.of(16, HEADS, KEY_HEADS).long_rows, spans=(Span(0, length),), block=8)
        counts.append(sum(len(blocks) for _, blocks in _blocks(rows)))
    assert counts[1] < 2.1 * counts[0]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
def test_long_rows_and_short_ones_of_a_prompt_are_close_in_other_types(dtype, limit):
    plan = plan_attention(LONG, heads=HEADS, key_heads=KEY_HEADS, tile_scores=2**10)
    assert plan.tiles
    assert len(plan.long_rows.spans) > 1
    exact, tensors = inputs(LONG), inputs(LONG, dtype)
    expected = with_gradients(dense(LONG, *exact, scale=SCALE), exact)
    found = with_gradients(packed(LONG, *tensors, tile_scores=2**10), tensors)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        assert (ours - theirs).norm() / theirs.norm() < limit


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
    query, key, value = inputs(SPANS)
    options = {"tile_scores": tile_scores, "dropout": 0.5}
    torch.manual_seed(0)
    out = packed(SPANS, query, key, torch.ones_like(value), **options)
    assert out.std() > 0.1
    assert abs(out.mean() - 1.0) < 0.1

    def dropped(*tensors):
        torch.manual_seed(0)
        return packed(SPANS, *tensors, **options)

    assert torch.autograd.gradcheck(dropped, (query, key, value), fast_mode=True)


def test_ranks_with_other_heads_drop_other_weights():
    tensors = inputs(SPANS)

    def dropped(stream):
        torch.manual_seed(0)  # ranks of the same rows draw alike
        return packed(SPANS, *tensors, dropout=0.5, stream=stream)

    assert torch.equal(dropped(0), dropped(0))
    assert not torch.equal(dropped(0), dropped(HEAD_STREAM))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_twice_the_response_takes_twice_the_memory_and_the_same_bits_each_time(peak_bytes, dropout):
    peaks, runs = [], []
    for response in (60, 120, 120):
        spans = group(25, response)
        tensors = inputs(spans, torch.float32)
        with peak_bytes() as memory:
            out = packed(spans, *tensors, tile_scores=2**10, dropout=dropout)
            runs.append(with_gradients(out, tensors))
        peaks.append(memory.peak)
    assert peaks[1] < 2.2 * peaks[0]
    # Queries, keys, values: given, padded, and their gradients; output and its gradient; a block.
    assert peaks[1] < 6 * sum(x.nbytes for x in tensors)
    assert all(torch.equal(*pair) for pair in zip(*runs[1:], strict=True))


def test_scores_beyond_the_range_of_exp():
    query, key, value = inputs(LONG)
    tensors = ((query * 2000.0).detach().requires_grad_(), key, value)
    assert float((tensors[0][0, 0] @ key[0, 0].T).detach().max()) * SCALE > 1000.0
    found, expected = (
        with_gradients(packed(LONG, *tensors, tile_scores=scores), tensors)
        for scores in (2**9, 2**30)
    )
    torch.testing.assert_close(found, expected)
