"""Attention with all scores at once: what packed attention is held against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ppojob_trainer.engine.packed_rows import Span

SPANS = (
    Span(0, 5),
    Span(5, 3, 0, 5),
    Span(8, 7, 0, 5),
    Span(15, 1),
    Span(16, 1, 15, 1),
    Span(17, 9, 15, 1),
    Span(26, 11),
)
"""Rows of two shared prompts, and one by itself."""


def group(prompt: int, *responses: int, start: int = 0) -> list[Span]:
    """Spans of a prompt and its responses."""
    spans, end = [Span(start, prompt)], start + prompt
    for response in responses:
        spans.append(Span(end, response, start, prompt))
        end += response
    return spans


def dense(
    spans: Sequence[Span],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """(1, H, T, D) and twice (1, K, T, D) to (1, T, H, D)."""
    heads, total = query.shape[1], query.shape[2]
    visible = torch.zeros(total, total, dtype=torch.bool)
    position = torch.empty(total, dtype=torch.int64)
    for span in spans:
        for i in range(span.start, span.start + span.length):
            visible[i, span.prefix_start : span.prefix_start + span.prefix_length] = True
            visible[i, span.start : i + 1] = True
            position[i] = span.prefix_length + i - span.start
        for first, end in span.bidirectional:
            visible[first:end, first:end] = True
    if window is not None:
        visible &= position[:, None] < position + window
    if chunk is not None:
        visible &= position[:, None] // chunk == position // chunk
    key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    scores = scale * query @ key.mT
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:  # a key more, whose value is 0
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], -1)
        value = torch.cat([value, torch.zeros_like(value[:, :, :1])], 2)
    out = scores.softmax(-1) @ value
    return out.transpose(1, 2)
