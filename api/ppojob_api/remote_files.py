"""Remote files of a job: the fields that may be URLs, and their replacement by paths."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ppojob_api.v1alpha1.job import PPOJobSpec

SCHEMES: Final = ("hf", "s3", "gs", "hdfs", "https", "http")
"""URL schemes that fsspec and its packages read."""

MODEL_FIELDS: Final = (
    "model.path",
    "model.tokenizerPath",
    "model.lora.path",
    "reference.path",
    "critic.path",
    "critic.referencePath",
    "critic.lora.path",
    "rewardModel.path",
    "rewardModel.tokenizerPath",
    "judge.path",
)
"""Folders of models, adapters and tokenizers."""

TEACHERS_FIELD: Final = "reference.teachers"
"""A list of folders of models."""

DATA_FIELDS: Final = ("data.train", "data.validation", "data.demonstrations")
"""Lists of files."""


def is_url(path: str) -> bool:
    """Whether a path is a URL, which must be fetched."""
    return "://" in path


def urls(spec: PPOJobSpec) -> dict[str, str]:
    """The URLs of a job, each with the first field that names it."""
    found: dict[str, str] = {}
    for section, key, where in _paths(spec.model_dump(mode="json")):
        if is_url(section[key]):
            found.setdefault(section[key], where)
    return found


def is_of_data(where: str) -> bool:
    """Whether a field names data, and not a folder of a model."""
    return where.startswith("spec.data.")


def with_paths(spec: PPOJobSpec, places: Mapping[str, str]) -> PPOJobSpec:
    """The same spec with paths and URLs replaced by `places`."""
    whole = spec.model_dump(mode="json")
    for section, key, _ in _paths(whole):
        section[key] = places.get(section[key], section[key])
    return PPOJobSpec.model_validate_json(json.dumps(whole), by_alias=True, by_name=False)


def _paths(spec: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each path that may be a URL: the section that holds it, its key there, and its field."""
    for field in MODEL_FIELDS:
        *above, last = field.split(".")
        section: dict[str, Any] | None = spec
        for key in above:
            section = section and section[key]
        if section and section[last] is not None:
            yield section, last, f"spec.{field}"
    for field in (TEACHERS_FIELD, *DATA_FIELDS):
        parent, _, name = field.partition(".")
        for index, one in enumerate((spec[parent] or {}).get(name, ())):
            yield one, "path", f"spec.{field}[{index}].path"
