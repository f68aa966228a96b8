"""Sums, means and whitening over the trained tokens of ragged rows.

Columns are flat: the tokens of all rows one after the other in row order. `values` (tokens,) are
floats, `lengths` (rows,) int64 says how many tokens belong to each row, and `mask` (tokens,) is
True where a token is trained. Whatever a masked token holds, a NaN included, changes neither a
value nor a gradient here: it is replaced before the arithmetic, because a product with zero would
keep the NaN.

Sums run over consecutive tokens in a fixed order, so equal input gives equal bits; scatter-adds,
whose order differs from run to run on a GPU, are not used.
"""

import torch
from torch import Tensor

WHITEN_EPSILON = 1e-8
"""Added to the variance by `whiten`, as verl does."""


def zero_outside(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the values with zeros where `mask` is False.

    The gradient at a masked token is exactly zero, also when what follows gives a NaN there. With
    None for the mask every token counts.
    """
    return values if mask is None else torch.where(mask, values, values.new_zeros(()))


def segment_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sum consecutive segments of a flat column: (n,) -> (segments,); an empty one gives 0."""
    if values.numel() == 0:
        # There is nothing to reduce; the product keeps the result on the graph of `values`.
        return values.sum() * lengths.to(values.dtype)
    return torch.segment_reduce(values, "sum", lengths=lengths, initial=0.0)


def row_sum(values: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Sum the trained tokens of each row: (rows,); a row without any gives 0."""
    return segment_sum(zero_outside(values, mask), lengths)


def row_count(mask: Tensor, lengths: Tensor) -> Tensor:
    """Count the trained tokens of each row: (rows,) int64."""
    # float64 counts exactly up to 2**53 and is a dtype that segment_reduce takes.
    return segment_sum(mask.to(torch.float64), lengths).to(torch.int64)


def rows_with_any(mask: Tensor, lengths: Tensor) -> Tensor:
    """(n,) int64: the numbers of the rows that hold a trained token."""
    return row_count(mask, lengths).nonzero()[:, 0]


def row_ends(mask: Tensor, lengths: Tensor) -> Tensor:
    """(n,) int64: the last trained token of each row that holds one."""
    counts = row_count(mask, lengths)
    return mask.nonzero()[:, 0][counts.cumsum(0)[counts > 0] - 1]


def row_mean(values: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Average the trained tokens of each row: (rows,); a row without any gives 0."""
    counts = row_count(mask, lengths).clamp(min=1)
    return row_sum(values, mask, lengths) / counts.to(values.dtype)


def row_max(values: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """The largest trained token of each row, 0 where none is above: (rows,)."""
    if values.numel() == 0:
        return row_sum(values, mask, lengths)
    kept = zero_outside(values, mask)
    return torch.segment_reduce(kept, "max", lengths=lengths, initial=0.0)


def discounted_sum(values: Tensor, lengths: Tensor, discount: float | Tensor) -> Tensor:
    """Sum what follows each entry of its segment, a factor less for each step away.

    `S_t = x_t + γ S_{t+1}` within each segment, S = 0 past its end: (n,) -> (n,). The factor γ is
    one for all, or one for each segment: (segments,).
    """
    sums = values.clone()
    ends = lengths.cumsum(0)
    # Step by step from the back, all segments at once: entry -1 of each, then -2, and so on.
    for back in range(1, int(lengths.max()) if lengths.numel() else 0):
        longer = lengths > back
        at = ends[longer] - 1 - back
        factor = discount[longer] if isinstance(discount, Tensor) else discount
        sums[at] += factor * sums[at + 1]
    return sums


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum all trained tokens: a scalar."""
    return zero_outside(values, mask).sum()


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Shift and scale the trained tokens to mean 0 and variance 1.

    `(x - mean) / sqrt(var + 1e-8)` with the unbiased variance (divided by n - 1), both over the
    trained tokens of the whole batch.

    Departs from verl: masked tokens give 0, where verl shifts them too; a single trained token
    gives 0 (it equals its mean), where verl raises an error.
    """
    count = int(mask.sum())
    if count < 2:
        return zero_outside(values, mask) * 0.0
    kept = zero_outside(values, mask).to(torch.float64)
    mean = kept.sum() / count
    centered = zero_outside(kept - mean, mask)
    variance = centered.square().sum() / (count - 1)
    return (centered * torch.rsqrt(variance + WHITEN_EPSILON)).to(values.dtype)
