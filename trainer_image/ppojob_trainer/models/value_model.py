"""The critic's model: the backbone of a language model with one number a token on top.

It is a token classifier with one label, as in verl, so that an export loads there and in
transformers (`AutoModelForTokenClassification`).
"""

from pathlib import Path

import torch
from transformers import AutoModelForTokenClassification, PreTrainedModel

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.kinds import CRITIC, SCORE_BIAS, SCORE_WEIGHT
from ppojob_trainer.models.load import load_pretrained
from ppojob_trainer.parallel.fsdp import fill
from ppojob_trainer.parallel.world import World


def load_value_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    *,
    world: World | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a value model, or make one of a language model.

    A folder without a value head, such as the policy's, gets one of zeros (Ziegler et al.,
    arXiv:1909.08593, in its code): the first values are 0 and the first advantages those of the
    rewards. Departs from verl, which draws as transformers does: on SmolLM2 that gives values of
    1.0 ± 0.5, and the critic first has to unlearn them.

    A sequence classifier with one label (a reward model) gives its weights and the bias starts at
    0. Dropout on the head is off, as in verl: the values of an update and those that it is clipped
    to are of one function.

    Args:
        folder: of a language model, a token classifier or a sequence classifier with one label.
        dtype: of the weights.
        world: the ranks over which it is cut, and their device; None for this one on the CPU.
        trust_remote_code: run code that lies in the folder.

    Returns:
        The model in evaluation mode; `score` is its head.

    Raises:
        ConfigError: if the folder holds no model that a critic can be made of, or a classifier with
            several labels, or lacks weights of the backbone.
    """
    model, missing = load_pretrained(
        AutoModelForTokenClassification,
        Path(folder),
        dtype,
        world=world,
        kind=CRITIC,
        trust_remote_code=trust_remote_code,
        num_labels=1,
        classifier_dropout=0.0,
    )
    if others := sorted(missing - {SCORE_WEIGHT, SCORE_BIAS}):
        raise ConfigError(
            f"{CRITIC.where}: got {folder}: it holds no {others[0]}; "
            "the weights of the whole backbone"
        )
    parameters = dict(model.named_parameters())
    if SCORE_WEIGHT in missing:
        fill(parameters[SCORE_WEIGHT], torch.zeros(1, model.config.hidden_size))
    if SCORE_BIAS in missing:
        fill(parameters[SCORE_BIAS], torch.zeros(1))
    return model
