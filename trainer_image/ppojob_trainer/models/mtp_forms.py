"""Layers that predict further tokens (MTP), by the names that files have for their weights.

Loads no torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.architectures import EMBEDDING, HEAD

_BEGINNINGS: Final = ("mtp.", "model.mtp_")
"""Of Qwen3-Next and Qwen3.5 the first; of MiMo and ERNIE 4.5 the second."""
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.")
"""Of DeepSeek-V3 and GLM-4.5 they lie behind the model's own layers."""


@dataclass(frozen=True, slots=True)
class MtpForm:
    """How a layer that predicts further tokens is made; fields are names of modules in it.

    Attributes:
        state_norm: what the last hidden state of the model goes through,
        embedding_norm: and the embedding of the next token,
        projection: before both side by side are made a state, which a layer as the model's reads;
        last_norm: what comes before the output layer.
        copies: weights that files have in it and that are the model's, by their names in it.
        list_name: what the list of layers is called that it stands in.
        has_state_first: whether the projection reads the state before the embedding.
        is_before_norm: whether it reads the states in front of the model's last norm.
    """

    state_norm: str
    embedding_norm: str
    projection: str
    last_norm: str
    copies: Mapping[str, str] = field(default_factory=dict)
    list_name: str = "layers"
    has_state_first: bool = False
    is_before_norm: bool = False


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
"""Of the families, by `model_type`, whose layers of this kind can be trained."""


def mtp_layer_count(config: Mapping[str, Json]) -> int:
    """How many such layers a config.json tells of."""
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
    counts = [config[key] for key in keys if key in config]
    return next((count for count in counts if isinstance(count, int)), 0)


def is_mtp_weight(name: str, layers: int | None) -> bool:
    """Whether a weight is of such a layer, in a model of so many; None where nobody knows."""
    layer = _LAYER.match(name)
    is_behind = layer is not None and layers is not None and int(layer[1]) >= layers
    return is_behind or name.startswith(_BEGINNINGS)


def mtp_copies(model_type: str, layers: int) -> dict[str, str]:
    """Weights of the layer in files that are the model's, by their names there."""
    form = MTP_FORMS.get(model_type)
    return {} if form is None else {f"model.layers.{layers}.{a}": b for a, b in form.copies.items()}
