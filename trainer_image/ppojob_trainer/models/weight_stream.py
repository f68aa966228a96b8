"""Streamed weights of an untrained policy for engines: no model is held in memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.kinds import POLICY
from ppojob_trainer.models.load import refuse_config
from ppojob_trainer.models.mixtures import is_sent_float32
from ppojob_trainer.models.model_classes import language_config
from ppojob_trainer.models.nf4 import linear_layers, rounded
from ppojob_trainer.models.stored_tensors import read_tensor
from ppojob_trainer.models.transformers_modules import unify_modules
from ppojob_trainer.models.weight_files import read_weights


def stored_weights(
    folder: Path | str,
    dtype: torch.dtype,
    device: torch.device,
    overrides: Mapping[str, Json] | None = None,
    lora: LoraSpec | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of a causal language model once, as `load_model` would hold it.

    Names and order are those of `state_dict.hf_named_tensors`, from a meta model. One tensor is in
    memory at a time. Adapters are ignored; with NF4 in `lora` the weights are rounded to it.

    Raises:
        ConfigError: the folder holds no model of a known kind; a weight is missing, of another
            shape, or not finite.
    """
    refuse_config(Path(folder), POLICY, overrides or {})
    config = language_config(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    unify_modules(model)
    is_rounded = lora is not None and lora.base_type is not None
    in_nf4 = {f"{name}.weight" for name, _ in linear_layers(model)} if is_rounded else set()
    weights = read_weights(Path(folder))
    for name, parameter in model.named_parameters():
        where = POLICY.where
        if name not in weights.files:
            raise ConfigError(f"{where}: got {folder}: it holds no {name}; all weights")
        tensor = read_tensor(weights, name)
        if tensor.shape != parameter.shape:
            raise ConfigError(
                f"{where}: got {name} of shape {tuple(tensor.shape)} in {folder}: the model's is "
                f"{tuple(parameter.shape)}; the weights of this model"
            )
        if not tensor.isfinite().all():
            raise ConfigError(
                f"{where}: got values that are NaN or infinite in {name} of {folder}: "
                "nothing can be computed with them; the weights as they were trained"
            )
        own = tensor.to(device, torch.float32 if is_sent_float32(name) else dtype)
        yield name, rounded(own) if name in in_nf4 else own
