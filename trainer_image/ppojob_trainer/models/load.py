"""Models out of Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.architectures import ARCHITECTURES


def load_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a causal language model.

    Args:
        folder: with config.json and the weights; nothing is fetched.
        dtype: of the weights.
        device: where they go.
        trust_remote_code: run code that lies in the folder.

    Returns:
        The model in evaluation mode.

    Raises:
        ConfigError: if the folder holds no model, or one of an architecture that is not supported.
    """
    model, _ = load_pretrained(
        AutoModelForCausalLM,
        Path(folder),
        dtype,
        where="spec.model.path",
        trust_remote_code=trust_remote_code,
    )
    return model.to(device)


def load_pretrained(
    auto_class: Any,
    folder: Path,
    dtype: torch.dtype,
    *,
    where: str,
    trust_remote_code: bool = False,
    **changes: object,
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Load a model of any kind from config.json and safetensors.

    Args:
        auto_class: the kind, an AutoModel... of transformers.
        folder: with config.json and the weights; nothing is fetched.
        dtype: of the weights.
        where: field of the resource that names the folder, for messages.
        trust_remote_code: run code that lies in the folder.
        changes: of the configuration, by its own names.

    Returns:
        The model in evaluation mode, and the names of weights that the folder does not hold:
        transformers drew them at random.

    Raises:
        ConfigError: if the folder holds no model, one of an architecture that is not supported, or
            weights of other shapes.
    """
    path = folder / "config.json"
    try:
        architecture = json.loads(path.read_text())["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{where}: got {folder}: its config.json gives no model_type ({error}); "
            "name a folder in Hugging Face form"
        ) from error
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"{where}: got {folder}: architecture {architecture!r} is not supported; "
            f"use one of {', '.join(ARCHITECTURES)}"
        )
    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(folder, **options)
        for name, value in changes.items():
            setattr(config, name, value)
        model, info = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{where}: got {folder}: the model cannot be loaded: {reason}; "
            "name a folder with config.json and model.safetensors"
        ) from error
    for name, got, needed in sorted(info["mismatched_keys"]):
        raise ConfigError(
            f"{where}: got {folder}: {name} has shape {tuple(got)}: the model needs "
            f"{tuple(needed)}; weights and config.json of one model of the right kind"
        )
    return model.eval(), frozenset(info["missing_keys"])
