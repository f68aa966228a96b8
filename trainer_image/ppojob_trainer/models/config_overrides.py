"""Overrides of single keys of config.json by a job: the supported ones, and why others are refused.

A key is supported for a family if trainer and engines compute alike with every value of it: those
of the table of families, each of which tests hold against transformers. Does not import torch.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.model import ModelSpec
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.architectures import read_sizes
from ppojob_trainer.models.config_files import read_config
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.family import Family
from ppojob_trainer.models.mixtures import experts_key, mixture_in, top_k_key

ROPE_BASE: Final = "rope_theta"
_FIELD: Final = "spec.model.configOverrides"
_WINDOW: Final = "sliding_window"
_SET_BY: Final = {
    **dict.fromkeys(("rope_scaling", "rope_parameters"), "spec.model.ropeScaling"),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), "spec.model.maxPositionEmbeddings"),
    **dict.fromkeys(("attention_dropout", "attn_pdrop"), "spec.model.attentionDropout"),
    **dict.fromkeys(("dtype", "torch_dtype"), "spec.model.dtype"),
    "num_nextn_predict_layers": "spec.model.mtp",
    "router_aux_loss_coef": "spec.algorithm.routerBalanceCoefficient",
    "eos_token_id": "spec.rollout.stopTokenIds",
}
"""Keys with a field of their own."""
_IDENTITY: Final = ("model_type", "architectures", "auto_map", "quantization_config")
_FLAGS: Final = ("norm_topk_prob",)
_INTEGERS: Final = (_WINDOW, "query_pre_attn_scalar")
_MOST: Final = 2**31 - 1
_LARGEST: Final = 1e12
"""Largest value of a number that is no integer."""


def check_overrides(model: ModelSpec) -> Iterator[Problem]:
    """Return a problem for each refused key; none if config.json cannot be read, or is unknown."""
    config = read_config(Path(model.path) / "config.json")
    if isinstance(config, dict) and config.get("model_type") in FAMILIES:
        for key, value in model.config_overrides.items():
            if problem := _problem(config, key, value):
                yield problem


def supported_overrides(config: Mapping[str, Json], model: ModelSpec) -> dict[str, Json]:
    """Return the job's overrides in the types of config.json, without the refused ones.

    transformers refuses integers for keys that are floats, and the reverse.
    """
    if config.get("model_type") not in FAMILIES:
        return {}
    return {
        key: _typed(config, key, value)[0]
        for key, value in model.config_overrides.items()
        if _problem(config, key, value) is None
    }


def overridable_keys(config: Mapping[str, Json]) -> list[str]:
    """Return the keys that a job may override for a model of a known family."""
    family = FAMILIES[str(config["model_type"])]
    keys = [*family.overridable, *(key for key in family.dropouts if key not in _SET_BY)]
    keys += filter(None, (family.logit_divisor, family.logit_multiplier, family.logit_cap))
    if family.has_windows and isinstance(config.get(_WINDOW), int):
        keys.append(_WINDOW)
    if (mixture := mixture_in(config)) is not None:
        keys += mixture.overridable
    return [key for key in keys if key != ROPE_BASE or not has_no_positions(family, config)]


def has_no_positions(family: Family, config: Mapping[str, Json]) -> bool:
    """Whether the attention of a Mamba-2 hybrid has no positions (NoPE)."""
    own = family.recurrence
    is_of_mamba = own is not None and own.rule == "mamba" and not own.is_beside_attention
    return is_of_mamba and config.get("position_embedding_type") != "rope"


def _problem(config: Mapping[str, Json], key: str, value: Json) -> Problem | None:
    """Return why a key, or its value, is refused; None for a supported one."""
    why, allowed, reason = "", "remove it", ReasonCode.CONFLICT
    keys, kind = overridable_keys(config), config["model_type"]
    if field := _SET_BY.get(key):
        why, allowed = f"{field} sets it", f"{field} in its place"
    elif key in _IDENTITY:
        why = "it says which model the folder holds"
    elif isinstance(value, dict):
        why = "only keys of the language model can be overridden, and no section around them"
        allowed, reason = f"{', '.join(keys)} without one", ReasonCode.BAD_FORM
    elif key not in keys and _changes_sizes(config, key, value):
        why, allowed = "the weights would not fit", "a folder with weights of these sizes"
    elif key not in keys:
        why = f"trainer and engines do not all follow it for a model of {kind}"
        allowed, reason = f"one of {', '.join(keys)}", ReasonCode.NOT_ONE_OF
    elif (typed := _typed(config, key, value))[0] is None:
        why, allowed = "this key has no such value", typed[1]
        reason = ReasonCode.OUT_OF_RANGE
    return Problem(f"{_FIELD}.{key}", shown(value), why, allowed, reason) if why else None


def _changes_sizes(config: Mapping[str, Json], key: str, value: Json) -> bool:
    """Whether a model with this value has other weights, or weights of other shapes."""
    path = Path("config.json")
    return read_sizes({**config, key: value}, path) != read_sizes(config, path)


def _typed(config: Mapping[str, Json], key: str, value: Json) -> tuple[Json, str]:
    """Return a value in the type of a supported key, None if it is out of range; and the range."""
    if key in _FLAGS:
        return value if isinstance(value, bool) else None, "true or false"
    number: float = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    if key in _INTEGERS or key == top_k_key(config):
        experts = config.get(experts_key(config))
        most = experts if key == top_k_key(config) and isinstance(experts, int) else _MOST
        is_within = 1 <= number <= most and number == int(number)
        return int(number) if is_within else None, f"an integer from 1 to {most}"
    if "drop" in key:
        return float(number) if 0 <= number < 1 else None, "a number at least 0 and below 1"
    is_within = 0 < number <= _LARGEST
    return float(number) if is_within else None, f"a number above 0 and at most {_LARGEST:g}"
