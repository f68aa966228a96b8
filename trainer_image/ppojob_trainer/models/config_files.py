"""The config.json of a model's folder, as that of the language model in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.problems import ModelReason, read_object

TEXT_SECTION: Final = "text_config"
"""Of a model that sees pictures: its language model. Older folders have it among the rest."""
TOWER: Final = "visual."
"""What the names of the weights of a vision tower begin with."""
WHOLE_NAMES: Final = {"model.language_model.": "model.", "model.visual.": TOWER}
"""What names in files of a whole model begin with, and the names of the same weights here."""
TOWER_NAMES: Final = (TOWER, *(name for name, here in WHOLE_NAMES.items() if here == TOWER))
"""What the names of a tower's weights begin with, here and in files."""


def read_config(path: Path) -> dict[str, Json] | Problem:
    """Read what a config.json says of the language model, or what is wrong with the file."""
    config = read_object(path, ModelReason.BAD_CONFIG)
    return config if isinstance(config, Problem) else _of_language_model(config)


def sees_pictures(config: Mapping[str, Json]) -> bool:
    """Whether a model has a vision tower beside its language model."""
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.sees_pictures


def _of_language_model(config: dict[str, Json]) -> dict[str, Json]:
    text = config.get(TEXT_SECTION)
    if not isinstance(text, dict) or not sees_pictures(config):
        return config
    is_tied = config.get("tie_word_embeddings") or text.get("tie_word_embeddings")
    rest = {name: value for name, value in config.items() if name != TEXT_SECTION}
    named = {"model_type": config["model_type"], "tie_word_embeddings": is_tied}
    return {**rest, **text, **named}
