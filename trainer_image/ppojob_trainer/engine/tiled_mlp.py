"""Tiled MLP: feed-forward blocks in tiles of tokens, so the wide intermediate is never whole.

A feed-forward block computes each token independently. The backward pass recomputes a tile at a
time, and adds up weight gradients in the same order each time (ALST: arXiv:2506.13996, section
3.1.1).
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.parallel.fsdp import decoder_layers


def use_tiles(model: PreTrainedModel, tokens: int) -> None:
    """Compute the dense feed-forward blocks of a model `tokens` at a time; 0 for all at once."""
    if tokens:
        for block in tiled(model):
            block.forward = partial(_in_tiles, block, tokens)


def tiled(model: PreTrainedModel) -> Iterator[nn.Module]:
    """Return the blocks of a model to tile: dense MLPs that are modules, no MoE blocks."""
    block, _, out = FAMILIES[model.config.model_type].dense_out.rpartition(".")
    for layer in decoder_layers(model):
        found = getattr(layer, block, None) if block else None
        # In other layers the same name may be an MoE block, attention or absent.
        if found is not None and hasattr(found, out):
            yield found


def _in_tiles(block: nn.Module, tokens: int, states: Tensor) -> Tensor:
    """Apply the block's own forward, (1, t, h) to (1, t, h), tile by tile."""
    whole = partial(type(block).forward, block)
    tiles = states.split(tokens, dim=1)  # type: ignore[no-untyped-call]
    return torch.cat([checkpoint(whole, tile, use_reentrant=False) for tile in tiles], dim=1)
