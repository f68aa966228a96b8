"""Untrained parts of an export, copied from the initial folder: tower, MTP layers, scalars."""

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
from ppojob_trainer.models.config_files import TOWER, file_name, has_tower, read_config
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.mtp_forms import is_mtp_weight, mtp_copies, mtp_layer_count
from ppojob_trainer.models.per_layer_sizes import count_in
from ppojob_trainer.models.stored_tensors import read_tensor
from ppojob_trainer.models.weight_files import own_name, read_weights
from ppojob_trainer.models.weights import Weights


@dataclass(frozen=True, slots=True)
class UntrainedParts:
    """Tensors of the initial model folder that an export takes over; mapped, not read."""

    model_type: str  # by its config.json
    tower: Mapping[str, Tensor]  # a vision tower, by the names in files
    mtp: Mapping[str, Tensor]  # the same of MTP layers; none for a value model
    copied: Mapping[str, str]  # weights of the model that these repeat
    # untrained scalars that are 0-dimensional in files; here they have a dimension
    numbers: Mapping[str, Tensor]
    stored: Mapping[str, str]  # if it has a tower, the names in files of all weights, by those here
    weights: Weights  # of the folder; quantized tensors of the above are on the meta device

    @classmethod
    def of(cls, model_folder: Path, *, scores: bool) -> UntrainedParts:
        """Index a folder; for a model that `scores` without MTP layers.

        Raises ConfigError if files of weights that config.json requires are missing.
        """
        config = read_config(model_folder / "config.json")
        if isinstance(config, Problem):
            raise ConfigError(str(config))
        model_type, sees = str(config.get("model_type")), has_tower(config)
        layers = count_in(config, "num_hidden_layers") or None
        weights = read_weights(model_folder)
        bare = FAMILIES[model_type].zero_dim_scalars if model_type in FAMILIES else ()
        required = {
            "a vision tower": sees,
            "layers that predict further tokens": not scores and mtp_layer_count(config),
            f"untrained scalars ({', '.join(bare)})": bare,
        }
        missing = " and ".join(part for part, is_required in required.items() if is_required)
        if missing and weights.problems:
            raise ConfigError(
                f"{problem}; {missing} would not be in the export" for problem in weights.problems
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
        return self.stored.get(name) or file_name(name, self.model_type)

    def dequantised(self, name: str, tensor: Tensor) -> Tensor:
        """Return a copied tensor, by its name in files; a quantized one is read and dequantized."""
        own = own_name(name, self.model_type)
        return read_tensor(self.weights, own) if own in self.weights.quantised else tensor

    def in_files(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename trained tensors as in files, and repeat those of which MTP layers have copies."""
        trained = {self.name_in_files(name): tensor for name, tensor in given.items()}
        if not self.mtp.keys() & trained.keys():
            return trained
        own = {name: of for name, of in self.copied.items() if name in self.mtp}
        return trained | {name: trained.get(of, trained[EMBEDDING]) for name, of in own.items()}

    def frozen(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that go into an export unchanged."""
        kept = {**self.tower, **self.mtp}
        return {name: one for name, one in kept.items() if name not in trained} | {**self.numbers}
