"""Full-vocabulary KL to the reference, computed from the hidden states of both models.

`KL(π || π_ref) = Σ p (log p - log r)` at each token, exact and with its own gradient, where
`algorithms.kl` estimates it from the sampled token. For teachers also the forward KL and the
generalized JSD (Agarwal et al. 2024, arXiv:2306.13649). Logits of both models are computed tile by
tile, as in `fused_logprobs`, whose legend holds; y are the reference's logits / temperature, r =
softmax(y). Vocabulary rows that only the reference has are padding, and not in r.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_trainer.engine.fused_logprobs import LogprobSettings, slope_of, tile_logits, tiles
from ppojob_trainer.engine.head import LastStates, PolicyHead, TokenOutputs, read_by_output_layer
from ppojob_trainer.models.experts import product_dtype
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.tensor_styles import VocabularyShard


@dataclass(frozen=True, slots=True)
class Divergence:
    """The divergence between the policy's distribution p and the reference's r.

    reverse_kl: `Σ p (log p - log r)`. forward_kl: `Σ r (log r - log p)`. jsd:
    `β Σ r (log r - log m) + (1 - β) Σ p (log p - log m)` with `m = β r + (1 - β) p`, equation 1 of
    arXiv:2306.13649.
    """

    name: str = "reverse_kl"
    beta: float = 0.5  # between 0 and 1, for jsd

    def log_mixture(self, log_p: Tensor, log_r: Tensor) -> Tensor:
        return torch.logaddexp(log_r + math.log(self.beta), log_p + math.log1p(-self.beta))

    def slope(self, log_p: Tensor, log_r: Tensor, mean: Tensor) -> Tensor:
        """Compute dD/dz of a tile, in place of log p and log r.

        forward_kl: p - r. Else `p (g - Σ p g)`, with g = log p - log r, for jsd `(1 - β) (log p -
        log m)`: the terms of m's dependence on p cancel. `mean` (N,) is Σ p g.
        """
        if self.name == "forward_kl":
            return log_p.exp_().sub_(log_r.exp_())
        if self.name == "jsd":
            distance = (log_p - self.log_mixture(log_p, log_r)).mul_(1.0 - self.beta)
        else:
            distance = log_p - log_r
        return distance.sub_(mean[:, None]).mul_(log_p.exp_())


REVERSE_KL: Final = Divergence()


@dataclass(frozen=True, slots=True)
class HeadWithKl:
    """The policy's head, and the divergence to a reference's states of the same micro-batch."""

    policy: PolicyHead
    reference: LastStates
    divergence: Divergence = REVERSE_KL

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        read, settings = read_by_output_layer(model, hidden), self.policy.settings_of(model)
        kl = full_kl(*read, self.reference, settings, self.divergence)
        return (*self.policy(model, hidden, targets), kl)


def full_kl(
    hidden: Tensor,
    weight: Tensor,
    reference: LastStates,
    settings: LogprobSettings,
    divergence: Divergence = REVERSE_KL,
) -> Tensor:
    """Compute KL(π || π_ref), or another divergence, of each token, (N,).

    `hidden` (N, h) and `weight` (V, h) of the policy have gradients; the reference has (N, h') and
    (V', h'), V' at least V, sharded as `weight`. Dtypes and sharding are as in `fused_logprobs`; a
    tile has two tensors of logits. A KL of equal distributions is 0.
    """
    kl: Tensor = _FullKl.apply(  # type: ignore[no-untyped-call]
        hidden,
        local_part(weight),
        reference.hidden,
        local_part(reference.weight),
        settings,
        reference.settings or settings,
        product_dtype(hidden),
        VocabularyShard.of(weight),
        divergence,
    )
    return kl


class _FullKl(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ref_hidden: Tensor,
        ref_weight: Tensor,
        settings: LogprobSettings,
        ref_settings: LogprobSettings,
        dtype: torch.dtype,
        run: VocabularyShard,
        divergence: Divergence,
    ) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            policy = hidden.to(dtype), weight, settings
            reference = ref_hidden.to(dtype), ref_weight, ref_settings
            is_swapped = divergence.name == "forward_kl"
            folded = _fold(reference, policy) if is_swapped else _fold(policy, reference)
            if run.ranks is not None:
                folded = _joined(run.all_gather(torch.stack(folded)))
            first, second, mean = folded
            value = mean = mean - first + second
            normalizers = (second, first) if is_swapped else (first, second)
            if divergence.name == "jsd":
                parts = _to_mixture(policy, reference, *normalizers, divergence)
                to_ref, mean = run.all_gather(torch.stack(parts)).sum(0)
                value = to_ref + mean
        ctx.save_for_backward(*policy[:2], *reference[:2], mean, *normalizers)
        ctx.settings, ctx.ref_settings = settings, ref_settings
        ctx.hidden_dtype, ctx.run, ctx.divergence = hidden.dtype, run, divergence
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, ref_states, ref_weight, mean, normalizer, ref_normalizer = ctx.saved_tensors
        settings: LogprobSettings = ctx.settings
        (grad,) = grads
        grad_hidden = torch.zeros_like(
            states, dtype=torch.promote_types(states.dtype, torch.float32)
        )
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for tokens, vocab in tiles(states.shape[0], weight.shape[0], settings.chunk_tokens):
            matrix = weight[vocab].to(states.dtype)
            log_p = tile_logits(states[tokens], matrix, settings)
            of_cap = slope_of(log_p, settings)
            log_p -= normalizer[tokens, None]
            reference = ref_states, ref_weight, ctx.ref_settings
            log_r = _log_probs(reference, tokens, vocab, ref_normalizer)
            slope = ctx.divergence.slope(log_p, log_r, mean[tokens])
            if of_cap is not None:
                slope.mul_(of_cap)
            scaled = slope.mul_((grad[tokens] / settings.temperature)[:, None]).to(states.dtype)
            grad_hidden[tokens] += scaled @ matrix
            if grad_weight is not None:
                grad_weight[vocab] += scaled.mT @ states[tokens]
        grad_hidden = ctx.run.all_reduce(grad_hidden).to(ctx.hidden_dtype)
        return grad_hidden, grad_weight, *[None] * 7


Logits = tuple[Tensor, Tensor, LogprobSettings]
"""Inputs of the logits: (N, h) states, the output layer's (V, h), and the settings."""
Folded = tuple[Tensor, Tensor, Tensor]
"""log Σ exp z, log Σ exp y, and Σ p (z - y) with p under the first normalizer; (N,) each."""


def _fold(policy: Logits, reference: Logits) -> Folded:
    """Accumulate over the tiles, rescaling to the running maximum."""
    states, weight, settings = policy
    count, dtype, device = (
        states.shape[0],
        torch.promote_types(states.dtype, torch.float32),
        states.device,
    )
    normalizer = torch.full((count,), -torch.inf, dtype=dtype, device=device)
    ref_normalizer, mean = normalizer.clone(), torch.zeros_like(normalizer)
    rows = min(weight.shape[0], reference[1].shape[0])
    for tokens, vocab in tiles(count, rows, settings.chunk_tokens):
        z, y = _tile(policy, tokens, vocab), _tile(reference, tokens, vocab)
        before = normalizer[tokens]
        after = torch.logaddexp(before, z.logsumexp(1))
        ref_normalizer[tokens] = torch.logaddexp(ref_normalizer[tokens], y.logsumexp(1))
        distance = z - y
        share = z.sub_(after[:, None]).exp_().mul_(distance).sum(1)
        mean[tokens] = mean[tokens] * (before - after).exp() + share
        normalizer[tokens] = after
    return normalizer, ref_normalizer, mean


def _to_mixture(
    policy: Logits,
    reference: Logits,
    normalizer: Tensor,
    ref_normalizer: Tensor,
    divergence: Divergence,
) -> tuple[Tensor, Tensor]:
    """Return `β Σ r (log r - log m)` and `(1 - β) Σ p (log p - log m)`, (N,), of its rows."""
    states, weight, settings = policy
    of_ref, of_policy = torch.zeros_like(normalizer), torch.zeros_like(normalizer)
    for tokens, vocab in tiles(states.shape[0], weight.shape[0], settings.chunk_tokens):
        log_p = _log_probs(policy, tokens, vocab, normalizer)
        log_r = _log_probs(reference, tokens, vocab, ref_normalizer)
        log_m = divergence.log_mixture(log_p, log_r)
        of_ref[tokens] += (log_r - log_m).mul_(log_r.exp_()).sum(1)
        of_policy[tokens] += (log_p - log_m).mul_(log_p.exp_()).sum(1)
    return of_ref.mul_(divergence.beta), of_policy.mul_(1.0 - divergence.beta)


def _tile(logits: Logits, tokens: slice, vocab: slice) -> Tensor:
    states, weight, settings = logits
    return tile_logits(states[tokens], weight[vocab].to(states.dtype), settings)


def _log_probs(logits: Logits, tokens: slice, vocab: slice, normalizer: Tensor) -> Tensor:
    return _tile(logits, tokens, vocab).sub_(normalizer[tokens, None])


def _joined(parts: Tensor) -> Folded:
    """Combine the results of vocabulary shards, (ranks, 3, N)."""
    normalizers, ref_normalizers, means = parts.unbind(1)
    normalizer = normalizers.logsumexp(0)
    mean = ((normalizers - normalizer).exp() * means).sum(0)
    return normalizer, ref_normalizers.logsumexp(0), mean
