"""What an export holds beside trained weights: of the folder where training began, as it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ppojob_api.problem import Problem
from ppojob_trainer.checkpoint.tensors import read_tensors
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.architectures import EMBEDDING
from ppojob_trainer.models.config_files import (
    TOWER,
    file_name,
    has_tower,
    layer_count,
    read_config,
)
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.mtp_forms import is_mtp_weight, mtp_copies, mtp_layer_count
from ppojob_trainer.models.stored_tensors import read_tensor
from ppojob_trainer.models.weight_files import own_name, read_weights
from ppojob_trainer.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Beside:
    """What the folder where training began says of an export, its tensors mapped and not read.

    Attributes:
        model_type: as its config.json has it.
        tower: a vision tower, by the names in files.
        mtp: the same of layers that predict further tokens; none for a model that scores, which
            draws no token.
        copied: what these hold again of the model's weights.
        numbers: what files hold without a dimension, which nobody trains: here it has one.
        stored: of a model with a tower the names in files of all weights, by those here.
        weights: of the folder; what is quantised of the above is on the meta device.
    """

    model_type: str
    tower: Mapping[str, Tensor]
    mtp: Mapping[str, Tensor]
    copied: Mapping[str, str]
    numbers: Mapping[str, Tensor]
    stored: Mapping[str, str]
    weights: Weights

    @classmethod
    def of(cls, model_folder: Path, *, scores: bool) -> Beside:
        """Look at a folder; a model that scores takes over no layers of further tokens.

        Raises:
            ConfigError: config.json tells of such weights, and files that hold weights are gone.
        """
        config = read_config(model_folder / "config.json")
        if isinstance(config, Problem):
            raise ConfigError(str(config))
        model_type, sees = str(config.get("model_type")), has_tower(config)
        layers = layer_count(model_folder)
        weights = read_weights(model_folder)
        bare = FAMILIES[model_type].zero_dim_scalars if model_type in FAMILIES else ()
        if weights.problems:
            _refuse_without(
                weights.problems,
                {
                    "a vision tower": sees,
                    "layers that predict further tokens": not scores and mtp_layer_count(config),
                    f"numbers that nobody trains ({', '.join(bare)})": bare,
                },
            )
        tower = {name for name in weights.files if sees and name.startswith(TOWER)}
        mtp = {name for name in weights.files if not scores and is_mtp_weight(name, layers)}
        numbers = {name for name in weights.files if bare and name.endswith(bare)}
        read = {
            path: read_tensors(path)
            for path in {weights.files[name] for name in tower | mtp | numbers}
        }

        def held(names: Iterable[str]) -> dict[str, Tensor]:
            return {
                weights.stored[name]: torch.empty(weights.tensors[name].shape, device="meta")
                if name in weights.quantised
                else read[weights.files[name]][weights.stored[name]]
                for name in names
            }

        return cls(
            model_type,
            held(tower),
            held(mtp),
            mtp_copies(model_type, layers or 0),
            {name: number for name, number in held(numbers).items() if not number.shape},
            weights.stored if sees else {},
            weights,
        )

    def name_in_files(self, name: str) -> str:
        """What files of the folder call a weight."""
        return self.stored.get(name) or file_name(name, self.model_type)

    def dequantised(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor that is taken over, by its name in files, which are read if it is quantised."""
        own = own_name(name)
        return read_tensor(self.weights, own) if own in self.weights.quantised else tensor

    def in_files(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is trained, by the names in files, and what such a layer holds of it again."""
        trained = {self.name_in_files(name): tensor for name, tensor in given.items()}
        if not self.mtp.keys() & trained.keys():
            return trained
        own = {name: of for name, of in self.copied.items() if name in self.mtp}
        return trained | {name: trained.get(of, trained[EMBEDDING]) for name, of in own.items()}

    def frozen(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What goes into an export as it was."""
        kept = {**self.tower, **self.mtp}
        return {name: one for name, one in kept.items() if name not in trained} | {**self.numbers}


def _refuse_without(problems: Iterable[Problem], promised: Mapping[str, object]) -> None:
    """Refuse to write a model without what its config.json promises."""
    missing = " and ".join(what for what, is_there in promised.items() if is_there)
    if missing:
        raise ConfigError(
            f"{problem}; {missing} would not be in the export" for problem in problems
        )
