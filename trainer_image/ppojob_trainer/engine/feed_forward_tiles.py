"""Feed-forward blocks in tiles of tokens: their wide intermediate is never whole in memory.

What such a block says of a token depends on that token alone. A tile is computed again in the
backward pass, where gradients of weights are added up tile by tile, always in the same order
(ALST: arXiv:2506.13996, section 3.1.1).
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
    """Let the plain feed-forward blocks of a model be computed `tokens` at a time; 0: whole."""
    if tokens:
        for block in tiled(model):
            block.forward = partial(_in_tiles, block, tokens)


def tiled(model: PreTrainedModel) -> Iterator[nn.Module]:
    """Such blocks of a model; mixtures are none, nor are matrices that are the layer's own."""
    block, _, out = FAMILIES[model.config.model_type].plain_out.rpartition(".")
    for layer in decoder_layers(model):
        found = getattr(layer, block, None) if block else None
        # Under the same name other layers of the model may have a mixture, attention or nothing.
        if found is not None and hasattr(found, out):
            yield found


def _in_tiles(block: nn.Module, tokens: int, states: Tensor) -> Tensor:
    """(1, t, h) to (1, t, h) as the block's own class says it."""
    whole = partial(type(block).forward, block)
    tiles = states.split(tokens, dim=1)  # type: ignore[no-untyped-call]
    return torch.cat([checkpoint(whole, tile, use_reentrant=False) for tile in tiles], dim=1)
