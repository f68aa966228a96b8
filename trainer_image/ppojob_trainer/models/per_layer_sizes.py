"""Per-layer sizes of models whose layers differ, from config.json; torch-free.

In Laguna some layers have another number of query heads. In Gemma 4 full-attention layers have
another number and width of key heads. The last layers share keys and values
with earlier ones (cross-layer attention: Brandon et al. 2024, arXiv:2405.12981). Layers may get
per-layer embeddings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ppojob_trainer.json_value import Json

_FULL: Final = "full_attention"
_PERIOD: Final = 6
_FULL_HEAD: Final = 512


def count_in(section: Mapping[str, Json] | Json, key: str) -> int:
    """Return a positive number of a section; 0 if absent, which the checks of shapes report."""
    value = section.get(key) if isinstance(section, Mapping) else None
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
    return value if is_count and isinstance(value, int) else 0


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention sizes of a layer."""

    heads: int  # query heads
    key_heads: int  # key and value heads
    head_size: int
    has_keys: bool = True  # projects its own keys and values; else it uses an earlier layer's
    has_values: bool = True  # values have their own projection; else they are made from the keys'


@dataclass(frozen=True, slots=True)
class PerLayerSizes:
    """Sizes that differ from layer to layer."""

    attention: tuple[Attention, ...]  # of each layer
    inner_of_sharing: int  # feed-forward width of layers without their own keys
    layer_embedding: int  # width of per-layer embeddings; 0 without any
    layer_embedding_rows: int  # of their table

    def linear_layers(self, hidden: int) -> dict[str, tuple[int, int]]:
        """Return the linear layers of each decoder layer that read its per-layer embedding."""
        if not self.layer_embedding:
            return {}
        return {
            "per_layer_input_gate": (self.layer_embedding, hidden),
            "per_layer_projection": (hidden, self.layer_embedding),
        }

    def of_model(self, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return the tensors outside the layers that make per-layer embeddings."""
        if self.layer_embedding:
            width = len(self.attention) * self.layer_embedding
            yield "model.embed_tokens_per_layer.weight", (self.layer_embedding_rows, width)
            yield "model.per_layer_model_projection.weight", (width, hidden)
            yield "model.per_layer_projection_norm.weight", (self.layer_embedding,)


def read_head_counts(heads: Json, usual: Attention, layers: int) -> PerLayerSizes:
    """Read the query heads of each layer from such a list; else they are as `usual`."""
    counts = heads if isinstance(heads, list) and len(heads) == layers else [usual.heads] * layers
    attention = (replace(usual, heads=one if isinstance(one, int) else 0) for one in counts)
    return PerLayerSizes(tuple(attention), 0, 0, 0)


def read_per_layer_sizes(
    config: Mapping[str, Json], usual: Attention, layers: int
) -> PerLayerSizes:
    """Read them with transformers' defaults; `usual` is the attention of sliding-window layers."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        kinds = [_FULL if (layer + 1) % _PERIOD == 0 else None for layer in range(layers)]
    sees_all = [kind == _FULL for kind in kinds[:-1]] + [True]
    is_joint = config.get("attention_k_eq_v") is True
    of_full = {"head_dim": config.get("global_head_dim", _FULL_HEAD)}
    if is_joint:
        of_full["num_key_value_heads"] = config.get("num_global_key_value_heads")
    own: dict[int, Json] = {layer: of_full for layer in range(layers) if sees_all[layer]}
    if isinstance(each := config.get("per_layer_config"), dict):  # transformers 5's form
        own = {int(layer): of_it for layer, of_it in each.items() if layer.isdecimal()}
    first_sharing = layers - count_in(config, "num_kv_shared_layers")
    attention = tuple(
        Attention(
            usual.heads,
            count_in(own.get(layer), "num_key_value_heads") or usual.key_heads,
            count_in(own.get(layer), "head_dim") or usual.head_size,
            has_keys=layer < first_sharing,
            has_values=not (is_joint and sees_all[layer]),
        )
        for layer in range(layers)
    )
    inner = count_in(config, "intermediate_size")
    return PerLayerSizes(
        attention,
        inner_of_sharing=2 * inner if config.get("use_double_wide_mlp") is True else inner,
        layer_embedding=count_in(config, "hidden_size_per_layer_input"),
        layer_embedding_rows=count_in(config, "vocab_size_per_layer_input"),
    )
