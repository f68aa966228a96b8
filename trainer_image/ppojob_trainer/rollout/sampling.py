"""Sampling: processed distributions, draws by inverse CDF, and the seed of every sample.

Each token is drawn with one uniform number, so a row depends on its own logits and random stream
only, never on its batch.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ppojob_trainer.rollout.protocol import SamplingParams
from ppojob_trainer.rollout.structured_output import GrammarMatcher

Purpose = Literal["train", "validation"]

# Of the 63 bits of a signed 64-bit seed, so that adding a sample's index never overflows.
_SEED_BITS = 62

_SUM_BLOCK = 512
"""About the square root of a vocabulary."""


def sample_seed(
    job_seed: int,
    step: int,
    prompt_id: int,
    sample_index: int,
    purpose: Purpose,
    segment: int = 0,
) -> int:
    """Return the seed of a segment: ``H(job seed, purpose, step, prompt id, segment) + sample``.

    It is in ``[0, 2**63)``, and the same in a resumed or resharded run. The sample's index is added
    after the hash: torch's CPU generator uses the low 32 bits only, so samples of a prompt never
    share a stream. Steps count from 0; a validation has the step after which it runs. `segment` is
    the number of earlier segments of the row by the policy; the first is not hashed.
    """
    text = f"ppojob/{job_seed}/{purpose}/{step}/{prompt_id}" + (f"/{segment}" if segment else "")
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> (64 - _SEED_BITS)) + sample_index


def masked(logits: Tensor, matchers: Sequence[GrammarMatcher | None]) -> Tensor:
    """Set logits `(rows, vocab)` to -inf at tokens that a row's grammar forbids."""
    logits, vocab = logits.clone(), logits.shape[-1]
    for row, matcher in enumerate(matchers):
        if matcher is not None:
            bits = np.unpackbits(matcher.allowed(-(-vocab // 8)), count=vocab, bitorder="little")
            logits[row, torch.from_numpy(bits == 0).to(logits.device)] = -torch.inf
    return logits


def penalised(
    logits: Tensor, sampling: Sequence[SamplingParams], texts: Sequence[Sequence[int]]
) -> Tensor:
    """Apply the repetition penalty: logits `(rows, vocab)` in float32.

    Keskar et al. 2019, arXiv:1909.05858, section 4.1, in the form of transformers and vLLM, which
    lowers a negative logit too. `texts` are the tokens of each row's prompt and response so far.
    """
    logits = logits.float().clone()
    for row, (params, text) in enumerate(zip(sampling, texts, strict=True)):
        penalty = params.repetition_penalty
        if penalty != 1.0:
            tokens = torch.tensor(sorted(set(text)), dtype=torch.int64, device=logits.device)
            known = logits[row, tokens]
            logits[row, tokens] = torch.where(known > 0, known / penalty, known * penalty)
    return logits


def processed_logprobs(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Return log-probabilities after temperature, min-p, top-k and top-p, renormalized.

    `(rows, vocab)` float32, -inf for removed tokens; temperature 0 is as 1, without removal.
    """
    temperatures = [params.temperature or 1.0 for params in sampling]
    scaled = logits.float() / torch.tensor(temperatures, device=logits.device)[:, None]
    cut = [
        row
        for row, params in enumerate(sampling)
        if params.temperature > 0.0
        and (params.top_k != -1 or params.top_p < 1.0 or params.min_p > 0.0)
    ]
    if cut:
        scaled[cut] = _truncated(scaled[cut], [sampling[row] for row in cut])
    return torch.log_softmax(scaled, dim=-1)


def draw(logprobs: Tensor, uniforms: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Draw one token per row from `processed_logprobs`: `(rows,)` int64, none of probability 0.

    Uniforms are `(rows,)` float64 in [0, 1); temperature 0 takes the most likely token.
    """
    # In float32 the sum would lose the tail of a large vocabulary.
    cumulative = cumulative_sum(logprobs.double().exp())
    total = cumulative[:, -1]
    # Rounding may give u * total = total, beyond every token.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    greedy = torch.tensor([params.temperature == 0.0 for params in sampling], device=drawn.device)
    return torch.where(greedy, logprobs.argmax(dim=-1), drawn)


def cumulative_sum(values: Tensor) -> Tensor:
    """Return cumulative sums of `(rows, n)` in a fixed order, unlike torch's `cumsum` on GPUs."""
    return _sum_in_blocks(values) if values.is_cuda else values.cumsum(dim=-1)


def _sum_in_blocks(values: Tensor) -> Tensor:
    """Sum within blocks, then over blocks: products with triangles of ones."""
    rows, count = values.shape
    block = min(count, _SUM_BLOCK)
    blocks = torch.nn.functional.pad(values, (0, -count % block)).view(rows, -1, block)
    within = blocks @ values.new_ones(block, block).triu()
    ends = within[:, :, -1]
    before = ends @ values.new_ones(ends.shape[-1], ends.shape[-1]).triu(1)
    return (within + before[:, :, None]).flatten(1)[:, :count].contiguous()


def _truncated(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Set to -inf what min-p, top-k and then top-p remove; the most likely token stays."""
    vocab = logits.shape[-1]
    top_k = [vocab if params.top_k == -1 else params.top_k for params in sampling]
    top_p = [params.top_p for params in sampling]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    least = torch.tensor([params.min_p for params in sampling], device=logits.device).log()
    ordered = ordered.masked_fill(ordered < ordered[:, :1] + least[:, None], -torch.inf)
    rank = torch.arange(vocab, device=logits.device)
    ordered = ordered.masked_fill(
        rank >= torch.tensor(top_k, device=logits.device)[:, None], -torch.inf
    )
    probabilities = torch.softmax(ordered, dim=-1, dtype=torch.float64)
    before = cumulative_sum(probabilities) - probabilities
    keep_until = torch.tensor(top_p, device=logits.device, dtype=torch.float64)[:, None]
    outside = (before >= keep_until) & (rank > 0) & (keep_until < 1.0)
    ordered = ordered.masked_fill(outside, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)
