"""Dropout of adapters, with the same masks under every layout of ranks.

Whether a number is kept is a hash of its layer, its feature and the key of its token, which an
update draws from the token's row and place (`token_keys` of the engine). So a rank draws its own
tokens and features of the mask that one rank would draw, and recomputation draws it again.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor

_KEYS: Final[ContextVar[Tensor | None]] = ContextVar("dropout_keys", default=None)

_AT_ONCE: Final = 2**22
"""Numbers whose hashes are in memory at one time."""


@contextmanager
def keys_of_tokens(keys: Tensor | None) -> Iterator[None]:
    """Drop by these keys, (t,) int32, of the tokens that the layers called here get; None: none."""
    before = _KEYS.set(keys)
    try:
        yield
    finally:
        _KEYS.reset(before)


def checkpoint_contexts(
    tokens: slice = slice(None),
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return torch's `context_fn` of a checkpointed part, which computes these of the tokens."""
    keys = _KEYS.get()
    own = None if keys is None else keys[tokens]
    return keys_of_tokens(own), keys_of_tokens(own)


def dropped(x: Tensor, share: float, seed: int, features: Tensor) -> Tensor:
    """Drop a share of (..., n), whose last dimension has these features (n,) int32 of a layer.

    The dimensions before have the tokens of `keys_of_tokens`, and `seed` is the layer's, an int32.
    """
    keys = _KEYS.get()
    assert keys is not None, "layers are trained under keys_of_tokens"
    columns = _mixed(_mixed(features.to(x.device)) + seed)
    limit = int(share * 2**32) - 2**31
    rows = keys.split(max(1, _AT_ONCE // len(columns)))  # type: ignore[no-untyped-call]
    kept = torch.cat([_mixed(own[:, None] + columns) >= limit for own in rows])
    return x * kept.view(x.shape) * (1.0 / (1.0 - share))


def _mixed(values: Tensor) -> Tensor:
    """Hash int32 values in place: MurmurHash3's finalizer (Appleby 2011), whose shifts are logical.

    Products wrap around.
    """
    for bits, factor in ((16, 0x85EBCA6B - 2**32), (13, 0xC2B2AE35 - 2**32)):
        values.bitwise_xor_((values >> bits) & (2 ** (32 - bits) - 1)).mul_(factor)
    return values.bitwise_xor_((values >> 16) & 0xFFFF)
