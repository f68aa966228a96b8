"""Hybrid models: layer types from config.json, and sizes of recurrent layers; torch-free."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.family import Recurrence
from ppojob_trainer.models.per_layer_sizes import count_in

RECURRENT: Final = "linear_attention"
ATTENTION: Final = "full_attention"
DENSE: Final = "mlp"
EXPERTS: Final = "moe"
LAYER_TYPES: Final = (RECURRENT, ATTENTION, DENSE, EXPERTS)
"""transformers' names, to which the hub's lists and Nemotron's letters are mapped."""

PATTERN: Final = "hybrid_override_pattern"
_LETTERS: Final = {"M": RECURRENT, "*": ATTENTION, "-": DENSE, "E": EXPERTS}
_HUB_NAMES: Final = {"mamba": RECURRENT, "conv": RECURRENT, "attention": ATTENTION}
_LFM2_KEYS: Final = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
_LFM2_ADJUSTS: Final = "block_auto_adjust_ff_dim"
_LFM2_FACTOR: Final = "block_ffn_dim_multiplier"

Tensors = Iterator[tuple[str, tuple[int, ...]]]


def layer_types(config: Mapping[str, Json]) -> list[str] | None:
    """Return the type of each layer; None where config.json does not say it."""
    for key in ("layers_block_type", "layer_types"):
        if isinstance(types := config.get(key), list):
            return [_HUB_NAMES.get(str(one), str(one)) for one in types]
    if isinstance(pattern := config.get(PATTERN), str):
        return [_LETTERS.get(letter, letter) for letter in pattern]
    if isinstance(full := config.get("attn_layer_indices"), list):  # of Bamba
        layers = range(min(count_in(config, "num_hidden_layers"), 10_000))
        return [ATTENTION if n in full else RECURRENT for n in layers]
    return None


@dataclass(frozen=True, slots=True)
class RecurrenceSizes:
    """Sizes of recurrent layers."""

    kind: Recurrence
    layers: frozenset[int]  # their numbers
    key_heads: int  # heads of queries and of keys; groups in Mamba-2
    heads: int  # value heads, each with a state
    key: int  # width of a head's queries and keys
    value: int  # width of a head's values
    taps: int  # of the convolution

    @classmethod
    def of(cls, kind: Recurrence, layers: frozenset[int], sizes: Mapping[str, int]) -> Self:
        """Take the sizes of a model from the keys of its config.json.

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

    def linear_layers(self, hidden: int, *, is_fused: bool) -> dict[str, tuple[int, ...]]:
        """Return a layer's linear layers by name in it, with the shapes of their weights."""
        heads, gates, at = self.heads, self.inner, self.kind.mixer
        parts = {"_qkv": self.channels, "_z": gates, "_b": heads, "_a": heads}
        if is_fused:
            parts = {"_qkvz": self.channels + gates, "_ba": 2 * heads}
        if self.kind.rule == "mamba":
            parts = {"": gates + self.channels + heads}
        elif self.kind.rule == "convolution":  # and two gates
            parts = {"": 3 * self.channels}
        into = {f"{at}.in_proj{name}": (rows, hidden) for name, rows in parts.items()}
        return {**into, f"{at}.out_proj": (hidden, gates)}

    def tensors(self) -> Tensors:
        """Return names and shapes of a layer's other tensors, without the norm."""
        at = self.kind.mixer
        if self.kind.rule == "convolution":
            yield f"{at}.conv.weight", (self.channels, 1, self.taps)
            return
        yield f"{at}.conv1d.weight", (self.channels, 1, self.taps)
        if self.kind.rule == "mamba":
            yield f"{at}.conv1d.bias", (self.channels,)
            yield f"{at}.D", (self.heads,)
        yield from ((f"{at}.{name}", (self.heads,)) for name in ("A_log", "dt_bias"))

    def norms(self) -> Tensors:
        """Return the norm's name and shape, if there is one: per head, or in Mamba-2 over all."""
        if self.kind.rule != "convolution" and not self.kind.is_beside_attention:
            width = self.inner if self.kind.rule == "mamba" else self.value
            yield f"{self.kind.mixer}.norm.weight", (width,)


def recurrent_numbers(
    config: Mapping[str, Json], types: Sequence[str] | None, layers: int
) -> frozenset[int]:
    """Return the numbers of the recurrent layers, by their types or transformers' default interval.

    All layers, for families without such an interval.
    """
    if types is not None:
        return frozenset(n for n, one in enumerate(types) if one == RECURRENT)
    interval = config.get("full_attention_interval")
    every = interval if isinstance(interval, int) and interval > 0 else layers + 1
    return frozenset(n for n in range(layers) if (n + 1) % every)


def with_common_keys(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return a hybrid's configuration with the common keys for those of LFM2 and Mamba-2."""
    if config.get("mamba_d_head") == "auto":
        inner = count_in(config, "hidden_size") * count_in(config, "mamba_expand")
        inner = count_in(config, "mamba_d_ssm") or inner  # of Falcon-H1
        return {**config, "mamba_d_head": inner // max(1, count_in(config, "mamba_n_heads"))}
    if "conv_L_cache" not in config:
        return dict(config)
    found = dict(config) | {own: config[key] for key, own in _LFM2_KEYS.items() if key in config}
    if found.get("layer_types") is None:
        full, layers = config.get("full_attn_idxs"), range(count_in(config, "num_hidden_layers"))
        found["layer_types"] = [
            ATTENTION if not isinstance(full, list) or n in full else "conv" for n in layers
        ]
    if config.get(_LFM2_ADJUSTS) is True:
        width, factor = int(2 * count_in(found, "intermediate_size") / 3), found.get(_LFM2_FACTOR)
        width = int(factor * width) if isinstance(factor, int | float) else width
        unit = count_in(found, "block_multiple_of")
        found |= {"intermediate_size": -(-width // max(1, unit)) * unit, _LFM2_ADJUSTS: False}
    return found
