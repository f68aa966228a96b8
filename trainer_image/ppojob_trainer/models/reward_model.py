"""Reward models: sequence classifiers with one label, whose logit is the score of a text."""

from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.load import load_pretrained
from ppojob_trainer.parallel.world import World

WHERE: Final = "spec.rewardModel.path"
_WANTED: Final = "a sequence classifier with one label (...ForSequenceClassification)"


def load_reward_model(
    folder: Path | str,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    *,
    world: World | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a reward model; it is never trained.

    Args:
        folder: with config.json and the weights; nothing is fetched.
        dtype: of the weights.
        device: where they go.
        world: the ranks over which it is cut, on that device; None for this one alone.
        trust_remote_code: run code that lies in the folder.

    Returns:
        The model in evaluation mode, without gradients; `score` is its head.

    Raises:
        ConfigError: if the folder holds no such model, or one of an architecture that is not
            supported.
    """
    model, missing = load_pretrained(
        AutoModelForSequenceClassification,
        Path(folder),
        dtype,
        where=WHERE,
        world=world or World.alone(device),
        trust_remote_code=trust_remote_code,
    )
    kinds = model.config.architectures or []
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        raise ConfigError(
            f"{WHERE}: got {folder}: it is a {', '.join(map(str, kinds)) or 'model without a kind'}"
            f" by its config.json: its head gives no score of a text; {_WANTED}"
        )
    if model.config.num_labels != 1:
        raise ConfigError(
            f"{WHERE}: got {folder}: it has {model.config.num_labels} labels: a score is one "
            f"number; {_WANTED}"
        )
    if missing:
        raise ConfigError(
            f"{WHERE}: got {folder}: it holds no {min(missing)}: it would be random numbers; "
            "all weights of the model"
        )
    return model.requires_grad_(False)
