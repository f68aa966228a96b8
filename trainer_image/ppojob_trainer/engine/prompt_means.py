"""The mean of the last hidden states of each prompt, whichever ranks have its tokens."""

import torch
from torch import Tensor

from ppojob_trainer.engine.layout import PackedRows
from ppojob_trainer.parallel.sequence import SequenceRanks
from ppojob_trainer.rows.experience import Experience


def prompt_means(
    states: Tensor, rows: Experience, packed: PackedRows, own: PackedRows, ranks: SequenceRanks
) -> Tensor:
    """(t, h) states of this rank's run of the packed tokens to (groups, h), float32 at least.

    Where each row has its prompt again, the mean is over all of them. All ranks are told the same.
    """
    wide = torch.float64 if states.dtype == torch.float64 else torch.float32
    lengths = rows.prompt_lengths
    of_tokens = torch.arange(rows.num_groups).repeat_interleave(lengths)
    is_read = (packed.sources >= 0) & (packed.sources < len(of_tokens))
    counts = of_tokens[packed.sources[is_read]].bincount(minlength=rows.num_groups)
    places = ((own.sources >= 0) & (own.sources < len(of_tokens))).nonzero()[:, 0]
    groups = of_tokens[own.sources[places]]
    # A product, as scattered sums have no order on a GPU.
    shares = torch.zeros(rows.num_groups, len(places), dtype=wide)
    shares[groups, torch.arange(len(places))] = 1.0 / counts[groups].to(wide)
    with torch.autocast(states.device.type, enabled=False):
        read = states.index_select(0, places.to(states.device)).to(wide)
        return ranks.total(shares.to(states.device) @ read)


def prompts_of_targets(rows: Experience, own: PackedRows) -> Tensor:
    """(trained,) int64: which prompt each trained token of a run answers."""
    return rows.row_groups[rows.token_rows][rows.mask][own.places.cpu()]
