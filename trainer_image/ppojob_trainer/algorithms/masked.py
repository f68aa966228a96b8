"""Sums, means and whitening over the trained tokens of ragged rows.

Columns are flat: the tokens of all rows, concatenated in row order. `values` are (tokens,) floats,
`lengths` (rows,) int64 are the tokens of each row, `mask` (tokens,) is True at trained tokens. A
masked token may hold any number, also NaN: it is replaced before the arithmetic, because zero times
NaN is NaN.

Sums run over consecutive tokens in a fixed order, so equal input gives equal bits. Scatter-adds are
not used: their order is not fixed on a GPU.
"""

import torch
from torch import Tensor

WHITEN_EPSILON = 1e-8
"""Added to the variance by `whiten`, as verl does."""


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values with zeros where `mask` is False.

    The gradient at a masked token is exactly zero, also if later operations give NaN there.
    """
    return torch.where(mask, values, values.new_zeros(()))


def segment_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sum consecutive segments of a flat column: (n,) -> (segments,); an empty one gives 0."""
    if values.numel() == 0:
        # The product keeps the result on the graph of `values`.
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
    """Return (n,) int64, the indices of the rows with a trained token."""
    return row_count(mask, lengths).nonzero()[:, 0]


def row_ends(mask: Tensor, lengths: Tensor) -> Tensor:
    """Return (n,) int64, the last trained token of each row that has one."""
    counts = row_count(mask, lengths)
    return mask.nonzero()[:, 0][counts.cumsum(0)[counts > 0] - 1]


def row_mean(values: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Average the trained tokens of each row: (rows,); a row without any gives 0."""
    counts = row_count(mask, lengths).clamp(min=1)
    return row_sum(values, mask, lengths) / counts.to(values.dtype)


def row_max(values: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Return (rows,) the maximum over the trained tokens of each row, at least 0."""
    if values.numel() == 0:
        return row_sum(values, mask, lengths)
    trained = zero_outside(values, mask)
    return torch.segment_reduce(trained, "max", lengths=lengths, initial=0.0)


def discounted_sum(values: Tensor, lengths: Tensor, discount: float | Tensor) -> Tensor:
    """Sum the entries after each one in its segment, discounted: `S_t = x_t + γ S_{t+1}`.

    (n,) -> (n,). The discount γ is one number, or (segments,), one per segment.
    """
    sums = values.clone()
    ends = lengths.cumsum(0)
    # From the last entry of each segment backwards, all segments at once.
    for back in range(1, int(lengths.max()) if lengths.numel() else 0):
        longer = lengths > back
        at = ends[longer] - 1 - back
        factor = discount[longer] if isinstance(discount, Tensor) else discount
        sums[at] += factor * sums[at + 1]
    return sums


def returns_to_go(
    token_rewards: Tensor, mask: Tensor, lengths: Tensor, gamma: float = 1.0
) -> Tensor:
    """Sum the rewards of each trained token and of those after it in its row: (tokens,) float64.

    Each further trained token counts γ times less; masked tokens get 0.
    """
    rewards = token_rewards.to(torch.float64)[mask]
    returns = rewards.new_zeros(mask.shape)
    returns[mask] = discounted_sum(rewards, row_count(mask, lengths), gamma)
    return returns


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum all trained tokens: a scalar."""
    return zero_outside(values, mask).sum()


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Shift and scale the trained tokens to mean 0 and variance 1.

    `(x - mean) / sqrt(var + 1e-8)` with the unbiased variance, over the trained tokens of the
    batch.

    Departs from verl: masked tokens give 0, where verl shifts them too; a single trained token
    gives 0, where verl raises an error.
    """
    count = int(mask.sum())
    if count < 2:
        return zero_outside(values, mask) * 0.0
    trained = zero_outside(values, mask).to(torch.float64)
    mean = trained.sum() / count
    centered = zero_outside(trained - mean, mask)
    variance = centered.square().sum() / (count - 1)
    return (centered * torch.rsqrt(variance + WHITEN_EPSILON)).to(values.dtype)
