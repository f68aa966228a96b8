"""Compares what weighs and leaves out tokens with its literal form; raises AssertionError if not.

Like `literal_comparison`: the modules are arguments, and masked tokens hold a NaN.
"""

import importlib
import math
from types import ModuleType
from typing import Any

import literal_rollout_correction as literal
import torch
from literal_comparison import assert_close, flatten
from literal_rollout_correction import Row
from ragged_batches import Batch

# (level, limit, floor, normalize)
WEIGHTS = (
    ("token", 1.7, None, False),
    ("sequence", 2.3, None, False),
    ("token", 3.0, 0.4, False),
    ("sequence", 4.0, 0.21, False),
    ("token", 1.7, None, True),
    ("sequence", 2.3, None, True),
    ("token", 3.0, 0.4, True),
)
# (mode, low, high); no sum of multiples of 1/64 lies on a bound.
REJECTIONS = (
    ("token_k1", 0.31, 2.1),
    ("token_k2", None, 0.5123),
    ("token_k3", None, 0.8123),
    ("seq_sum_k1", 0.11, 4.1),
    ("seq_sum_k2", None, 3.0123),
    ("seq_sum_k3", None, 4.0123),
    ("seq_mean_k1", 0.61, 1.51),
    ("seq_mean_k2", None, 0.7123),
    ("seq_mean_k3", None, 1.0123),
    ("seq_max_k1", None, 2.31),
    ("seq_max_k2", None, 1.5123),
    ("seq_max_k3", None, 2.0123),
)
METHODS = ("pow", "max_min", "max_random")


def rows_of(batch: Batch) -> list[Row]:
    columns = (batch.old_logprobs, batch.rollout_logprobs, batch.mask)
    return [Row(*row) for row in zip(*columns, strict=True)]


def columns_of(batch: Batch, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    names = ("old_logprobs", "rollout_logprobs")
    columns = (batch.flat_poisoned(name, dtype) for name in names)
    return (*columns, batch.flat_mask, batch.lengths)


def corrections(module: ModuleType) -> list[Any]:
    """One of each weighing and each mode, and one of all modes."""
    modes = [module.Rejection(mode, high=high, low=low) for mode, low, high in REJECTIONS]
    weighing = [
        module.Correction(level, limit, floor, normalize)
        for level, limit, floor, normalize in WEIGHTS
    ]
    rejecting = [module.Correction(rejection=(mode,)) for mode in modes]
    return [*weighing, *rejecting, module.Correction("token", 1.7, rejection=tuple(modes))]


def literal_weights(batch: Batch, correction: Any) -> list[list[float]]:
    return literal.weights(
        rows_of(batch),
        correction.weights,
        correction.weight_limit,
        correction.weight_floor,
        correction.normalize,
    )


def compare_correction(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    rows, columns = rows_of(batch), columns_of(batch, dtype)
    for correction in corrections(module):
        corrected = module.correct(correction, *columns)
        kept = [
            trained
            and all(literal.is_kept(row, t, m.mode, m.low, m.high) for m in correction.rejection)
            for row in rows
            for t, trained in enumerate(row.mask)
        ]
        assert corrected.mask.tolist() == kept
        if correction.weights == "none":
            assert corrected.weights is None
            continue
        expected = literal_weights(batch, correction)
        assert corrected.weights.dtype == dtype
        assert_close(corrected.weights, flatten(expected))


def compare_row_weights(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    rows, columns = rows_of(batch), columns_of(batch, dtype)
    for correction in corrections(module):
        if correction.weights != "none":
            weights = module.correct(correction, *columns).weights
            ours = module.row_weights(weights, batch.flat_mask, batch.lengths)
            expected = [
                literal.geometric_mean(row, values)
                for row, values in zip(rows, literal_weights(batch, correction), strict=True)
                for _ in values
            ]
            assert_close(ours, expected, 2e-6)


def compare_diagnostics(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    correct = importlib.import_module("ppojob_trainer.algorithms.rollout_correction").correct
    rows, columns = rows_of(batch), columns_of(batch, dtype)
    for correction in corrections(module):
        corrected = correct(correction, *columns)
        ours = module.diagnostics(correction, corrected, *columns)
        if not any(map(any, batch.mask)):
            assert ours == {}
            continue
        expected = literal.distances(rows)
        if correction.weights != "none":
            bounds = (correction.weight_limit, correction.weight_floor)
            found = literal.of_weights(rows, correction.weights, *bounds)
            expected |= {f"rollout_is_{name}": value for name, value in found.items()}
        for one in correction.rejection:
            found = literal.of_rejection(rows, one.mode, one.low, one.high)
            expected |= {f"rollout_rs_{one.mode}_{name}": v for name, v in found.items()}
        others = {
            "rollout_corr/rollout_is_batch_norm_factor",
            "rollout_corr/rollout_rs_masked_fraction",
            "rollout_corr/rollout_rs_seq_masked_fraction",
        }
        assert ours.keys() - others == {f"rollout_corr/{name}" for name in expected}
        for name, value in expected.items():
            assert_metric(name, ours[f"rollout_corr/{name}"], value)


def assert_metric(name: str, ours: float, theirs: float, tolerance: float = 1e-5) -> None:
    """Sums of float32 are behind it; of a NaN only another is close."""
    if math.isnan(theirs):
        assert math.isnan(ours), name
        return
    # A deviation is a root: rounding at 0 is as large as its square root.
    allowed = 1e-3 if name.endswith("std") else tolerance
    assert abs(ours - theirs) <= allowed * max(1.0, abs(theirs)), f"{name}: {ours}, {theirs}"


def compare_high_entropy(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    """A token stays if fewer than the share of the trained tokens have more entropy."""
    values = flatten(batch.values)
    trained = [t for t, kept in enumerate(batch.flat_mask.tolist()) if kept]
    for share in (0.01, 0.2, 0.5, 0.99, 1.0):
        count = max(1, math.floor(share * len(trained)))
        expected = [
            t in trained and sum(values[k] > values[t] for k in trained) < count
            for t in range(len(values))
        ]
        columns = (batch.flat_poisoned("values", dtype), batch.flat_mask)
        chosen, threshold = module.high_entropy(*columns, share)
        assert chosen.tolist() == expected
        kept = [values[t] for t, one in enumerate(expected) if one]
        assert threshold == min(kept) if kept else math.isnan(threshold)


def compare_off_policy(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    names = ("logprobs", "rollout_logprobs", "advantages")
    columns = [batch.flat_poisoned(name, dtype) for name in names]
    rows = [
        Row(*row) for row in zip(batch.logprobs, batch.rollout_logprobs, batch.mask, strict=True)
    ]
    for threshold in (0.0123, 0.3123, 0.7123):
        expected = [
            row.mask[t] and literal.is_off_policy(row, advantages[t], threshold)
            for row, advantages in zip(rows, batch.advantages, strict=True)
            for t in range(len(row.mask))
        ]
        found = module.off_policy(*columns, batch.flat_mask, batch.lengths, threshold)
        assert found.tolist() == expected


def scores_of(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the rewards of trained tokens, and which rows have some; 9 where a row has none."""
    sums = [
        math.fsum(reward for reward, trained in zip(row, mask, strict=True) if trained)
        if any(mask)
        else 9.0
        for row, mask in zip(batch.rewards, batch.mask, strict=True)
    ]
    return torch.tensor(sums, dtype=torch.float64), torch.tensor([any(m) for m in batch.mask])


def compare_resampling(module: ModuleType, batch: Batch, dtype: torch.dtype) -> None:
    scores, is_trained = scores_of(batch)
    for method in METHODS:
        weights = module.resampling_weights(scores, is_trained, method=method, power=1.5)
        expected = literal.drawing_weights(scores.tolist(), is_trained.tolist(), method, 1.5)
        assert_close(weights, expected)
        draws = [(0.6180339887 * place + 0.0123456) % 1.0 for place in range(len(expected))]
        found = module.drawn(weights, torch.tensor(draws, dtype=torch.float64))
        assert found.tolist() == literal.times_drawn(weights.tolist(), draws)
