"""config.json of a model's folder, reduced to that of its language model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from ppojob_api.problem import Problem
from ppojob_trainer.data.media.image_files import THINKER, of_thinker
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.adapter_names import LAYERS
from ppojob_trainer.models.families import FAMILIES, MULTIMODAL, SECTION_DEFAULTS
from ppojob_trainer.models.family import LANGUAGE_MODULE, Multimodal
from ppojob_trainer.models.problems import ModelReason, read_object

TEXT_SECTION: Final = "text_config"
"""Language model of one with a vision tower. Older folders merge it with the rest."""
TOWER_SECTION: Final = "vision_config"
_TOWER_SECTIONS: Final = {TOWER_SECTION, "audio_config"}
_TIED: Final = "tie_word_embeddings"
TOWER: Final = "visual."
"""Prefixes of the weight names of a vision tower."""
_PARTS: Final = (
    *("vision_tower", "multi_modal_projector"),
    *("vision_model", "connector"),  # of SmolVLM and Idefics3
    *("vision_encoder", "vision_projection"),  # of LightOnOCR
    "visual_embeddings_table",  # of Ovis2
    *("vision_embedder", "embed_vision", "audio_tower", "embed_audio"),  # of Gemma 4; Qwen2-Audio
)
_BESIDE_THINKER: Final = ("thinker.audio_tower", "talker", "token2wav", "code2wav")
WHOLE_NAMES: Final = {
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "model.visual.": TOWER,
    "vision_tower.vision_model.": f"{TOWER}vision_tower.",  # of Gemma 3, before transformers 5
    "model.vision_tower.vision_model.": f"{TOWER}vision_tower.",
    **{f"{part}.": f"{TOWER}{part}." for part in _PARTS},
    **{f"model.{part}.": f"{TOWER}{part}." for part in _PARTS},
    **dict.fromkeys(("image_newline", "model.image_newline"), f"{TOWER}image_newline"),  # of LLaVA
    "language_model.model.model.": "model.",  # of Qwen2-Audio, as transformers 5 saves it
    "language_model.model.": "model.",
    "thinker.model.": "model.",  # of Qwen-Omni, whose other parts are unchanged
    "thinker.lm_head.": "lm_head.",
    "thinker.visual.": TOWER,
    **{f"{part}.": f"{TOWER}{part.rpartition('.')[2]}." for part in _BESIDE_THINKER},
    "language_model.lm_head.": "lm_head.",
}
"""Prefixes of names in multimodal models' files, and those of the same weights here."""
AUDIO: Final = (f"{TOWER}audio_tower.", f"{TOWER}embed_audio.")
"""Prefixes of the weights of audio encoders, which are not trained."""
TOWER_NAMES: Final = (TOWER, *(name for name, own in WHOLE_NAMES.items() if TOWER in own))
"""Prefixes of a tower's weights, here and in files."""


def read_config(path: Path) -> dict[str, Json] | Problem:
    """Read the language model's config.json, or a problem of the file."""
    config = read_object(path, ModelReason.BAD_CONFIG)
    if isinstance(config, Problem):
        return config
    return with_usual_keys(_of_language_model(config, path.parent))


def with_usual_keys(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return a language model's configuration with the usual keys of other models.

    transformers 5 writes a list of layers in place of the number of dense ones.
    """
    family, found = FAMILIES.get(str(config.get("model_type"))), dict(config)
    for own, theirs in family.key_aliases.items() if family else ():
        if theirs in found:
            found[own] = found[theirs]
    for key, value in family.computed.items() if family else ():
        if found.get(key) is None:
            found[key] = value(found)
    mixture, kinds = family.mixture if family else None, config.get("mlp_layer_types")
    if mixture and mixture.dense_first and isinstance(kinds, list):
        dense = next((n for n, kind in enumerate(kinds) if kind != "dense"), len(kinds))
        found.setdefault(mixture.dense_first, dense)
    return found


def file_name(name: str, model_type: str) -> str:
    """Return a weight's name in the files of a family."""
    family = FAMILIES.get(model_type)
    for theirs, own in family.file_names.items() if family else ():
        name = name.replace(own, theirs)
    return name


def has_tower(config: Mapping[str, Json]) -> bool:
    """Whether a config.json, of a folder or read, is of a model with a vision or audio tower."""
    config = of_thinker(config)
    family = FAMILIES.get(str(config.get("model_type")))
    return not _TOWER_SECTIONS.isdisjoint(config) or (family is not None and family.is_multimodal)


def folder_has_tower(folder: Path | str) -> bool:
    """As `has_tower`, of a folder; False where its config.json cannot be read."""
    config = read_config(Path(folder) / "config.json")
    return not isinstance(config, Problem) and has_tower(config)


def layers_name(config: Mapping[str, Json]) -> str:
    """Return transformers' name of the decoder layers, from a config.json as it is on disk."""
    kind = str(of_thinker(config).get("model_type"))
    if not has_tower(config):
        return file_name(f"{LAYERS}.", kind).rstrip(".")
    whole = MULTIMODAL.get(kind) or FAMILIES.get(kind)
    part = f"model.{whole.language_module if whole else LANGUAGE_MODULE}".rstrip(".")
    if isinstance(whole, Multimodal) and whole.has_causal_module:
        part = f"{whole.language_module}.model"
    return f"thinker.{part}.layers" if THINKER in config else f"{part}.layers"


def layers_name_in(folder: Path | str) -> str:
    """As `layers_name`, of a folder; the name here where its config.json cannot be read."""
    config = read_object(Path(folder) / "config.json", ModelReason.BAD_CONFIG)
    return LAYERS if isinstance(config, Problem) else layers_name(config)


def _of_language_model(config: dict[str, Json], folder: Path) -> dict[str, Json]:
    config = of_thinker(config)
    text = config.get(TEXT_SECTION)
    kind = config.get("model_type")
    whole, family = MULTIMODAL.get(str(kind)), FAMILIES.get(str(kind))
    if not isinstance(text, dict) or not (whole or (family and family.is_multimodal)):
        return config
    if whole:
        kind = text.get("model_type", whole.text)
    ties = {one[_TIED] is True for one in (config, text) if one.get(_TIED) is not None}
    if family and not family.language_module:  # transformers reads only the outer one of these
        ties = {config.get(_TIED) is True}
    # transformers writes different defaults for the whole and its part: the files decide.
    is_tied = ties == {True} or (len(ties) > 1 and (not whole or not _has_head(folder)))
    rest = {name: value for name, value in config.items() if name != TEXT_SECTION}
    if whole:
        rest |= SECTION_DEFAULTS.get(str(kind), {})
    return {**rest, **text, "model_type": kind, **({_TIED: is_tied} if ties else {})}


def _has_head(folder: Path) -> bool:
    """Whether the files of a folder hold an output layer."""
    index = read_object(folder / "model.safetensors.index.json", ModelReason.BAD_INDEX)
    names = index.get("weight_map") if isinstance(index, dict) else None
    try:
        if not isinstance(names, dict):
            with safe_open(folder / "model.safetensors", framework="np") as file:
                names = dict.fromkeys(file.keys())
    except (SafetensorError, OSError):
        return False  # which the checks of files report
    return any(name.endswith("lm_head.weight") for name in names)
