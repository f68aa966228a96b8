"""The record of which experts tokens went to in a pass over rows, for later passes over them."""

from typing import Any

import torch
from torch import Tensor

from ppojob_trainer.models.pipeline_stages import PipelineStage, layers_of
from ppojob_trainer.models.routes import EXPERT_DTYPE, Attach, Routes, chosen_by_a_token
from ppojob_trainer.parallel.sequence import SequenceRanks
from ppojob_trainer.rows.experience import Experience


class RouterRecord:
    """Experts of all tokens of some rows, of their prompts once a group.

    Of a prompt that is computed several times the last one counts. Tokens that nobody reads have
    the first expert.
    """

    def __init__(self, rows: Experience, config: Any) -> None:
        """Begin a record of rows, with the configuration of the whole model."""
        self._rows = rows
        self._layers: int = config.num_hidden_layers
        self._sizes = [int(rows.prompt_lengths.sum()), rows.num_tokens]
        shape = (sum(self._sizes), self._layers, chosen_by_a_token(config))
        self._experts = torch.zeros(shape, dtype=EXPERT_DTYPE)

    def add(self, rows: Tensor, routes: Routes, ranks: SequenceRanks) -> None:
        """Note what a pass over some of the rows has chosen; ranks that share tokens do so."""
        chosen = ranks.every(routes.chosen(self._layers)).cpu()
        groups = torch.tensor(list(dict.fromkeys(self._rows.row_groups[rows].tolist())))
        of_prompts = self._rows.prompt_index(groups.to(torch.int64))
        places = torch.cat([of_prompts, self._sizes[0] + self._rows.token_index(rows)])
        packed = torch.arange(len(routes.sources))[routes.sources >= 0]
        last = torch.full(places.shape, -1)
        last.scatter_reduce_(0, routes.sources[packed], packed, "amax")
        self._experts[places[last >= 0]] = chosen[last[last >= 0]]

    def keep(self, stage: PipelineStage, device: torch.device) -> None:
        """Tell the rows, once all of them are noted; all stages do so together."""
        for number in range(stage.ranks.size if stage.ranks.size > 1 else 0):
            own = layers_of(number, range(stage.ranks.size), self._layers)
            part = self._experts[:, own.start : own.stop].contiguous().to(device)
            told = stage.ranks.told(part.view(torch.uint8), number).view(EXPERT_DTYPE)
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
    """The routes of a pass: those that the rows have, or those that routers choose.

    None where nobody asks: neither a record nor what attaches losses.

    `sources` are of all packed tokens, `own` of those of this rank.
    """
    if rows.experts is None or rows.prompt_experts is None:
        is_asked = records or attach is not None
        return Routes(sources=sources, attach=attach) if is_asked else None
    given = torch.cat([rows.prompt_experts, rows.experts])[own]
    return Routes(given.to(device), attach=attach)
