"""Whether weights are numbers that a model can consist of: seen as soon as they are loaded.

A folder can be whole to the last byte and useless: a run that diverged and was saved, a file whose
space was reserved and never written.
"""

from collections.abc import Set
from pathlib import Path
from typing import Final

import torch
from transformers import PreTrainedModel

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.weight_files import listed
from ppojob_trainer.parallel.boxes import is_first_holder, local_part
from ppojob_trainer.parallel.collectives import sum_over_ranks
from ppojob_trainer.parallel.world import World

_MAY_BE_ZERO: Final = (".bias", ".o_proj.weight", ".down_proj.weight", "score.weight")
"""Biases, a block that was put in as the identity, and a head that begins at zero."""


def check_values(
    model: PreTrainedModel, folder: Path, where: str, world: World, absent: Set[str]
) -> None:
    """Refuse weights that are not finite, or were never filled; a collective of all ranks.

    Args:
        model: as loaded; cut over the ranks or not.
        folder: where from.
        where: field of the resource that names it.
        world: the ranks that hold the model.
        absent: weights that the folder does not hold, whose values have no meaning.

    Raises:
        ConfigError: on every rank, with all that is wrong.
    """
    # What several ranks hold is looked at by the first of them.
    parts = {
        name: local_part(weight.detach()) if is_first_holder(weight) else torch.empty(0)
        for name, weight in model.named_parameters()
        if name not in absent
    }
    # A rank's part of an embedding may be rows that no token has, all of them zero.
    counts = sum_over_ranks(
        world,
        [
            *(float((~part.isfinite()).sum()) for part in parts.values()),
            *(float(part.count_nonzero()) for part in parts.values()),
        ],
    )
    broken, filled = counts[: len(parts)], counts[len(parts) :]
    bad = {name: int(count) for name, count in zip(parts, broken, strict=True) if count}
    empty = [
        name
        for name, count in zip(parts, filled, strict=True)
        if not count and not name.endswith(_MAY_BE_ZERO)
    ]
    found = []
    if bad:
        got = f"{sum(bad.values())} values that are NaN or infinite"
        found.append((got, list(bad), "nothing can be computed with them"))
    if empty:
        found.append(("nothing but zeros", empty, "the file was never filled"))
    if found:
        raise ConfigError(
            f"{where}: got {got} in {listed(names)} of {folder}: {why}; "
            "the weights as they were trained"
            for got, names, why in found
        )
