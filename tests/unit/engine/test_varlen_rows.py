"""Attention as GPUs compute it: the rows that the kernel is given, and on a GPU the kernel."""

from itertools import pairwise

import pytest
import torch
from dense_attention import SPANS, dense, group
from torch import Tensor

from ppojob_trainer.engine.attention import AttentionPlans, attend_packed
from ppojob_trainer.engine.varlen_rows import VarlenRows, attend_rows

SCALE = 0.3
LONG = group(300, 900, 40, 610, 5)
ALONE = [*group(700), *group(1, start=700), *group(64, start=701)]


def literal_kernel(
    query, key, value, query_ends, key_ends, longest_query, longest_key, **options
) -> Tensor:
    """What the kernel does, by its documentation: a row's queries are the last of its tokens."""
    outputs, (left, right) = [], options["window_size"]
    assert right == 0
    assert options["enable_gqa"] == (query.shape[1] > key.shape[1])
    ends = list(zip(query_ends.tolist(), key_ends.tolist(), strict=True))
    for (query_start, key_start), (query_end, key_end) in pairwise(ends):
        queries = query[query_start:query_end].transpose(0, 1)
        keys, values = (x[key_start:key_end].transpose(0, 1) for x in (key, value))
        keys, values = (x.repeat_interleave(len(queries) // len(x), 0) for x in (keys, values))
        assert queries.shape[1] <= longest_query
        assert keys.shape[1] <= longest_key
        behind = keys.shape[1] - queries.shape[1]
        distance = torch.arange(queries.shape[1])[:, None] + behind - torch.arange(keys.shape[1])
        hidden = (distance < 0) | ((left >= 0) & (distance > left))
        scores = (options["scale"] * queries @ keys.mT).masked_fill(hidden, -torch.inf)
        outputs.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(outputs)


def inputs(spans, sizes=(6, 2, 8), dtype=torch.float64, device="cpu"):
    """Query, key and value, (1, heads, T, D): the same numbers in every type."""
    heads, key_heads, size = sizes
    torch.manual_seed(5)
    total = sum(span.length for span in spans)
    drawn = [torch.randn(1, count, total, size) for count in (heads, key_heads, key_heads)]
    return [x.bfloat16().to(device, dtype).requires_grad_() for x in drawn]


def with_gradients(out, tensors):
    grad = torch.linspace(0.0, 1.0, out.shape[1]).bfloat16().to(out)
    grad = grad[None, :, None, None].expand(out.shape).contiguous()
    return [out.cpu(), *(x.cpu() for x in torch.autograd.grad(out, tensors, grad))]


@pytest.mark.parametrize("window", [None, 1, 4, 50])
@pytest.mark.parametrize("spans", [SPANS, SPANS[:1]])
@pytest.mark.parametrize("sizes", [(6, 2, 8), (3, 3, 8)])
def test_the_rows_given_to_the_kernel_are_those_of_the_spans(spans, window, sizes):
    tensors = inputs(spans, sizes)
    expected = with_gradients(dense(spans, *tensors, scale=SCALE, window=window), tensors)
    packed = (x[0].transpose(0, 1) for x in tensors)
    rows = VarlenRows.of(spans, torch.device("cpu"))
    told = {"scale": SCALE, "window": window, "kernel": literal_kernel}
    found = with_gradients(attend_rows(*packed, rows, **told).unsqueeze(0), tensors)
    torch.testing.assert_close(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 1, 200])
@pytest.mark.parametrize("spans", [SPANS, LONG, ALONE])
@pytest.mark.parametrize("sizes", [(14, 2, 64), (4, 4, 128), (6, 2, 8)])
def test_the_kernel_of_a_gpu_is_close_and_gives_the_same_bits_each_time(
    spans, window, sizes, strict_gpu
):
    exact, tensors = inputs(spans, sizes), inputs(spans, sizes, torch.bfloat16, strict_gpu)
    expected = with_gradients(dense(spans, *exact, scale=SCALE, window=window), exact)
    plans = AttentionPlans(spans, strict_gpu)
    runs = []
    for _ in range(2):
        out, _ = attend_packed(
            torch.nn.Module(),
            *tensors,
            None,
            attention_plans=plans,
            scaling=SCALE,
            sliding_window=window,
        )
        runs.append(with_gradients(out, tensors))
    assert "rows" in vars(plans), "the tiles were taken"
    for ours, theirs in zip(runs[0], expected, strict=True):
        assert (ours - theirs).norm() <= 1e-2 * theirs.norm() + 1e-3  # some are zero
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("spans", [SPANS, LONG])
@pytest.mark.parametrize("told", [{}, {"softcap": 0.5}, {"dropout": 0.1}])
def test_tiles_on_a_gpu_are_close_and_give_the_same_bits_each_time(spans, told, strict_gpu):
    exact, tensors = inputs(spans), inputs(spans, dtype=torch.float32, device=strict_gpu)
    plans = AttentionPlans(spans, strict_gpu)
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        options = {"attention_plans": plans, "scaling": SCALE, **told}
        out, _ = attend_packed(torch.nn.Module(), *tensors, None, **options)
        runs.append(with_gradients(out, tensors))
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))
    if "dropout" not in told:
        expected = dense(spans, *exact, scale=SCALE, cap=told.get("softcap"))
        for ours, theirs in zip(runs[0], with_gradients(expected, exact), strict=True):
            assert (ours - theirs).norm() <= 1e-5 * theirs.norm() + 1e-6
