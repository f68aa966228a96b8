"""A model with other values of the keys of config.json that a job may override."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from ppojob_trainer.models.config_changes import overridable_keys
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.transformers_modules import rename_modules

_VALUES = {
    "rope_theta": 20.0,
    "sliding_window": 3,
    "query_pre_attn_scalar": 50,
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts"), 3),
}


def other_values(config: Mapping[str, Any]) -> dict[str, object]:
    """Each key that a job may override for the model of a config.json, and another value."""
    others = {**_VALUES, "norm_topk_prob": not config.get("norm_topk_prob")}
    return {key: others.get(key, 0.6) for key in overridable_keys(config)}


def overridden(model: PreTrainedModel, values: Mapping[str, object]) -> PreTrainedModel:
    """The model of transformers with the same weights and such values in its configuration."""
    config = copy.deepcopy(model.config)
    config.dtype = torch.float32  # whose name saving leaves there
    for key, value in values.items():
        if key == "rope_theta":
            config.rope_parameters = {**config.rope_parameters, key: value}
        else:
            setattr(config, key, value)
    other = type(model)(config).eval()
    if other.state_dict().keys() != model.state_dict().keys():  # the trainer's names
        rename_modules(other, FAMILIES[config.model_type])
    other.load_state_dict(model.state_dict())
    return other
