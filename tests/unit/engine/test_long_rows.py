"""Rows too long for a tile: the same numbers, the same bits each time, memory linear in tokens."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ppojob_trainer.engine.attention import attend_packed, plan_attention
from ppojob_trainer.engine.layout import Span

HEADS, KEY_HEADS, SIZE = 4, 2, 8
SCALE = 0.3


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made in its scope held at a time; counted, not measured."""

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._held = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for storage in (x.untyped_storage() for x in tree_leaves(result) if torch.is_tensor(x)):
            alive = StorageWeakRef(storage)
            self._held[alive.cdata] = alive, storage.nbytes()
        self._held = {at: held for at, held in self._held.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._held.values()))
        return result


def group(prompt, *responses):
    """Spans of a prompt and its responses, and how many tokens they are."""
    spans, end = [Span(0, prompt)], prompt
    for response in responses:
        spans.append(Span(end, response, 0, prompt))
        end += response
    return spans, end


def inputs(tokens, dtype=torch.float32):
    """Query, key and value: the same numbers in every type."""
    torch.manual_seed(3)
    drawn = [torch.randn(1, heads, tokens, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [x.bfloat16().to(dtype).requires_grad_() for x in drawn]


def forward(spans, tensors, *, tile_scores, dropout=0.0):
    plan = plan_attention(spans, heads=HEADS, key_heads=KEY_HEADS, tile_scores=tile_scores)
    options = {"attention_plan": plan, "scaling": SCALE, "dropout": dropout}
    return attend_packed(torch.nn.Module(), *tensors, None, **options)[0]


def attend(spans, tensors, **options):
    output = forward(spans, tensors, **options)
    return output, *torch.autograd.grad(output, tensors, torch.ones_like(output).cumsum(1))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_twice_the_response_takes_twice_the_memory(dropout):
    peaks = []
    for response in (120, 240):
        spans, tokens = group(50, response)
        tensors = inputs(tokens)
        with PeakBytes() as memory:
            attend(spans, tensors, tile_scores=2**10, dropout=dropout)
        peaks.append(memory.peak)
    assert peaks[1] < 2.2 * peaks[0]
    # Queries, keys, values: given, padded, and their gradients; output and its gradient; a block.
    assert peaks[1] < 6 * sum(x.nbytes for x in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_rows_and_short_ones_of_a_prompt_equal_tiles(dtype):
    spans, tokens = group(30, 90, 4, 61, 5)
    in_tiles = attend(spans, inputs(tokens, torch.float64), tile_scores=2**30)
    plan = plan_attention(spans, heads=HEADS, key_heads=KEY_HEADS, tile_scores=2**10)
    assert plan.tiles
    assert len(plan.long_rows.spans) > 1
    for got, expected in zip(
        attend(spans, inputs(tokens, dtype), tile_scores=2**10), in_tiles, strict=True
    ):
        assert got.dtype == dtype
        limit = 1e-6 if dtype == torch.float32 else 8e-3
        assert (got - expected).norm() / expected.norm() < limit


def test_gradients_under_dropout_are_those_of_what_was_kept():
    spans, tokens = group(1, 3)

    def output(*tensors):
        torch.manual_seed(0)
        return forward(spans, tensors, tile_scores=16, dropout=0.5)

    assert torch.autograd.gradcheck(output, inputs(tokens, torch.float64))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_same_bits_each_time(dropout):
    spans, tokens = group(30, 90, 4, 61)
    runs = []
    for _ in range(2):
        tensors = inputs(tokens)
        runs.append(attend(spans, tensors, tile_scores=2**10, dropout=dropout))
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


def test_scores_beyond_the_range_of_exp():
    spans, tokens = group(20, 70)
    query, key, value = inputs(tokens, torch.float64)
    tensors = ((query * 2000.0).detach().requires_grad_(), key, value)
    assert float((tensors[0][0, 0] @ key[0, 0].T).detach().max()) * SCALE > 1000.0
    got = attend(spans, tensors, tile_scores=2**9)
    for one, other in zip(got, attend(spans, tensors, tile_scores=2**30), strict=True):
        torch.testing.assert_close(one, other)
