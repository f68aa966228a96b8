"""Rollout correction once more, token by token, as its papers and verl write it down.

A row is its columns of log-probabilities and its mask. Everything is plain numbers.
"""

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A response: log pi of the trainer, log mu of the engine, and what is trained."""

    trainer: list[float]
    engine: list[float]
    mask: list[bool]

    @property
    def times(self) -> list[int]:
        return [t for t, trained in enumerate(self.mask) if trained]

    def log_ratio(self, t: int) -> float:
        return self.trainer[t] - self.engine[t]

    def log_product(self) -> float:
        return math.fsum(self.log_ratio(t) for t in self.times)


def cut(log_ratio: float) -> float:
    return min(max(log_ratio, -20.0), 20.0)


def ratio_at(row: Row, t: int, level: str) -> float:
    return math.exp(cut(row.log_ratio(t) if level == "token" else row.log_product()))


def weight(ratio: float, limit: float, floor: float | None) -> float:
    if floor is None:
        return min(ratio, limit)
    return ratio if floor <= ratio <= limit else 0.0


def weights(
    rows: list[Row], level: str, limit: float, floor: float | None, normalize: bool
) -> list[list[float]]:
    found = [
        [
            weight(ratio_at(row, t, level), limit, floor) if trained else 0.0
            for t, trained in enumerate(row.mask)
        ]
        for row in rows
    ]
    if normalize:
        counted = [
            values[t]
            for row, values in zip(rows, found, strict=True)
            for t in (row.times if level == "token" else row.times[:1])
        ]
        mean = math.fsum(counted) / len(counted) if counted else 1.0
        if mean > 1e-8:
            found = [[value / mean for value in values] for values in found]
    return found


def divergence(log_ratio: float, kind: str) -> float:
    if kind == "k1":
        return -cut(log_ratio)
    if kind == "k2":
        return cut(log_ratio) ** 2 / 2.0
    return math.exp(cut(log_ratio)) - 1.0 - cut(log_ratio)


def divergence_at(row: Row, t: int, mode: str) -> float:
    over, kind = mode.rsplit("_", 1)
    if over == "token":
        return divergence(row.log_ratio(t), kind)
    all_of_them = [divergence(row.log_ratio(k), kind) for k in row.times]
    if over == "seq_sum":
        return math.fsum(all_of_them)
    if over == "seq_mean":
        return math.fsum(all_of_them) / len(all_of_them)
    return max(0.0, *all_of_them)


def is_kept(row: Row, t: int, mode: str, low: float | None, high: float) -> bool:
    value = divergence_at(row, t, mode)
    if mode.endswith("k1"):
        return math.log(low or 1.0) <= value <= math.log(high)
    return value <= high


def geometric_mean(row: Row, values: list[float]) -> float:
    logs = [math.log(values[t] + 1e-10) for t in row.times]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 1.0


def distances(rows: list[Row]) -> dict[str, float]:
    rows = [row for row in rows if row.times]
    ratios = [row.log_ratio(t) for row in rows for t in row.times]
    ours = [statistics.fmean(row.trainer[t] for t in row.times) for row in rows]
    theirs = [statistics.fmean(row.engine[t] for t in row.times) for row in rows]
    further = [b - a for a, b in zip(ours, theirs, strict=True)]
    return {
        "training_ppl": statistics.fmean(math.exp(-a) for a in ours),
        "training_log_ppl": -statistics.fmean(ours),
        "rollout_ppl": statistics.fmean(math.exp(-b) for b in theirs),
        "rollout_log_ppl": -statistics.fmean(theirs),
        "kl": -statistics.fmean(ratios),
        "k3_kl": statistics.fmean(divergence(ratio, "k3") for ratio in ratios),
        "log_ppl_diff": statistics.fmean(further),
        "log_ppl_abs_diff": statistics.fmean(map(abs, further)),
        "log_ppl_diff_max": max(further),
        "log_ppl_diff_min": min(further),
        "ppl_ratio": statistics.fmean(map(math.exp, further)),
        "chi2_token": statistics.fmean(math.exp(cut(ratio)) ** 2 for ratio in ratios) - 1.0,
        "chi2_seq": statistics.fmean(math.exp(cut(r.log_product())) ** 2 for r in rows) - 1.0,
    }


def of_weights(rows: list[Row], level: str, limit: float, floor: float | None) -> dict[str, float]:
    rows = [row for row in rows if row.times]
    low = 1.0 / limit if floor is None else floor
    raw = [[ratio_at(row, t, level) for t in row.times] for row in rows]
    applied = [[weight(ratio, limit, floor) for ratio in ratios] for ratios in raw]
    flat = [value for values in applied for value in values]
    of_rows = [statistics.fmean(values) for values in applied]
    raw_of_rows = [statistics.fmean(values) for values in raw]
    if level == "token":
        judged = [ratio for ratios in raw for ratio in ratios]
        largest, least = max(flat), min(flat)
    else:
        judged = raw_of_rows
        largest = math.exp(min(max(row.log_product() for row in rows), 20.0))
        least = math.exp(min(row.log_product() for row in rows))
    square = statistics.fmean(value**2 for value in flat)
    found = {
        "mean": statistics.fmean(flat),
        "std": math.sqrt(max(square - statistics.fmean(flat) ** 2, 0.0)),
        "max": largest,
        "min": least,
        "eff_sample_size": statistics.fmean(flat) ** 2 / square if square else math.nan,
        "ratio_fraction_high": statistics.fmean(ratio > limit for ratio in judged),
        "ratio_fraction_low": statistics.fmean(ratio < low for ratio in judged),
        "seq_mean": statistics.fmean(of_rows),
        "seq_std": statistics.stdev(of_rows) if len(of_rows) > 1 else 0.0,
        "seq_max": max(of_rows),
        "seq_min": min(of_rows),
        "seq_max_deviation": max(abs(value - 1.0) for value in of_rows),
        "seq_fraction_high": statistics.fmean(value > limit for value in raw_of_rows),
        "seq_fraction_low": statistics.fmean(value < low for value in raw_of_rows),
    }
    if floor is not None:
        outside = [not floor <= ratio <= limit for ratios in raw for ratio in ratios]
        found["oob_ratio"] = statistics.fmean(outside)
    return found


def of_rejection(rows: list[Row], mode: str, low: float | None, high: float) -> dict[str, float]:
    rows = [row for row in rows if row.times]
    values = [[divergence_at(row, t, mode) for t in row.times] for row in rows]
    kept = [[is_kept(row, t, mode, low, high) for t in row.times] for row in rows]
    flat = [value for of_row in values for value in of_row]
    of_rows = [statistics.fmean(of_row) for of_row in values]
    is_k1 = mode.endswith("k1")
    top, bottom = (math.log(high), math.log(low or 1.0)) if is_k1 else (high, 0.0)
    judged = flat if mode.startswith("token") else of_rows
    within = [min(max(value, bottom), top) for value in flat]
    found = {
        "mean": statistics.fmean(flat),
        "max": max(judged),
        "min": min(judged),
        "std": statistics.pstdev(within),
        "fraction_high": statistics.fmean(value > top for value in judged),
        "fraction_low": statistics.fmean(is_k1 and value < bottom for value in judged),
        "seq_mean": statistics.fmean(of_rows),
        "seq_std": statistics.stdev(of_rows) if len(of_rows) > 1 else 0.0,
        "seq_max": max(of_rows),
        "seq_min": min(of_rows),
        "seq_max_deviation": max(map(abs, of_rows)),
        "seq_fraction_high": statistics.fmean(value > top for value in of_rows),
        "masked_fraction": statistics.fmean(not one for of_row in kept for one in of_row),
        "seq_masked_fraction": statistics.fmean(not all(of_row) for of_row in kept),
    }
    if is_k1:
        found["seq_fraction_low"] = statistics.fmean(value < bottom for value in of_rows)
    return found


def is_off_policy(row: Row, advantage: float, threshold: float) -> bool:
    """Of a trained token of a row whose `trainer` is the policy in the update."""
    fall = math.fsum(row.engine[t] - row.trainer[t] for t in row.times) / len(row.times)
    return advantage < 0.0 and fall > threshold


def drawing_weights(
    scores: list[float], trained: list[bool], method: str, power: float
) -> list[float]:
    """Of PF-PPO's resampling; a row without a trained token is never drawn."""
    candidates = [score for score, one in zip(scores, trained, strict=True) if one]
    found = []
    for score, one in zip(scores, trained, strict=True):
        if not one:
            found.append(0.0)
        elif method == "pow":
            found.append(abs(score) ** power + 1e-8)
        elif method == "max_min":
            found.append((1.0 if score in (max(candidates), min(candidates)) else 0.0) + 1e-8)
        else:
            found.append((0.4 if score == max(candidates) else 0.1) + 1e-8)
    return found


def times_drawn(weights: list[float], draws: list[float]) -> list[int]:
    times = [0] * len(weights)
    candidates = [row for row, weight in enumerate(weights) if weight > 0.0]
    for draw in draws[: len(candidates)]:
        left = draw * sum(weights)
        for row in candidates:
            if left < weights[row] or row == candidates[-1]:
                times[row] += 1
                break
            left -= weights[row]
    return times
