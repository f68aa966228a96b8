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
    device: torch.device | str = "cpu",
    *,
    seed: int,
    world: World | None = None,
    where: str = CRITIC.where,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a value model, or make one of a language model.

    A folder without a value head, such as the policy's, gets a new one. As in verl that is the
    initialiser of transformers: weights normal with the deviation `initializer_range` of the
    configuration, the bias 0. The first values are near 0 but differ between states, so nothing has
    to break a symmetry. A sequence classifier with one label (a reward model) gives its weights and
    the bias starts at 0. Dropout on the head is off, as in verl: the values of an update and those
    that it is clipped to are of one function.

    Args:
        folder: of a language model, a token classifier or a sequence classifier with one label.
        dtype: of the weights.
        device: where they go.
        seed: of a new head, which is the same for any dtype and device.
        world: the ranks over which it is cut, on that device; None for this one alone.
        where: field of the resource that names the folder, for messages.
        trust_remote_code: run code that lies in the folder.

    Returns:
        The model in evaluation mode; `score` is its head.

    Raises:
        ConfigError: if the folder holds no model of a supported architecture, or a classifier with
            several labels, or lacks weights of the backbone.
    """
    model, missing = load_pretrained(
        AutoModelForTokenClassification,
        Path(folder),
        dtype,
        world=world or World.alone(device),
        where=where,
        trust_remote_code=trust_remote_code,
        num_labels=1,
        classifier_dropout=0.0,
    )
    if others := sorted(missing - {SCORE_WEIGHT, SCORE_BIAS}):
        raise ConfigError(
            f"{where}: got {folder}: it holds no {others[0]}; the weights of the whole backbone"
        )
    parameters = dict(model.named_parameters())
    if SCORE_WEIGHT in missing:
        fill(parameters[SCORE_WEIGHT], _drawn_head(model, seed))
    if SCORE_BIAS in missing:
        fill(parameters[SCORE_BIAS], torch.zeros(1))
    return model


def _drawn_head(model: PreTrainedModel, seed: int) -> torch.Tensor:
    """(1, hidden) float32."""
    generator = torch.Generator().manual_seed(seed)
    deviation: float = model.config.initializer_range
    return torch.randn(1, model.config.hidden_size, generator=generator) * deviation
