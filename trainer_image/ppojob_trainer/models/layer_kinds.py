"""Layer types of a hybrid model, from config.json; does not import torch."""

from collections.abc import Mapping
from typing import Final

from ppojob_trainer.json_value import Json

STATE: Final = "linear_attention"
ATTENTION: Final = "full_attention"
PLAIN: Final = "mlp"
EXPERTS: Final = "moe"
KINDS: Final = (STATE, ATTENTION, PLAIN, EXPERTS)
"""transformers' names, to which the hub's lists and Nemotron's letters are mapped."""

PATTERN: Final = "hybrid_override_pattern"
_LETTERS: Final = {"M": STATE, "*": ATTENTION, "-": PLAIN, "E": EXPERTS}
_OF_THE_HUB: Final = {"mamba": STATE, "conv": STATE, "attention": ATTENTION}


def layer_kinds(config: Mapping[str, Json]) -> list[str] | None:
    """Return the type of each layer; None where config.json does not say it."""
    for key in ("layers_block_type", "layer_types"):
        if isinstance(kinds := config.get(key), list):
            return [_OF_THE_HUB.get(str(kind), str(kind)) for kind in kinds]
    if isinstance(pattern := config.get(PATTERN), str):
        return [_LETTERS.get(letter, letter) for letter in pattern]
    return None
