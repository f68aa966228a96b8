"""Fused log-probabilities and entropy from hidden states; the full logits never exist.

Logits are computed in tiles of tokens x vocabulary and reduced by an online log-sum-exp (Milakov
and Gimelshein, arXiv:1805.02867); the backward pass recomputes them. The inner loop runs over the
vocabulary, so each row of the output matrix is cast, and its gradient written, once per block of
tokens. With a vocabulary-parallel output layer each rank reduces its own rows, and results are
combined over the ranks.

Legend: N tokens, h hidden size, V vocabulary, z = (softcapped) logits / temperature, p =
softmax(z).
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ppojob_trainer.deterministic import nondeterministic_kernels
from ppojob_trainer.models.experts import product_dtype
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.tensor_styles import VocabularyShard

TOKEN_BLOCK = 4096
"""Maximum tokens of a tile; larger tiles read the output matrix less often."""

Entropy = Literal["none", "value", "gradient"]


@dataclass(frozen=True, slots=True)
class LogprobSettings:
    """How logits are made, and which statistics of them are returned."""

    temperature: float = 1.0  # above 0; logits are divided by it
    chunk_tokens: int = 256  # a tile holds at most this many tokens times V logits; 0 for no limit
    entropy: Entropy = "none"  # none, its value without gradient, or with gradient
    squares: bool = False  # whether Σ p² is returned too, without gradient
    certainty: bool = False  # whether KL(U, p) is returned too, without gradient; U: 1 / V each
    cap: float | None = None  # softcap of logits before the division: `cap tanh(logits / cap)`


def fused_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, settings: LogprobSettings
) -> tuple[Tensor, ...]:
    """Compute log p of each target, and the statistics of p that the settings ask for.

    `log p_a = z_a - log Σ exp z`, the entropy `-Σ p log p`, `Σ p²`, and the KL of the uniform
    distribution to p, `-Σ log(V p) / V`, (N,) each. `hidden` (N, h) and `weight` (V, h) of the
    output layer have gradients, `targets` are (N,) int64. The weight may be sharded by rows over
    tensor-parallel ranks, which have the same hidden states and get the same outputs. Products are
    in autocast's dtype if it is on, else in that of `hidden`; the rest in float32 (float64 stays).
    """
    dtype = product_dtype(hidden)
    logprobs, entropy, squares, certainty = _FusedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, local_part(weight), targets, settings, dtype, VocabularyShard.of(weight)
    )
    further = (
        (entropy, settings.entropy != "none"),
        (squares, settings.squares),
        (certainty, settings.certainty),
    )
    return (logprobs, *(values for values, is_asked in further if is_asked))


class _FusedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        settings: LogprobSettings,
        dtype: torch.dtype,
        run: VocabularyShard,
    ) -> tuple[Tensor, ...]:
        places = targets - run.first
        with torch.autocast(hidden.device.type, enabled=False):
            states = hidden.to(dtype)
            folded = _fold(states, weight, places, settings)
            if run.ranks is not None:
                folded = _joined(run.all_gather(torch.stack(folded)))
        target_logits, m, s, u, q, total = folded
        log_s = s.log()
        normalizer, squares = m + log_s, q / s.square()
        entropy = torch.zeros_like(m) if settings.entropy == "none" else log_s - u / s
        certainty = normalizer - total / run.size - math.log(run.size)
        ctx.save_for_backward(states, weight, places, normalizer, entropy)
        ctx.settings, ctx.hidden_dtype, ctx.run = settings, hidden.dtype, run
        fixed = (squares, certainty)
        ctx.mark_non_differentiable(*fixed, *(() if settings.entropy == "gradient" else (entropy,)))
        return target_logits - normalizer, entropy, squares, certainty

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, places, normalizer, entropy = ctx.saved_tensors
        settings: LogprobSettings = ctx.settings
        grad_hidden = torch.zeros_like(
            states, dtype=torch.promote_types(states.dtype, torch.float32)
        )
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for tokens, vocab in tiles(states.shape[0], weight.shape[0], settings.chunk_tokens):
            matrix = weight[vocab].to(states.dtype)
            z = tile_logits(states[tokens], matrix, settings)
            slope = slope_of(z, settings)
            log_p = z.sub_(normalizer[tokens, None])
            grad_z = _logit_gradient(
                log_p, places[tokens] - vocab.start, grads[0][tokens], settings
            )
            if settings.entropy == "gradient":
                p = log_p.exp()  # -dH/dz = p (log p + H)
                grad_z -= p.mul_(log_p.add_(entropy[tokens, None])).mul_(grads[1][tokens, None])
            grad_logits = grad_z
            if settings.temperature != 1.0:
                grad_logits.div_(settings.temperature)
            if slope is not None:
                grad_logits.mul_(slope)
            scaled = grad_logits.to(states.dtype)
            grad_hidden[tokens] += scaled @ matrix
            if grad_weight is not None:
                grad_weight[vocab] += scaled.mT @ states[tokens]
        grad_hidden = ctx.run.all_reduce(grad_hidden).to(ctx.hidden_dtype)
        return grad_hidden, grad_weight, None, None, None, None


def tiles(tokens: int, vocab: int, chunk_tokens: int) -> Iterator[tuple[slice, slice]]:
    """Yield tiles of at most `chunk_tokens` x vocab logits; the vocabulary is the inner loop."""
    rows = max(1, min(TOKEN_BLOCK, tokens))
    limit = max(1, chunk_tokens or tokens) * vocab
    columns = max(1, min(vocab, limit // rows))
    for first in range(0, tokens, rows):
        for column in range(0, vocab, columns):
            yield (
                slice(first, min(first + rows, tokens)),
                slice(column, min(column + columns, vocab)),
            )


def tile_logits(states: Tensor, matrix: Tensor, settings: LogprobSettings) -> Tensor:
    """Compute z of a tile, in a buffer of its own."""
    wide = torch.promote_types(states.dtype, torch.float32)
    if states.is_cuda and states.dtype != wide:
        # Products are summed in float32 anyway; casting afterwards would cost a pass.
        z = torch.mm(states, matrix.mT, out_dtype=torch.float32)
    else:
        z = (states @ matrix.mT).to(wide)
    if settings.cap is not None:
        z.div_(settings.cap).tanh_().mul_(settings.cap)
    return z if settings.temperature == 1.0 else z.div_(settings.temperature)


def slope_of(z: Tensor, settings: LogprobSettings) -> Tensor | None:
    """Return the derivative of the softcap, from `tile_logits`' result; None without a cap."""
    if settings.cap is None:
        return None
    return (z * (settings.temperature / settings.cap)).square_().neg_().add_(1.0)


class _Folded(NamedTuple):
    """Online statistics, (N,) each; u, q and the total are zeros unless asked for.

    log Σ exp z is m + log s, the entropy log s - u / s, Σ p² q / s².
    """

    target_logits: Tensor  # z of the target, 0 if on another rank
    m: Tensor  # the largest z
    s: Tensor  # Σ exp(z - m)
    u: Tensor  # Σ exp(z - m) (z - m)
    q: Tensor  # Σ exp(2 (z - m))
    total: Tensor  # Σ z


def _fold(states: Tensor, weight: Tensor, places: Tensor, settings: LogprobSettings) -> _Folded:
    """Reduce tile after tile under the running maximum of z."""
    count, dtype = states.shape[0], torch.promote_types(states.dtype, torch.float32)
    target_logits = torch.zeros(count, dtype=dtype, device=states.device)
    m = torch.full_like(target_logits, -torch.inf)
    s, u, q, total = (torch.zeros_like(m) for _ in range(4))
    for tokens, vocab in tiles(count, weight.shape[0], settings.chunk_tokens):
        z = tile_logits(states[tokens], weight[vocab].to(states.dtype), settings)
        place = places[tokens] - vocab.start
        inside = (place >= 0) & (place < z.shape[1])
        found = z.gather(1, place.clamp(0, z.shape[1] - 1)[:, None])[:, 0]
        target_logits[tokens] += torch.where(inside, found, 0.0)
        largest = torch.maximum(m[tokens], z.amax(dim=1))
        fall = m[tokens] - largest
        if settings.certainty:
            total[tokens] += z.sum(dim=1)
        z.sub_(largest[:, None])
        if settings.squares:
            q[tokens] = q[tokens] * (2.0 * fall).exp() + (2.0 * z).exp_().sum(dim=1)
        if settings.entropy == "none":
            s[tokens] = s[tokens] * fall.exp() + z.exp_().sum(dim=1)
        else:
            # fall is -inf in the first tile, where s and u are still 0 and 0 * -inf is no number.
            drop = torch.where(fall.isfinite(), fall, 0.0)
            weights = z.exp()
            u[tokens] = (u[tokens] + drop * s[tokens]) * drop.exp() + z.mul_(weights).sum(dim=1)
            s[tokens] = s[tokens] * drop.exp() + weights.sum(dim=1)
        m[tokens] = largest
    return _Folded(target_logits, m, s, u, q, total)


def _joined(parts: Tensor) -> _Folded:
    """Combine the results of vocabulary shards, (ranks, 6, N)."""
    target_logits, m, s, u, q, total = parts.unbind(1)
    largest = m.amax(0)
    fall = m - largest
    weights = fall.exp()
    return _Folded(
        target_logits.sum(0),
        largest,
        (s * weights).sum(0),
        ((u + fall * s) * weights).sum(0),
        (q * weights.square()).sum(0),
        total.sum(0),
    )


def _logit_gradient(
    log_p: Tensor, place: Tensor, grad: Tensor, settings: LogprobSettings
) -> Tensor:
    """Return the gradient of the logits by log p_a: d log p_a / dz = 1[a] - p, times `grad`."""
    p = log_p.exp() if settings.entropy == "gradient" else log_p.exp_()
    result = p.mul_(-grad[:, None])
    # Targets outside the tile are masked, not selected: a GPU would have to synchronise.
    inside = (place >= 0) & (place < log_p.shape[1])
    at = place.clamp(0, log_p.shape[1] - 1)[:, None]
    added = result.gather(1, at) + torch.where(inside, grad, 0.0)[:, None]
    # Each row has one target, so order does not matter; the deterministic scatter sorts on GPUs.
    with nondeterministic_kernels() if result.is_cuda else nullcontext():
        return result.scatter_(1, at, added)
