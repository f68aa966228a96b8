"""Causal language models out of Hugging Face folders."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.architectures import ARCHITECTURES


def load_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a model's weights from safetensors.

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
    folder = Path(folder)
    path = folder / "config.json"
    try:
        architecture = json.loads(path.read_text())["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"spec.model.path: got {folder}: its config.json gives no model_type ({error}); "
            "name a folder in Hugging Face form"
        ) from error
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"spec.model.path: got {folder}: architecture {architecture!r} is not supported; "
            f"use one of {', '.join(ARCHITECTURES)}"
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"spec.model.path: got {folder}: the model cannot be loaded: {error}; "
            "name a folder with config.json and model.safetensors"
        ) from error
    loaded: PreTrainedModel = model.to(device)
    return loaded.eval()
