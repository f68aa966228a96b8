"""What config.json alone tells of a model that cannot be used here."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ppojob_api.problem import ABSENT, Problem, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.architectures import ARCHITECTURES
from ppojob_trainer.models.kinds import ModelKind, label_count
from ppojob_trainer.models.problems import ModelReason

_WHOLE_LENGTH: Final = (None, "default", "llama3", "yarn")
"""Types of rotary positions whose `max_position_embeddings` is the length after any stretching."""
_ONE_FAMILY: Final = f"one of {', '.join(ARCHITECTURES)}"
_ROPE_SECTIONS: Final = ("rope_scaling", "rope_parameters")
_FIXED_ROPES: Final = (None, "default", "linear", "yarn", "llama3")
"""Positions turned by fixed angles; other kinds choose them by the longest row of a pass."""


def check_config(
    config: Mapping[str, Json], path: Path, kind: ModelKind, *, trust_remote_code: bool
) -> Iterator[Problem]:
    """Say why a model cannot be used, by its configuration alone."""
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        yield Problem(
            f"{path}:model_type",
            ABSENT if model_type is None else shown(model_type),
            "the trainer's packed attention does not know it",
            _ONE_FAMILY,
            ModelReason.UNSUPPORTED_ARCHITECTURE,
        )
    yield from _check_class(config, path, kind)
    if _has_windows(config):
        got, why = shown(config.get("sliding_window")), "layers would see a window of the row only"
        yield _unsupported(f"{path}:sliding_window", got, why, "a model without windows")
    yield from _check_rope(config, path)
    quantised = config.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        why, allowed = "a quantised checkpoint cannot be trained", "the weights it was made from"
        where = f"{path}:quantization_config"
        yield Problem(where, shown(method), why, allowed, ModelReason.QUANTISED)
    code = config.get("auto_map")
    if code is not None and not trust_remote_code:
        why = "the model asks for Python code of its folder to be run"
        allowed = "a config.json without auto_map, where transformers knows the model by itself"
        yield Problem(f"{path}:auto_map", shown(code), why, allowed, ModelReason.REMOTE_CODE)


def context_tokens(config: Mapping[str, Json]) -> int | None:
    """Positions that the model was made for; None where something stretches them further.

    Source: vLLM 0.32, `config/model.py`, `_get_and_verify_max_len`, which takes no longer ones.
    """
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) not in _WHOLE_LENGTH:
            return None
    positions = config.get("max_position_embeddings")
    return positions if isinstance(positions, int) else None


def _check_class(config: Mapping[str, Json], path: Path, kind: ModelKind) -> Iterator[Problem]:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        if not any(part in str(name) for name in names for part in kind.classes):
            yield _unsupported(f"{path}:architectures", shown(names), kind.why, kind.wanted)
        elif label_count(config) not in (None, 1):
            got = f"{label_count(config)} labels"
            yield _unsupported(f"{path}:id2label", got, "a score is one number", kind.wanted)


def _check_rope(config: Mapping[str, Json], path: Path) -> Iterator[Problem]:
    for section in _ROPE_SECTIONS:
        rope = config.get(section)
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
        if kind not in _FIXED_ROPES:
            why = "the angles of a row's positions would depend on the rows beside it"
            allowed = f"a model with one of {', '.join(filter(None, _FIXED_ROPES))}"
            yield _unsupported(f"{path}:{section}", shown(kind), why, allowed)


def _unsupported(where: str, got: str, why: str, allowed: str) -> Problem:
    return Problem(where, got, why, allowed, ModelReason.UNSUPPORTED_ARCHITECTURE)


def _has_windows(config: Mapping[str, Json]) -> bool:
    """Whether any layer attends within a window, by the rules of Qwen2 and Qwen3."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return "sliding_attention" in kinds
    if config.get("use_sliding_window") is not True or config.get("sliding_window") is None:
        return False
    first, layers = config.get("max_window_layers", 28), config.get("num_hidden_layers")
    return not (isinstance(first, int) and isinstance(layers, int) and first >= layers)
