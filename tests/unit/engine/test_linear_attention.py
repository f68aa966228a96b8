"""Gated delta networks over packed rows against the rule token by token, in float64."""

import pytest
import torch
from torch.nn import functional as F

from ppojob_trainer.engine.linear_attention import HeadSizes, mix_rows, plan_chunks
from ppojob_trainer.engine.packed_rows import Span

SIZES = HeadSizes(key_heads=2, value_heads=4, key=3, value=5)
CHANNELS = 2 * 2 * 3 + 4 * 5
TAPS = 4
LONG = [Span(0, 150), Span(150, 64, 0, 150), Span(214, 1, 0, 150), Span(215, 140, 0, 150)]
SHORT = [Span(0, 2), Span(2, 1, 0, 2), Span(3, 5, 0, 2), Span(8, 1), Span(9, 9, 8, 1)]


def row_by_row(mixed, filters, decay, weight, spans):
    """Every row by itself with its whole prompt; what its own tokens read."""
    found = []
    for span in spans:
        prompt = torch.arange(span.prefix_start, span.prefix_start + span.prefix_length)
        places = torch.cat([prompt, torch.arange(span.start, span.start + span.length)])
        padded = F.pad(mixed[places], (0, 0, TAPS - 1, 0))
        seen = F.silu(F.conv1d(padded.T[None], filters[:, None], groups=CHANNELS))[0].T
        query, key, value = seen.split([6, 6, 20], dim=1)
        query, key = (x.view(-1, 2, 3).repeat_interleave(2, dim=1) for x in (query, key))
        query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (query, key))
        state, read = mixed.new_zeros(4, 3, 5), []
        for t, place in enumerate(places):
            state = state * decay[place].exp()[:, None, None]
            told = torch.einsum("hkv,hk->hv", state, key[t])
            change = weight[place][:, None] * (value[t].view(4, 5) - told)
            state = state + torch.einsum("hk,hv->hkv", key[t], change)
            read.append(torch.einsum("hkv,hk->hv", state, query[t]) / 3**0.5)
        found.append(torch.stack(read[span.prefix_length :]))
    return torch.cat(found)


@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("spans", [LONG, SHORT])
def test_rows_go_on_from_their_prompts(spans, chunk):
    """Forth and back, with decays whose inverse is no number of float32."""
    torch.manual_seed(0)
    total = sum(span.length for span in spans)
    read = [
        torch.randn(total, CHANNELS, dtype=torch.float64),
        torch.randn(CHANNELS, TAPS, dtype=torch.float64),
        -3.0 * torch.rand(total, 4, dtype=torch.float64) ** 4,
        torch.rand(total, 4, dtype=torch.float64),
    ]
    for one in read:
        one.requires_grad_()
    output = mix_rows(*read, SIZES, plan_chunks(spans, TAPS - 1, chunk))
    expected = row_by_row(*read, spans)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    factors = torch.randn_like(output)
    ours, theirs = (torch.autograd.grad((factors * one).sum(), read) for one in (output, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_decays_of_any_size_are_numbers():
    total, spans = 80, [Span(0, 80)]
    mixed = torch.randn(total, CHANNELS, requires_grad=True)
    decay = torch.full((total, 4), -40.0, requires_grad=True)
    plan = plan_chunks(spans, TAPS - 1)
    output = mix_rows(mixed, torch.randn(CHANNELS, TAPS), decay, torch.rand(total, 4), SIZES, plan)
    output.sum().backward()
    assert output.isfinite().all()
    assert mixed.grad.isfinite().all()
    assert decay.grad.isfinite().all()


def test_states_that_fade_fast_keep_the_digits_of_float32():
    """Within chunks whose decays add up to hundreds."""
    torch.manual_seed(0)
    total, spans = 128, [Span(0, 128)]
    decay = -20.0 * torch.rand(total, 4, dtype=torch.float64) ** 4
    decay[::8] = -30.0
    read = [torch.randn(total, CHANNELS), torch.randn(CHANNELS, TAPS), decay, torch.rand(total, 4)]
    plan = plan_chunks(spans, TAPS - 1)
    output = mix_rows(*(one.float() for one in read), SIZES, plan).double()
    expected = mix_rows(*(one.double() for one in read), SIZES, plan)
    assert (output - expected).norm() < 1e-6 * expected.norm()
