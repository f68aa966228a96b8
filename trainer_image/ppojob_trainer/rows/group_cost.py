"""What a group costs a rank: work in units in which one token of attention context counts 1.

A transformer does `2 W` operations a token in its weight matrices (`W` weights in all) and, in
each of its `n` layers, `4 w` operations for every pair of a token and a token of its context (`w` =
heads times head size; two matrix products). So a row of `L` tokens costs

    2 W L + 4 n w L^2  =  4 n w (a L + L^2),    a = W / (2 n w).

verl's constant 24576 is `a` of a model of 7 billion weights: hidden size `h` = 4096, `w = h`,
`W = 12 n h^2`, no output layer counted: `a = 6 h`. The square is computed whole, as our attention
does; a kernel that leaves the future out would double `a`.
"""

from collections.abc import Sequence
from math import prod

from ppojob_trainer.models.architectures import EMBEDDING, Sizes, backbone_tensors
from ppojob_trainer.rows.batch_index import BatchIndex


def linear_cost(sizes: Sizes) -> int:
    """The cost `a` of a token in the weight matrices of a model.

    The output layer counts for every token, though prompt tokens do not pass through it.
    """
    blocks = sum(
        prod(shape)
        for name, shape in backbone_tensors(sizes)
        if len(shape) == 2 and name != EMBEDDING
    )
    weights = blocks + sizes.vocabulary * sizes.hidden
    return weights // (2 * sizes.layers * sizes.heads * sizes.head_size)


def group_cost(
    prompt_length: int, lengths: Sequence[int], linear: int, *, share_prompts: bool = True
) -> int:
    """The cost of a group; an integer, so that it is the same on every machine.

    Args:
        prompt_length: tokens of the prompt.
        lengths: tokens of each response.
        linear: `a`, see `linear_cost`.
        share_prompts: the prompt is computed once for all rows; else once a row.
    """
    rows = sum(_row_cost(prompt_length + length, linear) for length in lengths)
    if not share_prompts:
        return rows
    return rows - (len(lengths) - 1) * _row_cost(prompt_length, linear)


def group_costs(index: BatchIndex, linear: int, *, share_prompts: bool = True) -> list[int]:
    """(groups,) the cost of every group of a batch."""
    return [
        group_cost(prompt, index.group_lengths(p), linear, share_prompts=share_prompts)
        for p, prompt in enumerate(index.prompt_lengths)
    ]


def _row_cost(tokens: int, linear: int) -> int:
    return linear * tokens + tokens * tokens
