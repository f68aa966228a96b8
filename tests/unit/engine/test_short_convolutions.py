"""Short convolutions over packed rows against PyTorch's of each row by itself, in float64."""

import pytest
import torch
from torch.nn import functional as F

from ppojob_trainer.engine.linear_attention import convolve_neighbours, plan_neighbours
from ppojob_trainer.engine.packed_rows import Span

FEATURES, TAPS = 6, 4
ONE_LONG_PROMPT = [Span(0, 70), Span(70, 3, 0, 70), Span(73, 64, 0, 70)]
SHORT_PROMPTS = [Span(0, 2), Span(2, 1, 0, 2), Span(3, 5, 0, 2), Span(8, 1), Span(9, 9, 8, 1)]


@pytest.mark.parametrize("spans", [ONE_LONG_PROMPT, SHORT_PROMPTS])
def test_rows_see_their_prompts_and_no_other_row(spans):
    torch.manual_seed(0)
    total = sum(span.length for span in spans)
    read = [torch.randn(total, FEATURES), torch.randn(FEATURES, TAPS)]
    read = [one.double().requires_grad_() for one in read]
    mixed, filters = read
    found = []
    for span in spans:
        prompt = torch.arange(span.prefix_start, span.prefix_start + span.prefix_length)
        places = torch.cat([prompt, torch.arange(span.start, span.start + span.length)])
        padded = F.pad(mixed[places], (0, 0, TAPS - 1, 0))
        seen = F.conv1d(padded.T[None], filters[:, None], groups=FEATURES)[0].T
        found.append(seen[span.prefix_length :])
    output, expected = (
        convolve_neighbours(*read, plan_neighbours(spans, TAPS - 1))[..., 0],
        torch.cat(found),
    )
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    factors = torch.randn_like(output)
    ours, theirs = (torch.autograd.grad((factors * one).sum(), read) for one in (output, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
