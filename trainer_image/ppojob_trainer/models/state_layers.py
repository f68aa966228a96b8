"""Recurrent layers (a state in place of a KV cache): sizes and tensors; does not import torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.family import Recurrence
from ppojob_trainer.models.layer_kinds import STATE


@dataclass(frozen=True, slots=True)
class States:
    """Sizes of recurrent layers.

    Attributes:
        kind: the family's description of them.
        layers: their numbers.
        key_heads: heads of queries and of keys; groups in Mamba-2.
        heads: value heads, each with a state.
        key: width of a head's queries and keys.
        value: width of a head's values.
        taps: of the convolution.
    """

    kind: Recurrence
    layers: frozenset[int]
    key_heads: int
    heads: int
    key: int
    value: int
    taps: int

    @classmethod
    def of(cls, kind: Recurrence, layers: frozenset[int], sizes: Mapping[str, int]) -> Self:
        """Make those of a model from the keys of its config.json.

        In a short convolution each feature is a head without a recurrent state.
        """
        own = [sizes[key] for key in kind.sizes]
        if kind.rule == "convolution":
            return cls(kind, layers, sizes["hidden_size"], sizes["hidden_size"], 0, 1, *own)
        return cls(kind, layers, *own)

    @property
    def inner(self) -> int:
        """Width of the values of all heads."""
        return self.heads * self.value

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key + self.inner

    @property
    def dealt_heads(self) -> int:
        """Heads that sequence-parallel ranks divide; each has a copy of its Mamba-2 groups."""
        return self.heads if self.kind.rule == "mamba" else self.key_heads

    def linear_layers(self, hidden: int, *, is_fused: bool) -> dict[str, tuple[int, ...]]:
        """Return a layer's linear layers by name in it, with the shapes of their weights."""
        heads, gates, at = self.heads, self.inner, self.kind.net
        parts = {"_qkv": self.channels, "_z": gates, "_b": heads, "_a": heads}
        if is_fused:
            parts = {"_qkvz": self.channels + gates, "_ba": 2 * heads}
        if self.kind.rule == "mamba":
            parts = {"": gates + self.channels + heads}
        elif self.kind.rule == "convolution":  # and two gates
            parts = {"": 3 * self.channels}
        found: dict[str, tuple[int, ...]] = {
            f"{at}.in_proj{name}": (rows, hidden) for name, rows in parts.items()
        }
        return found | {f"{at}.out_proj": (hidden, gates)}

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return names and shapes of the other tensors but the norm."""
        at = self.kind.net
        if self.kind.rule == "convolution":
            yield f"{at}.conv.weight", (self.channels, 1, self.taps)
            return
        yield f"{at}.conv1d.weight", (self.channels, 1, self.taps)
        if self.kind.rule == "mamba":
            yield f"{at}.conv1d.bias", (self.channels,)
            yield f"{at}.D", (self.heads,)
        yield from ((f"{at}.{name}", (self.heads,)) for name in ("A_log", "dt_bias"))

    def norms(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return the norm's name and shape, if there is one: per head, or in Mamba-2 over all."""
        if self.kind.rule != "convolution":
            width = self.inner if self.kind.rule == "mamba" else self.value
            yield f"{self.kind.net}.norm.weight", (width,)


def layers_with_states(
    config: Mapping[str, Json], kinds: Sequence[str] | None, layers: int
) -> frozenset[int]:
    """Return the recurrent layers by config.json, or by transformers' default interval.

    All layers, for families without such an interval.
    """
    if kinds is not None:
        return frozenset(n for n, kind in enumerate(kinds) if kind == STATE)
    interval = config.get("full_attention_interval")
    every = interval if isinstance(interval, int) and interval > 0 else layers + 1
    return frozenset(n for n in range(layers) if (n + 1) % every)


def with_head_of_states(config: dict[str, Json]) -> dict[str, Json]:
    """Return Granite's configuration with the head width that `auto` means."""
    keys = ("hidden_size", "mamba_expand", "mamba_n_heads")
    hidden, expand, heads = (config.get(key) for key in keys)
    is_auto = config.get("mamba_d_head") == "auto"
    if is_auto and isinstance(hidden, int) and isinstance(expand, int) and isinstance(heads, int):
        return {**config, "mamba_d_head": hidden * expand // max(1, heads)}
    return config
