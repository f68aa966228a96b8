"""Keys that Liquid's folders have in config.json, as transformers reads them; loads no torch."""

from collections.abc import Mapping
from typing import Final

from ppojob_trainer.json_value import Json

_KEYS: Final = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
_ADJUSTS: Final = "block_auto_adjust_ff_dim"


def with_own_keys(config: Mapping[str, Json]) -> dict[str, Json]:
    """A configuration of LFM2 under the keys of others; any other one as it is."""
    layers = config.get("num_hidden_layers")
    if "conv_L_cache" not in config or not isinstance(layers, int):
        return dict(config)
    found = dict(config) | {own: config[key] for key, own in _KEYS.items() if key in config}
    if found.get("layer_types") is None:
        attending = config.get("full_attn_idxs")
        kinds = [
            "full_attention" if not isinstance(attending, list) or n in attending else "conv"
            for n in range(layers)
        ]
        found["layer_types"] = [*kinds]
    width, times, unit = (
        found.get(key)
        for key in ("intermediate_size", "block_ffn_dim_multiplier", "block_multiple_of")
    )
    if config.get(_ADJUSTS) is True and isinstance(width, int) and isinstance(unit, int):
        width = int(2 * width / 3)
        if isinstance(times, int | float):
            width = int(times * width)
        found |= {"intermediate_size": -(-width // max(1, unit)) * unit, _ADJUSTS: False}
    return found
