"""PRIME once more, as slow and as literal: loops over rows and tokens in plain Python floats.

Rewards of tokens and their baselines as in verl's recipe; the loss as in section 3 of the paper
(arXiv:2502.01456).
"""

import math
from statistics import mean

from literal_algorithms import Column, Mask, peers, scores, whiten


def trained_of(trained: list[bool]) -> list[int]:
    return [t for t, m in enumerate(trained) if m]


def process_rewards(rewards: Column, mask: Mask, normalize: bool) -> Column:
    """Those of trained tokens but the last; divided by the largest sum to come of the batch."""
    kept = [
        [r if t in trained_of(m)[:-1] else 0.0 for t, r in enumerate(row)]
        for row, m in zip(rewards, mask, strict=True)
    ]
    sums = [abs(math.fsum(row[t:])) for row in kept for t in range(len(row))]
    scale = max(sums, default=0.0) + 1e-6 if normalize else 1.0
    return [[r / scale for r in row] for row in kept]


def prime(
    rewards: Column,
    process: Column,
    mask: Mask,
    groups: list[int],
    process_weight: float,
    outcome_weight: float,
    normalize: bool,
    kept: Mask | None = None,
) -> tuple[Column, Column]:
    """Advantages and returns."""
    earned, s = process_rewards(process, mask, normalize), scores(rewards, mask)
    means = [
        mean(row[t] for t in trained_of(m)) if any(m) else None
        for row, m in zip(earned, mask, strict=True)
    ]
    returns = []
    for i, trained in enumerate(mask):
        own, places = [0.0] * len(trained), trained_of(trained)
        group = peers(i, s, groups)
        n = len(group)
        for t in places:
            value = earned[i][t]
            if n > 1:
                value = value * n / (n - 1) - sum(means[j] for j in group) / (n - 1)
            own[t] = process_weight * value
        if places:
            others = [s[j] for j in group if j != i]
            ahead = s[i] - (mean(others) if others else 0.0)
            own[places[-1]] += outcome_weight * ahead
        to_come = [math.fsum(own[t:]) for t in range(len(own))]
        chosen = (kept or mask)[i]
        returns.append([total if m else 0.0 for total, m in zip(to_come, chosen, strict=True)])
    return whiten(returns, kept or mask), returns


def outcome_loss(total: float, outcome: float) -> float:
    likely = 1.0 / (1.0 + math.exp(-total))
    return -(outcome * math.log(likely) + (1.0 - outcome) * math.log(1.0 - likely))


def metrics(
    process: Column,
    outcomes: list[float],
    mask: Mask,
    groups: list[int],
    beta: float,
    normalize: bool,
) -> dict[str, float]:
    own = [i for i, trained in enumerate(mask) if any(trained)]
    if not own:
        return {}
    normed = [math.fsum(row) for row in process_rewards(process, mask, normalize)]
    # What is divided orders rows as before, but for what rounding makes of equal sums.
    totals = [math.fsum(row) for row in process_rewards(process, mask, False)]
    raw = [sum(process[i][t] for t in trained_of(mask[i])) / beta for i in own]
    shares = []
    for group in {groups[i] for i in own}:
        rows = [i for i in own if groups[i] == group]
        pairs = [(i, j) for i in rows for j in rows if i < j and outcomes[i] != outcomes[j]]
        sizes = [abs(outcomes[i] - outcomes[j]) for i, j in pairs]
        right = [(totals[i] > totals[j]) == (outcomes[i] > outcomes[j]) for i, j in pairs]
        good = math.fsum(size for size, is_right in zip(sizes, right, strict=True) if is_right)
        shares.append(good / math.fsum(sizes) if pairs else 0.5)

    def sign(value: float) -> int:
        return (value > 0) - (value < 0)

    return {
        "reward_model/reward": mean(normed[i] for i in own),
        "reward_model/raw_reward": mean(raw),
        "reward_model/dpo_acc": mean(shares),
        "reward_model/dpo_acc_abs": mean(sign(totals[i]) == sign(2 * outcomes[i] - 1) for i in own),
    }
