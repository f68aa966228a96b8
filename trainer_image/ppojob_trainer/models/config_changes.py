"""Overrides of a model's config.json by a job: fields such as RoPE scaling, and single keys.

Trainer, engine and export all read it through these functions, so they compute the same model. A
key is supported for a family if trainer and engines compute alike with every value of it: those of
the table of families, each of which tests hold against transformers. Does not import torch.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.model import ModelSpec, RopeScalingSpec
from ppojob_trainer.data.media.image_files import THINKER
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.architectures import read_sizes
from ppojob_trainer.models.config_files import TEXT_SECTION, has_tower, read_config
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

_NEW, _OLD = "rope_parameters", "rope_scaling"
_LENGTH: Final = "max_position_embeddings"
_ORIGINAL: Final = "original_max_position_embeddings"
_DROPOUT: Final = "attention_dropout"
_KEPT: Final[tuple[str, ...]] = (
    *(ROPE_BASE, "partial_rotary_factor"),
    *("beta_fast", "beta_slow", "truncate"),  # of yarn
)
"""Keys of transformers 5's RoPE parameters that scaling does not change."""

_Config = TypeVar("_Config")


def config_changes(folder: Path | str, model: ModelSpec) -> dict[str, Json]:
    """Return the job's overrides of the configuration in a folder, by transformers' names.

    Empty for a folder other than the policy's, and for one whose config.json cannot be read.
    Refused keys are left out; `check_overrides` reports them.
    """
    config = read_config(Path(folder) / "config.json")
    if not isinstance(config, dict) or Path(folder) != Path(model.path):
        return {}
    changes = supported_overrides(config, model)
    if (scaling := model.rope_scaling) is not None:
        rope: dict[str, Json] = {"rope_type": scaling.type, "factor": scaling.factor}
        if scaling.type == "llama3":
            rope["low_freq_factor"] = scaling.low_freq_factor
            rope["high_freq_factor"] = scaling.high_freq_factor
        if scaling.type != "linear":
            original = scaling.original_max_position_embeddings or _original_length(config)
            rope[_ORIGINAL] = original
            # Length after RoPE scaling, as transformers and vLLM read it beside these; beside
            # linear scaling both have the original length.
            if isinstance(original, int):
                changes[_LENGTH] = int(original * scaling.factor)
        changes[_NEW] = rope
    if model.max_position_embeddings is not None:
        changes[_LENGTH] = model.max_position_embeddings
    if model.attention_dropout is not None:
        keys = family.key_aliases if (family := FAMILIES.get(str(config.get("model_type")))) else {}
        changes[keys.get(_DROPOUT, _DROPOUT)] = model.attention_dropout
    return changes


def check_changes(config: Mapping[str, Json], changes: Mapping[str, Json]) -> Iterator[Problem]:
    """Return a problem for each override that the model's family does not support."""
    family, rope = FAMILIES.get(str(config.get("model_type"))), changes.get(_NEW)
    if family is None:
        return
    if not isinstance(rope, dict):
        if family.positions and _LENGTH in changes:
            where, got = "spec.model.maxPositionEmbeddings", shown(changes[_LENGTH])
            why = f"a model of {config['model_type']} has learned position embeddings"
            yield Problem(where, got, why, "remove it", ReasonCode.CONFLICT)
        return
    why, allowed = "", "remove ropeScaling"
    if family.has_ropes_by_layer:
        why = "each kind of layer has RoPE of its own"
        allowed = "remove ropeScaling, or write into config.json which layers have it"
    elif family.positions:
        why = "positions are learned"
    elif rope["rope_type"] not in family.ropes:
        why = f"positions are {' or '.join(filter(None, family.ropes))}"
    elif has_no_positions(family, config):
        why = "layers know no positions"
    if why:
        where, got = "spec.model.ropeScaling.type", shown(rope["rope_type"])
        why = f"{why} in a model of {config['model_type']}: not in this version"
        yield Problem(where, got, why, allowed, ReasonCode.NOT_IN_THIS_VERSION)


def can_be_stretched(folder: Path | str) -> bool:
    """Whether the model of a folder supports any `spec.model.ropeScaling`."""
    config = read_config(Path(folder) / "config.json")
    types = get_args(RopeScalingSpec.model_fields["type"].annotation)
    return isinstance(config, dict) and any(
        not [*check_changes(config, {_NEW: {"rope_type": one}})] for one in types
    )


def changed_document(config: Mapping[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """Apply overrides to a config.json, in the form it has: transformers 5's, or the older.

    In the older the base of RoPE is outside of its scaling.
    """
    if isinstance(thinker := config.get(THINKER), dict):
        return {**config, THINKER: changed_document(thinker, changes)}
    text = config.get(TEXT_SECTION)
    if isinstance(text, dict) and has_tower(config):
        return {**config, TEXT_SECTION: changed_document(text, changes)}
    changed = {**config, **changes}
    rope = changes.get(_NEW)
    if isinstance(rope, dict):
        form = _NEW if isinstance(config.get(_NEW), dict) else _OLD
        before = config.get(form)
        kept = before if isinstance(before, dict) else {}
        for key in (_NEW, _OLD):
            changed.pop(key, None)
        changed[form] = {name: kept[name] for name in _KEPT if name in kept} | rope
    if ROPE_BASE in changes and isinstance(rope := changed.get(_NEW), dict):
        changed[_NEW] = {**rope, ROPE_BASE: changes[ROPE_BASE]}
        if ROPE_BASE not in config:
            del changed[ROPE_BASE]
    return changed


def change(config: _Config, changes: Mapping[str, Json]) -> _Config:
    """Apply overrides to a transformers configuration, in place; vLLM also calls it."""
    values: dict[str, Any] = dict(changes)
    language = getattr(config, TEXT_SECTION, config)
    before = getattr(language, _NEW, None) or {}
    if _NEW in values:
        values[_NEW] = {name: before[name] for name in _KEPT if name in before} | values[_NEW]
    if ROPE_BASE in values:
        values[_NEW] = {**values.get(_NEW, before), ROPE_BASE: values.pop(ROPE_BASE)}
    for name, value in values.items():
        setattr(language, name, value)
    return config


def _original_length(config: Mapping[str, Json]) -> Json:
    """Return the original context length before RoPE scaling."""
    for section in (_NEW, _OLD):
        rope = config.get(section)
        if isinstance(rope, dict) and _ORIGINAL in rope:
            return rope[_ORIGINAL]
    return config.get(_LENGTH)


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
    if family.has_windows and isinstance(config.get(_WINDOW), int):
        keys.append(_WINDOW)
    if (mixture := mixture_in(config)) is not None:
        keys += mixture.overridable
    return [key for key in keys if key != ROPE_BASE or not has_no_positions(family, config)]


def has_no_positions(family: Family, config: Mapping[str, Json]) -> bool:
    """Whether the attention of a Mamba-2 hybrid has no positions (NoPE)."""
    own = family.recurrence
    is_of_mamba = own is not None and own.rule == "mamba" and not own.is_beside_attention
    return is_of_mamba and {**family.defaults, **config}.get("position_embedding_type") != "rope"


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
