"""Overrides of a model's config.json by a job: fields such as RoPE scaling, and single keys.

Trainer, engine and export all read it through these functions, so they compute the same model.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.model import ModelSpec, RopeScalingSpec
from ppojob_trainer.data.media.picture_files import THINKER
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_files import TEXT_SECTION, has_tower, read_config
from ppojob_trainer.models.config_overrides import ROPE_BASE, has_no_positions, supported_overrides
from ppojob_trainer.models.families import FAMILIES

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
