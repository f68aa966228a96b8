"""From logits to tokens: the processed distribution and a draw from it, row by row.

A row is drawn with one uniform number by inverting the cumulative distribution, so it depends on
its own logits and its own random stream only, never on who shares its batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ppojob_trainer.rollout.protocol import SamplingParams


def processed_logprobs(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Return log-probabilities after temperature, top-k and top-p, renormalised.

    Args:
        logits: `(rows, vocab)`, of any floating type.
        sampling: One a row. Temperature 0 leaves its row as at temperature 1, untruncated.

    Returns:
        `(rows, vocab)` float32; -inf where top-k or top-p cut off.
    """
    temperatures = [params.temperature or 1.0 for params in sampling]
    scaled = logits.float() / torch.tensor(temperatures, device=logits.device)[:, None]
    cut = [row for row, params in enumerate(sampling) if _truncates(params)]
    if cut:
        scaled[cut] = _truncated(scaled[cut], [sampling[row] for row in cut])
    return torch.log_softmax(scaled, dim=-1)


def draw(logprobs: Tensor, uniforms: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Draw one token a row.

    Args:
        logprobs: `(rows, vocab)`, of `processed_logprobs`.
        uniforms: `(rows,)` float64 in [0, 1), each from its row's own stream.
        sampling: One a row; temperature 0 takes the most likely token and ignores its uniform.

    Returns:
        `(rows,)` int64 token ids, none of probability 0.
    """
    # float64: a float32 cumulative sum over a large vocabulary would lose the tail's tokens.
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    total = cumulative[:, -1]
    # Rounding may lift u * total up to total itself, past every token.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    greedy = torch.tensor([params.temperature == 0.0 for params in sampling], device=drawn.device)
    return torch.where(greedy, logprobs.argmax(dim=-1), drawn)


def _truncates(params: SamplingParams) -> bool:
    return params.temperature > 0.0 and (params.top_k != -1 or params.top_p < 1.0)


def _truncated(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Set to -inf what top-k and then top-p leave out; the most likely token always stays."""
    vocab = logits.shape[-1]
    top_k = [vocab if params.top_k == -1 else params.top_k for params in sampling]
    top_p = [params.top_p for params in sampling]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=logits.device)
    ordered = ordered.masked_fill(
        rank >= torch.tensor(top_k, device=logits.device)[:, None], -torch.inf
    )
    probabilities = torch.softmax(ordered, dim=-1, dtype=torch.float64)
    before = probabilities.cumsum(dim=-1) - probabilities
    keep_until = torch.tensor(top_p, device=logits.device, dtype=torch.float64)[:, None]
    outside = (before >= keep_until) & (rank > 0) & (keep_until < 1.0)
    ordered = ordered.masked_fill(outside, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)
