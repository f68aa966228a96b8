"""The config.json of a model's folder, as that of the language model in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.families import FAMILIES, WHOLES
from ppojob_trainer.models.problems import ModelReason, read_object

TEXT_SECTION: Final = "text_config"
"""Of a model with a vision tower: its language model. Older folders have it among the rest."""
TOWER_SECTION: Final = "vision_config"
TOWER: Final = "visual."
"""What the names of the weights of a vision tower begin with."""
WHOLE_NAMES: Final = {
    "model.language_model.": "model.",
    "model.visual.": TOWER,
    **{f"{part}.": f"{TOWER}{part}." for part in ("vision_tower", "multi_modal_projector")},
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
"""What names in files of a whole model begin with, and the names of the same weights here."""
TOWER_NAMES: Final = (TOWER, *(name for name, own in WHOLE_NAMES.items() if TOWER in own))
"""What the names of a tower's weights begin with, here and in files."""


def read_config(path: Path) -> dict[str, Json] | Problem:
    """Read what a config.json says of the language model, or what is wrong with the file."""
    config = read_object(path, ModelReason.BAD_CONFIG)
    return config if isinstance(config, Problem) else _of_language_model(config)


def has_tower(config: Mapping[str, Json]) -> bool:
    """Whether a model has a vision tower beside its language model.

    `config` is a config.json as it lies, or as `read_config` gives it.
    """
    family = FAMILIES.get(str(config.get("model_type")))
    return TOWER_SECTION in config or (family is not None and family.sees_pictures)


def folder_has_tower(folder: Path | str) -> bool:
    """Whether the model of a folder has one; False where its config.json cannot be read."""
    config = read_config(Path(folder) / "config.json")
    return not isinstance(config, Problem) and has_tower(config)


def _of_language_model(config: dict[str, Json]) -> dict[str, Json]:
    text = config.get(TEXT_SECTION)
    kind = config.get("model_type")
    family = FAMILIES.get(str(kind))
    if not isinstance(text, dict) or not (kind in WHOLES or (family and family.sees_pictures)):
        return config
    if kind in WHOLES:
        kind = text.get("model_type")
    named = {"model_type": kind}
    ties = [one["tie_word_embeddings"] for one in (config, text) if "tie_word_embeddings" in one]
    rest = {name: value for name, value in config.items() if name != TEXT_SECTION}
    tied = {"tie_word_embeddings": any(ties)} if ties else {}
    return {**rest, **text, **named, **tied}
