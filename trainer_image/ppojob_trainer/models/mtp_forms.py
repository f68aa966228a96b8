"""MTP layers of families: the names of their weights in files; does not import torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.architectures import EMBEDDING, HEAD

_PREFIXES: Final = ("mtp.", "model.mtp_")
"""The first of Qwen3-Next and Qwen3.5, the second of MiMo and ERNIE 4.5."""
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.")
"""In DeepSeek-V3 and GLM-4.5 they follow the model's own layers."""


@dataclass(frozen=True, slots=True)
class MtpForm:
    """Structure of a family's MTP layer; fields are names of modules in it."""

    state_norm: str  # norm of the model's last hidden state
    embedding_norm: str  # norm of the next token's embedding
    projection: str  # of both, concatenated, to the input of a decoder layer
    last_norm: str  # norm before the output layer
    # Weights of the model that files repeat in the layer, by their names in it.
    copies: Mapping[str, str] = field(default_factory=dict)
    list_name: str = "layers"  # the list of layers that contains it
    has_state_first: bool = False  # the hidden state comes before the embedding in the projection
    is_before_norm: bool = False  # reads the hidden states before the model's final norm


_DEEPSEEK: Final = MtpForm(
    state_norm="hnorm",
    embedding_norm="enorm",
    projection="eh_proj",
    last_norm="shared_head.norm",
    copies={"embed_tokens.weight": EMBEDDING, "shared_head.head.weight": HEAD},
)
_MIMO: Final = MtpForm(
    state_norm="hidden_layernorm",
    embedding_norm="token_layernorm",
    projection="input_proj",
    last_norm="final_layernorm",
    list_name="mtp_layers",
    has_state_first=True,
    is_before_norm=True,
)
MTP_FORMS: Final = {
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "mimo": _MIMO,
}
"""MTP layers that can be trained, by `model_type`."""


def mtp_layer_count(config: Mapping[str, Json]) -> int:
    """Count the MTP layers by a config.json."""
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
    counts = [config[key] for key in keys if key in config]
    return next((count for count in counts if isinstance(count, int)), 0)


def is_mtp_weight(name: str, layers: int | None) -> bool:
    """Whether a weight is of an MTP layer, in a model of so many layers; None if unknown."""
    layer = _LAYER.match(name)
    is_extra = layer is not None and layers is not None and int(layer[1]) >= layers
    return is_extra or name.startswith(_PREFIXES)


def mtp_copies(model_type: str, layers: int) -> dict[str, str]:
    """Return the names in files of the model's weights that are repeated in the MTP layer."""
    form = MTP_FORMS.get(model_type)
    return {} if form is None else {f"model.layers.{layers}.{a}": b for a, b in form.copies.items()}
