"""Record of MoE routing: the experts of each token in a pass, for router replay in later passes."""

from typing import Any

import torch
from torch import Tensor

from ppojob_trainer.models.pipeline_stages import PipelineStage, layers_of
from ppojob_trainer.models.routes import EXPERT_DTYPE, Attach, Routes, experts_per_token
from ppojob_trainer.parallel.sequence import SequenceRanks
from ppojob_trainer.rows.experience import Experience


class RouterRecord:
    """Experts of all tokens of some rows; prompts count once a group.

    If a prompt is computed several times the last pass counts. Padding has expert 0.
    """

    def __init__(self, rows: Experience, config: Any) -> None:
        """Begin a record of rows; `config` is that of the whole model."""
        self._rows = rows
        self._layers: int = config.num_hidden_layers
        self._sizes = [int(rows.prompt_lengths.sum()), rows.num_tokens]
        shape = (sum(self._sizes), self._layers, experts_per_token(config))
        self._experts = torch.zeros(shape, dtype=EXPERT_DTYPE)

    def add(self, rows: Tensor, routes: Routes, ranks: SequenceRanks) -> None:
        """Record the routes of a pass over some rows; a collective of the sequence ranks."""
        chosen = ranks.all_gather(routes.chosen(self._layers)).cpu()
        groups = torch.tensor(list(dict.fromkeys(self._rows.row_groups[rows].tolist())))
        of_prompts = self._rows.prompt_index(groups.to(torch.int64))
        places = torch.cat([of_prompts, self._sizes[0] + self._rows.token_index(rows)])
        packed = torch.arange(len(routes.sources))[routes.sources >= 0]
        last = torch.full(places.shape, -1)
        last.scatter_reduce_(0, routes.sources[packed], packed, "amax")
        self._experts[places[last >= 0]] = chosen[last[last >= 0]]

    def keep(self, stage: PipelineStage, device: torch.device) -> None:
        """Store the complete record in the rows; a collective of all pipeline stages."""
        for number in range(stage.ranks.size if stage.ranks.size > 1 else 0):
            own = layers_of(number, range(stage.ranks.size), self._layers)
            part = self._experts[:, own.start : own.stop].contiguous().to(device)
            told = stage.ranks.broadcast(part.view(torch.uint8), number).view(EXPERT_DTYPE)
            self._experts[:, own.start : own.stop] = told.cpu()
        self._rows.prompt_experts, self._rows.experts = torch.split(self._experts, self._sizes)


def routes_of(
    rows: Experience,
    sources: Tensor,
    own: Tensor,
    device: torch.device,
    *,
    records: bool,
    attach: Attach | None = None,
) -> Routes | None:
    """Return the routes of a pass: replayed from the rows, or recorded.

    None if nothing is replayed, recorded or attached (losses).

    `sources` are of all packed tokens, `own` of those of this rank.
    """
    if rows.experts is None or rows.prompt_experts is None:
        is_asked = records or attach is not None
        return Routes(sources=sources, attach=attach) if is_asked else None
    given = torch.cat([rows.prompt_experts, rows.experts])[own]
    return Routes(given.to(device), attach=attach)
