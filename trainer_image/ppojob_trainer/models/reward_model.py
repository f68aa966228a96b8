"""Reward models: sequence classifiers with one label, whose logit is the score of a text."""

from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.kinds import REWARD
from ppojob_trainer.models.load import load_pretrained
from ppojob_trainer.parallel.world import World


def load_reward_model(
    folder: Path | str,
    dtype: torch.dtype = torch.bfloat16,
    *,
    world: World | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a reward model; it is never trained.

    Args:
        folder: with config.json and the weights; nothing is fetched.
        dtype: of the weights.
        world: the ranks over which it is cut, and their device; None for this one on the CPU.
        trust_remote_code: run code that lies in the folder.

    Returns:
        The model in evaluation mode, without gradients; `score` is its head.

    Raises:
        ConfigError: if the folder holds no such model, or one that cannot be used here.
    """
    model, missing = load_pretrained(
        AutoModelForSequenceClassification,
        Path(folder),
        dtype,
        kind=REWARD,
        world=world,
        trust_remote_code=trust_remote_code,
        num_labels=1,
    )
    if missing:
        raise ConfigError(
            f"{REWARD.where}: got {folder}: it holds no {min(missing)}; all weights of the model"
        )
    return model.requires_grad_(False)
