"""The algorithms once more, as slow and as literal as the papers write them.

Loops over tokens in plain Python floats, nothing of the product, no tensors. A *column* is a list
of rows, a row a list of numbers, one a token; `mask` is such a column of booleans.
"""

import math
import struct
from statistics import mean, pvariance, stdev

Column = list[list[float]]
Mask = list[list[bool]]


def scores(rewards: Column, mask: Mask) -> list[float | None]:
    """Sum of the trained tokens' rewards; None where a row has no trained token."""
    result: list[float | None] = []
    for row, trained in zip(rewards, mask, strict=True):
        kept = [r for r, m in zip(row, trained, strict=True) if m]
        result.append(math.fsum(kept) if kept else None)
    return result


def peers(i: int, values: list[float | None], groups: list[int]) -> list[int]:
    """Rows with a score in the group of row i, row i included."""
    return [j for j in range(len(values)) if groups[j] == groups[i] and values[j] is not None]


def on_tokens(values: list[float], mask: Mask) -> Column:
    """Of scores on the tokens of their rows; where some are rejected, `mask` is what is left."""
    return [
        [value if m else 0.0 for m in trained] for value, trained in zip(values, mask, strict=True)
    ]


def grpo(
    rewards: Column,
    mask: Mask,
    groups: list[int],
    normalize_by_std: bool = True,
    kept: Mask | None = None,
) -> Column:
    s = scores(rewards, mask)
    result = []
    for i, own in enumerate(s):
        if own is None:
            result.append(0.0)
            continue
        group = [s[j] for j in peers(i, s, groups)]
        baseline, std = (0.0, 1.0) if len(group) == 1 else (mean(group), stdev(group))
        result.append((own - baseline) / (std + 1e-6 if normalize_by_std else 1.0))
    return on_tokens(result, kept or mask)


def grpo_passk(
    rewards: Column,
    mask: Mask,
    groups: list[int],
    normalize_by_std: bool = True,
    kept: Mask | None = None,
) -> Column:
    s = scores(rewards, mask)
    result = []
    for i, own in enumerate(s):
        group = sorted((s[j] for j in peers(i, s, groups)), reverse=True)
        if own is None:
            result.append(0.0)
            continue
        second, std = (group[1], stdev(group)) if len(group) > 1 else (0.0, 1.0)
        ahead = own - second if len(group) == 1 or own > second else 0.0
        result.append(ahead / (std + 1e-6 if normalize_by_std else 1.0))
    return on_tokens(result, kept or mask)


def gpg(rewards: Column, mask: Mask, groups: list[int], kept: Mask | None = None) -> Column:
    known = [score for score in scores(rewards, mask) if score is not None]
    scale = len(known) / max(1, sum(score != 0.0 for score in known))
    plain = grpo(rewards, mask, groups, normalize_by_std=False, kept=kept)
    return [[scale * value for value in row] for row in plain]


def maxrl(rewards: Column, mask: Mask, groups: list[int], kept: Mask | None = None) -> Column:
    s = scores(rewards, mask)
    result = []
    for i, own in enumerate(s):
        group = [s[j] for j in peers(i, s, groups)]
        if own is None or len(group) == 1:
            result.append(own or 0.0)
        else:
            center = mean(group)
            result.append((own - center) / (center + 1e-6) if center > 0.0 else 0.0)
    return on_tokens(result, kept or mask)


def spo(
    rewards: Column, mask: Mask, groups: list[int], baselines: list[float], kept: Mask | None = None
) -> Column:
    """`baselines` are of the rows."""
    ahead = [
        None if s is None else s - v for s, v in zip(scores(rewards, mask), baselines, strict=True)
    ]
    known = [value for value in ahead if value is not None]
    if len(known) < 2:
        return on_tokens([0.0 for _ in ahead], kept or mask)
    center, deviation = mean(known), stdev(known) + 1e-8
    return on_tokens(
        [0.0 if value is None else (value - center) / deviation for value in ahead], kept or mask
    )


def online_dpo(rewards: Column, mask: Mask, groups: list[int], kept: Mask | None = None) -> Column:
    """The first of the best responses of a group is chosen, the first of the worst rejected.

    Of scores as float32 has them.
    """
    s = [
        score and struct.unpack("f", struct.pack("f", score))[0] for score in scores(rewards, mask)
    ]
    result = [0.0 for _ in s]
    for group in set(groups):
        own = [i for i, score in enumerate(s) if score is not None and groups[i] == group]
        best, worst = (pick(own, key=lambda i: s[i], default=-1) for pick in (max, min))
        if own and s[best] != s[worst]:
            result[best], result[worst] = 1.0, -1.0
    return on_tokens(result, kept or mask)


def reinforce(rewards: Column, mask: Mask, groups: list[int], kept: Mask | None = None) -> Column:
    return on_tokens([score or 0.0 for score in scores(rewards, mask)], kept or mask)


def remax(rewards: Column, mask: Mask, greedy: list[float]) -> Column:
    """What is still to come less what the greedy response had."""
    return [
        [total - baseline if m else 0.0 for total, m in zip(row, trained, strict=True)]
        for row, trained, baseline in zip(
            discounted_returns(rewards, mask, 1.0), mask, greedy, strict=True
        )
    ]


def gdpo(
    rewards: list[list[float]],
    weights: list[float],
    mask: Mask,
    groups: list[int],
    normalize_by_std: bool = True,
    kept: Mask | None = None,
) -> Column:
    """Every reward by itself as in grpo, then their weighted sum, then all tokens of the batch."""
    total = [[0.0 for _ in row] for row in mask]
    for of_rows, weight in zip(rewards, weights, strict=True):
        column = []
        for trained, own in zip(mask, of_rows, strict=True):
            last = max((t for t in range(len(trained)) if trained[t]), default=None)
            column.append([own if t == last else 0.0 for t in range(len(trained))])
        compared = grpo(column, mask, groups, normalize_by_std)
        for i in range(len(mask)):
            for t in range(len(mask[i])):
                total[i][t] += weight * compared[i][t]
    return whiten(total, kept or mask)


def gigpo(
    rewards: Column,
    mask: Mask,
    groups: list[int],
    anchors: list[list[int]],
    weight: float,
    gamma: float,
    normalize_by_std: bool = True,
    kept: Mask | None = None,
) -> Column:
    """Rows as in grpo; every turn with those of the same state, by what it and later ones had."""
    result = grpo(rewards, mask, groups, normalize_by_std)
    turns = []  # state, tokens, what is still to come
    for i, trained in enumerate(mask):
        own = []
        for t, m in enumerate(trained):
            if m and (t == 0 or not trained[t - 1]):
                own.append(((groups[i], anchors[i][t]), []))
            if m:
                own[-1][1].append((i, t))
        earned = [math.fsum(rewards[i][t] for i, t in tokens) for _, tokens in own]
        for k, (state, tokens) in enumerate(own):
            later = math.fsum(gamma ** (j - k) * earned[j] for j in range(k, len(own)))
            turns.append((state, tokens, later))
    for state, tokens, later in turns:
        values = [other for same, _, other in turns if same == state]
        if len(values) == 1:
            continue
        ahead = (later - mean(values)) / (stdev(values) + 1e-6 if normalize_by_std else 1.0)
        for i, t in tokens:
            result[i][t] += weight * ahead
    return [
        [value if m else 0.0 for value, m in zip(row, left, strict=True)]
        for row, left in zip(result, kept or mask, strict=True)
    ]


def token_baseline(
    rewards: Column,
    mask: Mask,
    groups: list[int],
    logprobs: Column,
    squares: Column,
    weights: Column | None,
    counts_trained: bool,
) -> Column:
    """What a token has to come, less the weighted mean of its peers at the same place."""
    to_come, energy, places = discounted_returns(rewards, mask, 1.0), [], []
    for i, trained in enumerate(mask):
        total, number = 0.0, 0
        energy.append([])
        places.append([])
        for t, m in enumerate(trained):
            if m:
                own = 1.0 - 2.0 * math.exp(logprobs[i][t]) + squares[i][t]
                total += own * (weights[i][t] ** 2 if weights else 1.0)
            energy[-1].append(total)
            places[-1].append((number if counts_trained else t) if m else None)
            number += m
    result = []
    for i, trained in enumerate(mask):
        peers_of = [j for j in range(len(mask)) if groups[j] == groups[i]]
        others = [p for j in peers_of if j != i for p in places[j] if p is not None]
        row = []
        for t, m in enumerate(trained):
            if not m:
                row.append(0.0)
                continue
            above, below = 0.0, 1e-8
            for j in peers_of:
                for k, place in enumerate(places[j]):
                    if place == places[i][t]:
                        above += to_come[j][k] * energy[j][k]
                        below += energy[j][k]
            is_alone = all(place < places[i][t] for place in others)
            row.append(to_come[i][t] - (0.0 if is_alone else above / below))
        result.append(row)
    return result


def rloo(rewards: Column, mask: Mask, groups: list[int], kept: Mask | None = None) -> Column:
    s = scores(rewards, mask)
    result = []
    for i, own in enumerate(s):
        others = [s[j] for j in peers(i, s, groups) if j != i]
        baseline = mean(others) if others else 0.0
        result.append(0.0 if own is None else own - baseline)
    return on_tokens(result, kept or mask)


def opo(rewards: Column, mask: Mask, groups: list[int], kept: Mask | None = None) -> Column:
    s = scores(rewards, mask)
    lengths = [sum(trained) for trained in kept or mask]
    result = []
    for i, own in enumerate(s):
        group = peers(i, s, groups)
        baseline = 0.0
        if len(group) > 1:
            weighted = math.fsum(lengths[j] * s[j] for j in group)
            baseline = weighted / max(1, sum(lengths[j] for j in group))
        result.append(0.0 if own is None else own - baseline)
    return on_tokens(result, kept or mask)


def whiten(values: Column, mask: Mask) -> Column:
    kept = []
    for row, trained in zip(values, mask, strict=True):
        kept += [v for v, m in zip(row, trained, strict=True) if m]
    if len(kept) < 2:
        return [[0.0 for _ in row] for row in values]
    center = mean(kept)
    variance = math.fsum((v - center) ** 2 for v in kept) / (len(kept) - 1)
    scale = math.sqrt(variance + 1e-8)
    return [
        [(v - center) / scale if m else 0.0 for v, m in zip(row, trained, strict=True)]
        for row, trained in zip(values, mask, strict=True)
    ]


def discounted_returns(rewards: Column, mask: Mask, gamma: float) -> Column:
    """Σ γ^d r over the trained tokens from t on, d the trained tokens in between."""
    result = []
    for row, trained in zip(rewards, mask, strict=True):
        returns = []
        for t in range(len(row)):
            total, discount = 0.0, 1.0
            for k in range(t, len(row)):
                if trained[k]:
                    total += discount * row[k]
                    discount *= gamma
            returns.append(total if trained[t] else 0.0)
        result.append(returns)
    return result


def reinforce_plus_plus(rewards: Column, mask: Mask, groups: list[int], gamma: float) -> Column:
    return whiten(discounted_returns(rewards, mask, gamma), mask)


def reinforce_plus_plus_baseline(
    rewards: Column, mask: Mask, groups: list[int], kept: Mask | None = None
) -> Column:
    return whiten(grpo(rewards, mask, groups, normalize_by_std=False), kept or mask)


def whitened_rewards(rewards: Column, mask: Mask) -> Column:
    """TRL's masked_whiten with shift_mean=False: deviation 1, and the mean that they had."""
    pairs = [pair for row in zip(rewards, mask, strict=True) for pair in zip(*row, strict=True)]
    center = mean([r for r, m in pairs if m] or [0.0])
    return [[r + center for r in row] for row in whiten(rewards, mask)]


def length_adaptive_lambdas(mask: Mask, alpha: float) -> list[float]:
    """That of each row, such that Σ_t λ^t over all t >= 0 is α l; rows too short for it have 0."""
    lengths = [sum(row) for row in mask]
    return [1.0 - 1.0 / (alpha * length) if alpha * length > 1.0 else 0.0 for length in lengths]


def gae(
    rewards: Column, values: Column, mask: Mask, gamma: float, lam: float | list[float]
) -> tuple[Column, Column]:
    """Advantages before whitening and returns: Σ (γλ)^k δ, over the trained tokens from t on.

    λ is one for all, or one for each row.
    """
    lambdas = lam if isinstance(lam, list) else [lam] * len(mask)
    advantages, returns = [], []
    for row, known, trained, own in zip(rewards, values, mask, lambdas, strict=True):
        times = [t for t in range(len(row)) if trained[t]]
        errors = []
        for i, t in enumerate(times):
            following = known[times[i + 1]] if i + 1 < len(times) else 0.0
            errors.append(row[t] + gamma * following - known[t])
        advantages.append([0.0] * len(row))
        returns.append([0.0] * len(row))
        for i, t in enumerate(times):
            total = math.fsum((gamma * own) ** k * error for k, error in enumerate(errors[i:]))
            advantages[-1][t] = total
            returns[-1][t] = total + known[t]
    return advantages, returns


def value_loss(value: float, old: float, target: float, limit: float) -> float:
    bounded = min(max(value, old - limit), old + limit)
    return max((value - target) ** 2, (bounded - target) ** 2) / 2.0


def value_is_clipped(value: float, old: float, target: float, limit: float) -> bool:
    """Whether the value went further than the limit and is nearer to its target than there."""
    return abs(value - old) > limit and abs(value - target) < abs(
        old + math.copysign(limit, value - old) - target
    )


def explained_variance(values: Column, returns: Column, mask: Mask) -> float:
    known, wanted = [], []
    for row, targets, trained in zip(values, returns, mask, strict=True):
        known += [v for v, m in zip(row, trained, strict=True) if m]
        wanted += [r for r, m in zip(targets, trained, strict=True) if m]
    if len(set(wanted)) < 2:
        return 0.0
    errors = [r - v for v, r in zip(known, wanted, strict=True)]
    return 1.0 - pvariance(errors) / pvariance(wanted)


def aggregate(
    values: Column, mask: Mask, mode: str, tokens: float, sequences: float, scale: float
) -> float:
    total = 0.0
    for row, trained in zip(values, mask, strict=True):
        count = sum(trained)
        for value, m in zip(row, trained, strict=True):
            if not m:
                continue
            if mode == "token_mean":
                total += value / tokens
            elif mode == "token_sum":
                total += value
            elif mode == "sequence_mean_token_sum":
                total += value / sequences
            elif mode == "sequence_mean_token_sum_norm":
                total += value / sequences / scale
            elif mode == "sequence_mean_token_mean":
                total += value / count / sequences
    return total


def kl(logprob: float, ref: float, estimator: str) -> float:
    if estimator == "k1":
        return logprob - ref
    if estimator == "k2":
        return (logprob - ref) ** 2 / 2.0
    if estimator == "abs":
        return abs(logprob - ref)
    d = min(max(ref - logprob, -20.0), 20.0)
    return min(math.exp(d) - d - 1.0, 10.0)


def logprob_and_more(
    logits: list[float], target: int, temperature: float
) -> tuple[float, float, float, float]:
    """The log-probability, the entropy, Σ p², and the KL of the uniform distribution to p."""
    scaled = [z / temperature for z in logits]
    top = max(scaled)
    norm = math.fsum(math.exp(z - top) for z in scaled)
    logprobs = [z - top - math.log(norm) for z in scaled]
    entropy = -math.fsum(math.exp(p) * p for p in logprobs if p > -math.inf)
    squares = math.fsum(math.exp(p) ** 2 for p in logprobs)
    share = 1.0 / len(logits)
    certainty = math.fsum(share * (math.log(share) - p) for p in logprobs)
    return logprobs[target], entropy, squares, certainty
