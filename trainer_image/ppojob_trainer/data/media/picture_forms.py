"""Picture formats by the processors of model folders. Loads no torch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer.data.media.media_form import MediaForm, Settings
from ppojob_trainer.data.media.picture_files import NEWER, PROCESSOR, of_thinker, read_json
from ppojob_trainer.data.media.picture_form import PictureForm
from ppojob_trainer.data.media.picture_grids import LIMITS, QWEN, Grid, Lines, Pooled
from ppojob_trainer.data.media.picture_settings import (
    CropsSettings,
    GridSettings,
    LinesSettings,
    PooledSettings,
    SquaresSettings,
    TilesSettings,
)
from ppojob_trainer.data.media.picture_squares import Crops, Squares, Tiles
from ppojob_trainer.data.media.sound_form import MODELS, read_sound_form

_Read = Callable[[str, Settings, Settings, Path], PictureForm | None]
_KINDS: Final[Mapping[str, tuple[_Read, type[msgspec.Struct]]]] = {
    **dict.fromkeys(LIMITS, (Grid.of, GridSettings)),
    "GotOcr2": (Tiles.of, TilesSettings),
    "Pixtral": (Lines.of, LinesSettings),
    "Gemma3": (Squares.of, SquaresSettings),
    **dict.fromkeys(("Gemma4Image", "Gemma4UnifiedImage"), (Pooled.of, PooledSettings)),
    **dict.fromkeys(("Idefics3", "SmolVLM"), (Crops.of, CropsSettings)),
}
"""Supported picture processors, by prefix of their names."""


def _processor_of(folder: Path) -> tuple[Any, str, str | None]:
    """Return a folder's picture processor settings, its class, and its supported kind.

    The class is empty for a folder that has none.
    """
    # In transformers' order.
    processor = read_json(folder / NEWER).get("image_processor") or read_json(folder / PROCESSOR)
    is_one = isinstance(processor, dict) and processor
    name = str(processor.get("image_processor_type", QWEN)) if is_one else ""
    return processor, name, next((one for one in _KINDS if name.startswith(one)), None)


def read_form(folder: Path) -> MediaForm | None:
    """Return the media format of a Hugging Face model; None without pictures and sounds."""
    config = of_thinker(read_json(folder / "config.json"))
    if str(config.get("model_type")) in MODELS and "vision_config" not in config:
        return read_sound_form(config, folder)
    processor, _, known = _processor_of(folder)
    if known is None or config.get("vision_feature_layer", -1) != -1:
        return None
    of, settings = _KINDS[known]
    try:
        msgspec.convert({**config, "processor": processor}, settings)
    except msgspec.ValidationError:
        return None
    return of(known, config, processor, folder)


def why_shown_none(folder: Path) -> str:
    """Return why a model with a tower sees no pictures, or hears no sounds; else empty."""
    _, name, known = _processor_of(folder)
    config = of_thinker(read_json(folder / "config.json"))
    hears = str(config.get("model_type")) in MODELS
    if not (name or hears or "vision_config" in config) or read_form(folder) is not None:
        return ""
    if hears and read_sound_form(config, folder) is None:
        return f"{folder} has no {PROCESSOR} with settings of a WhisperFeatureExtractor as is known"
    if not name:
        return f"{folder} has neither a {NEWER} nor a {PROCESSOR} with a processor of pictures"
    if known is None:
        return (
            f"the processor of pictures of {folder} is a {printable(name)}, and those are known "
            f"whose names begin with {', '.join(_KINDS)}"
        )
    return (
        f"{folder} has a {printable(name)}, which is known, with settings, a vision_feature_layer "
        "or tokens around pictures that are not"
    )
