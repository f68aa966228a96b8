"""Which layers of a model adapters are for, and how large they are; told by config.json alone."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.suggestions import NEAR
from ppojob_api.v1alpha1.training import ModelSpec
from ppojob_trainer.models.architectures import ARCHITECTURES, Sizes, linear_layers, read_sizes
from ppojob_trainer.models.json_objects import read_object
from ppojob_trainer.models.problems import ModelReason

_WHERE: Final = "spec.model.lora.targetModules"


def check_targets(model: ModelSpec) -> Iterator[Problem]:
    """Targets that no layer of the model is called; nothing where its folder is no good."""
    if model.lora is None or (sizes := _sizes(model)) is None:
        return
    names = {name.rpartition(".")[2] for name in linear_layers(sizes)}
    for index, target in enumerate(model.lora.target_modules or ()):
        if target not in names:
            near = difflib.get_close_matches(target, names, n=1, cutoff=NEAR)
            meant = f", did you mean {near[0]}" if near else ""
            yield Problem(
                f"{_WHERE}[{index}]",
                shown(target),
                f"no linear layer of the model is called so{meant}",
                f"{', '.join(sorted(names))}; without the field all of them",
                ReasonCode.NOT_ONE_OF,
            )


def count_adapters(model: ModelSpec) -> int:
    """Numbers in all adapters of a model; 0 without, or where its config.json cannot be read."""
    lora = model.lora
    if lora is None or (sizes := _sizes(model)) is None:
        return 0
    of_a_layer = sum(
        lora.rank * sum(shape)
        for name, shape in linear_layers(sizes).items()
        if lora.target_modules is None or name.rpartition(".")[2] in lora.target_modules
    )
    return sizes.layers * of_a_layer


def _sizes(model: ModelSpec) -> Sizes | None:
    path = Path(model.path) / "config.json"
    config = read_object(path, ModelReason.BAD_CONFIG)
    if isinstance(config, Problem) or config.get("model_type") not in ARCHITECTURES:
        return None
    sizes = read_sizes(config, path)
    return sizes if isinstance(sizes, Sizes) else None
