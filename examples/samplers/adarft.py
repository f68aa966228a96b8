"""Rows as hard as the policy is good: AdaRFT (arXiv:2504.05520), algorithm 1.

data:
  sampler:
    source: {path: examples/samplers/adarft.py}
    function: adaptive
    arguments: {column: level, step_size: 0.5, largest: 5}
    columns: [level]
"""

import numpy as np


def adaptive(
    step, seed, count, rows, state, *,
    column, start=0.0, smallest=0.0, largest=100.0, step_size=50.0, sharpness=2.0, wanted=0.5,
):  # fmt: skip
    """Take the rows whose difficulty is nearest to a target, which follows the mean score.

    The state is the target of the step before. Of rows that are as near, those that were drawn
    least come first.
    """
    difficulty = np.array(rows[column], dtype=float)
    target = start if state is None else state
    before = rows["last_score"][rows["last_step"] == step - 1]
    if state is not None and np.isfinite(before).any():
        ahead = np.nanmean(before) - wanted
        target = float(np.clip(target + step_size * np.tanh(sharpness * ahead), smallest, largest))
    order = np.lexsort((rows["draws"], np.abs(difficulty - target)))
    return order[:count], target
