"""Bidirectional attention within images, for vLLM on CPUs.

vLLM's kernel drops the causal mask only for whole requests. So attention of image tokens is
computed again, with each image as a request that ends with it. A step has an image whole, or the
rest of one whose beginning is cached, so all of its keys and values are there.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from vllm import _custom_ops as ops
from vllm import envs
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl, CPUAttentionMetadata

from ppojob_trainer.models.vision_tower import tower_of
from ppojob_trainer.rollout.vllm_models import VisionLanguageModel


class _Runs(NamedTuple):
    """Tokens of a step with bidirectional attention, as requests."""

    tokens: Tensor  # (n,) int64, positions in the step
    starts: Tensor  # (runs + 1,) int32, where each run begins among these
    lengths: Tensor  # (runs,) int32, length of its row up to its end
    blocks: Tensor  # (runs, b) int32, cache blocks of its row


class BidirectionalImages(VisionLanguageModel):
    """A language model whose tokens of one image attend to each other."""

    marked: Tensor | None = None
    """(tokens of a step,) bool, True for image tokens."""

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: Sequence[Tensor] | None = None,
        *,
        is_multimodal: Tensor | None = None,
    ) -> Tensor:
        """Return embeddings (t, h) of the next pass, and store which tokens are images."""
        self.marked = is_multimodal if multimodal_embeddings else None
        embedded: Tensor = VisionLanguageModel.embed_input_ids(
            self, input_ids, multimodal_embeddings, is_multimodal=is_multimodal
        )
        return embedded


class _BidirectionalAttention(CPUAttentionBackendImpl):  # type: ignore[misc]
    """Attention of one layer of such a model."""

    model: BidirectionalImages

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: Tensor,
        *others: Any,
        **named: Any,
    ) -> Tensor:
        """Compute vLLM's attention, then that of image tokens again."""
        rest = key, value, kv_cache, attn_metadata, output
        result: Tensor = super().forward(layer, query, *rest, *others, **named)
        if attn_metadata is None or self.model.marked is None:
            return result
        runs = _runs_of(self.model.marked, attn_metadata)
        queries = query.index_select(0, runs.tokens)
        attended = torch.empty_like(queries)
        keys, values = kv_cache.view(*kv_cache.shape[:2], 2 * kv_cache.shape[2], -1).chunk(2, dim=2)
        plan = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(runs.lengths),
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_size,
            seq_lens=runs.lengths,
            dtype=query.dtype,
            query_start_loc=runs.starts,
            causal=False,
            sliding_window_size=self.sliding_window,
            isa=layer.isa,
            enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
        )
        ops.cpu_attention_with_kv_cache(
            query=queries,
            key_cache=keys,
            value_cache=values,
            output=attended,
            query_start_loc=runs.starts,
            seq_lens=runs.lengths,
            scale=self.scale,
            causal=False,
            alibi_slopes=None,
            sliding_window=self.sliding_window,
            block_table=runs.blocks,
            softcap=self.logits_soft_cap,
            scheduler_metadata=plan,
            s_aux=None,
        )
        result.index_copy_(0, runs.tokens, attended.view(len(attended), *result.shape[1:]))
        return result


def make_bidirectional(model: nn.Module) -> None:
    """Enable bidirectional attention within images in the layers of a model."""
    tower = tower_of(model)
    in_windows = tower is not None and tower.form.ahead_in_windows
    for layer in model.modules():
        if isinstance(layer, Attention) and (layer.sliding_window or not in_windows):
            layer.impl.__class__ = _BidirectionalAttention
            layer.impl.model = model


def _runs_of(marked: Tensor, step: CPUAttentionMetadata) -> _Runs:
    """Return the images of a step; images of a row are separated by other tokens."""
    places, starts, lengths, rows = [], [0], [], []
    ends = step.query_start_loc.tolist()
    for row, (begin, end) in enumerate(pairwise(ends)):
        own = marked[begin:end].nonzero()[:, 0].tolist()
        behind = int(step.seq_lens[row]) - (end - begin)  # tokens of the row before this step
        for number, place in enumerate(own):
            places.append(begin + place)
            if number + 1 == len(own) or own[number + 1] != place + 1:
                starts.append(len(places))
                lengths.append(behind + place + 1)
                rows.append(row)
    return _Runs(
        torch.tensor(places),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        step.block_table[rows].contiguous(),
    )
