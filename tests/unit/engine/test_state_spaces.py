"""Mamba-2 over packed rows against the rule token by token, in float64."""

import pytest
import torch
from torch.nn import functional as F

from ppojob_trainer.engine.linear_attention import HeadSizes, plan_chunks
from ppojob_trainer.engine.packed_rows import Span
from ppojob_trainer.engine.state_spaces import HeadWeights, in_runs, mix_rows

SIZES = HeadSizes(key_heads=2, value_heads=4, key=3, value=5)
CHANNELS = 4 * 5 + 2 * 2 * 3
TAPS = 4
LONG = [Span(0, 150), Span(150, 64, 0, 150), Span(214, 1, 0, 150), Span(215, 140, 0, 150)]
SHORT = [Span(0, 2), Span(2, 1, 0, 2), Span(3, 5, 0, 2), Span(8, 1), Span(9, 9, 8, 1)]


def row_by_row(mixed, step, decay, filters, shifts, skips, spans):
    """Every row by itself with its whole prompt; what its own tokens read."""
    found = []
    for span in spans:
        prompt = torch.arange(span.prefix_start, span.prefix_start + span.prefix_length)
        places = torch.cat([prompt, torch.arange(span.start, span.start + span.length)])
        padded = F.pad(mixed[places], (0, 0, TAPS - 1, 0))
        seen = F.silu(F.conv1d(padded.T[None], filters[:, None], shifts, groups=CHANNELS))[0].T
        value, key, query = seen.split([20, 6, 6], dim=1)
        query, key = (x.view(-1, 2, 3).repeat_interleave(2, dim=1) for x in (query, key))
        state, read = mixed.new_zeros(4, 3, 5), []
        for t, place in enumerate(places):
            own = value[t].view(4, 5)
            written = torch.einsum("hk,hv->hkv", key[t], step[place][:, None] * own)
            state = state * decay[place].exp()[:, None, None] + written
            read.append(torch.einsum("hkv,hk->hv", state, query[t]) + skips[:, None] * own)
        found.append(torch.stack(read[span.prefix_length :]))
    return torch.cat(found)


@pytest.mark.parametrize(("chunk", "at_once"), [(1, 4), (4, 3), (64, 4), (64, 1)])
@pytest.mark.parametrize("spans", [LONG, SHORT])
def test_rows_go_on_from_their_prompts(spans, chunk, at_once):
    """Forth and back, with decays whose inverse is no number of float32; all heads, and some."""
    torch.manual_seed(0)
    total = sum(span.length for span in spans)
    read = [
        torch.randn(total, CHANNELS, dtype=torch.float64),
        torch.rand(total, 4, dtype=torch.float64),
        -30.0 * torch.rand(total, 4, dtype=torch.float64) ** 4,
        torch.randn(CHANNELS, TAPS, dtype=torch.float64),
        torch.randn(CHANNELS, dtype=torch.float64),
        torch.randn(4, dtype=torch.float64),
    ]
    for one in read:
        one.requires_grad_()
    plan = plan_chunks(spans, TAPS - 1, chunk)
    runs = in_runs(*read[:3], HeadWeights(*read[3:]), SIZES, at_once)
    assert len(runs) == {4: 1, 3: 2, 1: 4}[at_once]
    output = torch.cat([mix_rows(*run, plan) for run in runs], dim=1)
    expected = row_by_row(*read, spans)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    factors = torch.randn_like(output)
    ours, theirs = (torch.autograd.grad((factors * one).sum(), read) for one in (output, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)
