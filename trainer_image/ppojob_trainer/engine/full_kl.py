"""KL to the reference over the whole vocabulary, straight from hidden states of both models.

`KL(π || π_ref) = Σ p (log p - log r)` at each token: what estimators like k3 (`algorithms.kl`)
guess from the sampled token alone, without their variance, and with its own gradient. Logits of
both models are made tile by tile and dropped, as in `fused_logprobs`, whose legend holds here; y
are the reference's logits / temperature, r = softmax(y).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_trainer.engine.fused_logprobs import (
    LogprobSettings,
    product_dtype,
    slope_of,
    tile_logits,
    tiles,
    wide,
)
from ppojob_trainer.engine.head import LastStates, PolicyHead, TokenOutputs
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.vocabulary import VocabularyRun


@dataclass(frozen=True, slots=True)
class HeadWithKl:
    """Outputs what the policy's head does, and behind it the KL to the reference at each token.

    The last states of the reference are of the same micro-batch.
    """

    policy: PolicyHead
    reference: LastStates

    def __call__(self, model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> TokenOutputs:
        """`(logprobs, ..., kl)`."""
        weight = model.get_output_embeddings().weight
        kl = full_kl(hidden, weight, self.reference, self.policy.settings_of(model))
        return (*self.policy(model, hidden, targets), kl)


def full_kl(
    hidden: Tensor, weight: Tensor, reference: LastStates, settings: LogprobSettings
) -> Tensor:
    """Compute KL(π || π_ref) of each token over the whole vocabulary, in `fused_logprobs`' types.

    Args:
        hidden: (N, h) of the policy, with gradient.
        weight: (V, h) of its output layer, with gradient; may be cut as in `fused_logprobs`.
        reference: (N, h') and (V, h') of the reference, without; cut alike.
        settings: temperature and tile size; a tile has two tensors of logits.

    Returns:
        (N,), at least 0 but for rounding; 0 where both are the same.
    """
    kl: Tensor = _FullKl.apply(  # type: ignore[no-untyped-call]
        hidden,
        local_part(weight),
        reference.hidden,
        local_part(reference.weight),
        settings,
        product_dtype(hidden),
        VocabularyRun.of(weight),
    )
    return kl


class _FullKl(torch.autograd.Function):
    """See `full_kl`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ref_hidden: Tensor,
        ref_weight: Tensor,
        settings: LogprobSettings,
        dtype: torch.dtype,
        run: VocabularyRun,
    ) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            both = hidden.to(dtype), weight, ref_hidden.to(dtype), ref_weight
            folded = _fold(*both, settings)
            if run.ranks is not None:
                folded = _joined(run.gathered(torch.stack(folded)))
        normalizer, ref_normalizer, mean = folded
        kl = mean - normalizer + ref_normalizer
        ctx.save_for_backward(*both, kl, normalizer, ref_normalizer)
        ctx.settings, ctx.hidden_dtype, ctx.run = settings, hidden.dtype, run
        return kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """`dKL/dz = p (log p - log r - KL)`."""
        states, weight, ref_states, ref_weight, kl, normalizer, ref_normalizer = ctx.saved_tensors
        settings: LogprobSettings = ctx.settings
        (grad,) = grads
        grad_hidden = torch.zeros_like(states, dtype=wide(states.dtype))
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for tokens, vocab in tiles(states.shape[0], weight.shape[0], settings.chunk_tokens):
            matrix = weight[vocab].to(states.dtype)
            log_p = tile_logits(states[tokens], matrix, settings)
            of_cap = slope_of(log_p, settings)
            log_p -= normalizer[tokens, None]
            ref_matrix = ref_weight[vocab].to(states.dtype)
            log_r = tile_logits(ref_states[tokens], ref_matrix, settings)
            log_r -= ref_normalizer[tokens, None]
            slope = (log_p - log_r).sub_(kl[tokens, None]).mul_(log_p.exp_())
            if of_cap is not None:
                slope.mul_(of_cap)
            scaled = slope.mul_((grad[tokens] / settings.temperature)[:, None]).to(states.dtype)
            grad_hidden[tokens] += scaled @ matrix
            if grad_weight is not None:
                grad_weight[vocab] += scaled.mT @ states[tokens]
        grad_hidden = ctx.run.summed(grad_hidden).to(ctx.hidden_dtype)
        return grad_hidden, grad_weight, None, None, None, None, None


Folded = tuple[Tensor, Tensor, Tensor]
"""log Σ exp z, log Σ exp y, and Σ p (z - y) under the first; (N,) each."""


def _fold(
    states: Tensor,
    weight: Tensor,
    ref_states: Tensor,
    ref_weight: Tensor,
    settings: LogprobSettings,
) -> Folded:
    """Fold tile after tile, each under the normalizers so far."""
    count, dtype, device = states.shape[0], wide(states.dtype), states.device
    normalizer = torch.full((count,), -torch.inf, dtype=dtype, device=device)
    ref_normalizer, mean = normalizer.clone(), torch.zeros_like(normalizer)
    for tokens, vocab in tiles(count, weight.shape[0], settings.chunk_tokens):
        z = tile_logits(states[tokens], weight[vocab].to(states.dtype), settings)
        ref_matrix = ref_weight[vocab].to(states.dtype)
        y = tile_logits(ref_states[tokens], ref_matrix, settings)
        before = normalizer[tokens]
        after = torch.logaddexp(before, z.logsumexp(1))
        ref_normalizer[tokens] = torch.logaddexp(ref_normalizer[tokens], y.logsumexp(1))
        distance = z - y
        share = z.sub_(after[:, None]).exp_().mul_(distance).sum(1)
        mean[tokens] = mean[tokens] * (before - after).exp() + share
        normalizer[tokens] = after
    return normalizer, ref_normalizer, mean


def _joined(parts: Tensor) -> Folded:
    """What runs of the vocabulary come to together, of (ranks, 3, N)."""
    normalizers, ref_normalizers, means = parts.unbind(1)
    normalizer = normalizers.logsumexp(0)
    mean = ((normalizers - normalizer).exp() * means).sum(0)
    return normalizer, ref_normalizers.logsumexp(0), mean
