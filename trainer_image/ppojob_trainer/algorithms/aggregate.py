"""Loss aggregation: five ways to reduce token losses to one number.

Denominators are counts of the whole mini-batch over all ranks, so values and gradients of
micro-batches and ranks add up to those of the mini-batch.
"""

from torch import Tensor

from ppojob_trainer.algorithms.masked import masked_sum, row_mean

AGGREGATIONS = (
    "token_mean",
    "token_sum",
    "sequence_mean_token_sum",
    "sequence_mean_token_sum_norm",
    "sequence_mean_token_mean",
)
"""The names of `spec.algorithm.lossAggregation`."""


def aggregate(
    values: Tensor,
    mask: Tensor,
    lengths: Tensor,
    mode: str,
    *,
    global_tokens: float,
    global_sequences: float,
    scale_tokens: float | None = None,
) -> Tensor:
    """Return a micro-batch's share of the mini-batch's value.

    T are the trained tokens and N the sequences of the mini-batch, L the scale, n_i the trained
    tokens of row i:

    | mode                         | value               | source                                |
    |------------------------------|---------------------|---------------------------------------|
    | token_mean                   | Σ_i Σ_t v / T       | DAPO (arXiv:2503.14476), eq. 12       |
    | token_sum                    | Σ_i Σ_t v           |                                       |
    | sequence_mean_token_sum      | Σ_i Σ_t v / N       | REINFORCE on whole responses          |
    | sequence_mean_token_sum_norm | Σ_i Σ_t v / (N L)   | Dr. GRPO (arXiv:2503.20783), sec. 3.2 |
    | sequence_mean_token_mean     | Σ_i (Σ_t v / n_i)/N | GRPO (arXiv:2402.03300), eq. 3        |

    Departs from verl: masked values never count, not even NaN; a row's mean divides by its exact
    token count (verl adds 1e-8); counts of the mini-batch are required (verl falls back to the
    micro-batch).

    T and N may be 0 where no token is trained: the value is 0, with zero gradient.
    """
    tokens, sequences = global_tokens or 1.0, global_sequences or 1.0
    if mode == "sequence_mean_token_mean":
        return row_mean(values, mask, lengths).sum() / sequences
    total = masked_sum(values, mask)
    if mode == "token_sum":
        return total
    if mode == "token_mean":
        return total / tokens
    of_rows = total / sequences
    if mode == "sequence_mean_token_sum":
        return of_rows
    assert mode == "sequence_mean_token_sum_norm", mode
    assert scale_tokens is not None, "this mode needs a scale"
    return of_rows / scale_tokens
