"""The policy losses once more, as slow and as literal as the papers write them.

One function a loss: from a row of a batch to one `Token` for each of its tokens. `frozen` are the
log-probabilities that count as constants where a paper stops the gradient: the value of a loss is
that with `frozen` equal to the row's own, its gradient the slope with `frozen` held.
"""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """A response: one number a token in each column."""

    logprobs: list[float]
    old: list[float]
    rollout: list[float]
    advantages: list[float]
    mask: list[bool]
    ref: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Token:
    """Loss and statistics of a token."""

    loss: float = 0.0
    clipped: bool = False
    lower: bool = False
    chosen: bool = False
    log_ratio: float = 0.0
    log_z: float = 0.0


@dataclass(frozen=True)
class Whole:
    """What a loss looks at beside the row: the tokens that covariance singles out, (row, token).

    And the rows of its prompt, the row itself among them as it is where it is frozen; and what a
    network says of the prompt.
    """

    row: int = 0
    singled_out: set[tuple[int, int]] = field(default_factory=set)
    group: list[Row] = field(default_factory=list)
    log_z: float = 0.0


def clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def ratio_of(log_ratio: float) -> float:
    return math.exp(clamp(log_ratio, -20.0, 20.0))


def trained_times(row: Row) -> list[int]:
    return [t for t, trained in enumerate(row.mask) if trained]


def clip(row: Row, frozen: list[float], whole: Whole, low: float, high: float, dual: float):
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        advantage, log_ratio = row.advantages[t], row.logprobs[t] - row.old[t]
        ratio = ratio_of(log_ratio)
        loss = max(-advantage * ratio, -advantage * clamp(ratio, 1.0 - low, 1.0 + high))
        above, below = ratio > 1.0 + high, ratio < 1.0 - low
        held = advantage < 0.0 and ratio > dual
        tokens[t] = Token(
            -advantage * dual if held else loss,
            clipped=(advantage > 0.0 and above) or (advantage < 0.0 and below),
            lower=held,
            log_ratio=clamp(log_ratio, -20.0, 20.0),
        )
    return tokens


def gspo(row: Row, frozen: list[float], whole: Whole, low: float, high: float):
    times = trained_times(row)
    tokens = [Token() for _ in row.mask]
    for t in times:
        mean = math.fsum(frozen[k] - row.old[k] for k in times) / len(times)
        ratio = math.exp(min(mean + row.logprobs[t] - frozen[t], 10.0))
        plain = -row.advantages[t] * ratio
        clipped = -row.advantages[t] * clamp(ratio, 1.0 - low, 1.0 + high)
        tokens[t] = Token(
            max(plain, clipped), clipped=clipped > plain, log_ratio=row.logprobs[t] - row.old[t]
        )
    return tokens


def geo_mean(row: Row, frozen: list[float], whole: Whole, low: float, high: float):
    times = trained_times(row)
    tokens = [Token() for _ in row.mask]
    if not times:
        return tokens
    total, decided = 0.0, {}
    for t in times:
        log_ratio = clamp(row.logprobs[t] - row.old[t], -20.0, 20.0)
        limit = clamp(log_ratio, -low, high)
        if row.advantages[t] > 0.0:
            worse = min(log_ratio, limit)
        elif row.advantages[t] < 0.0:
            worse = max(log_ratio, limit)
        else:
            worse = 0.0
        decided[t] = row.advantages[t] != 0.0 and worse != log_ratio
        total += worse
    advantage = math.fsum(row.advantages[t] for t in times) / len(times)
    for t in times:
        loss = -advantage * math.exp(total / len(times))
        tokens[t] = Token(loss, clipped=decided[t], log_ratio=row.logprobs[t] - row.old[t])
    return tokens


def sapo(row: Row, frozen: list[float], whole: Whole, positive: float, negative: float):
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        tau = positive if row.advantages[t] > 0.0 else negative
        log_ratio = clamp(row.logprobs[t] - row.old[t], -20.0, 20.0)
        steep = tau * (math.exp(log_ratio) - 1.0)
        gate = 1.0 / (1.0 + math.exp(-steep)) if steep > -700.0 else 0.0
        tokens[t] = Token(-row.advantages[t] * gate * 4.0 / tau, log_ratio=log_ratio)
    return tokens


def vespo(row: Row, frozen: list[float], whole: Whole, positive: tuple, negative: tuple):
    times = trained_times(row)
    tokens = [Token() for _ in row.mask]
    total = math.fsum(clamp(frozen[t] - row.old[t], -20.0, 20.0) for t in times)
    log_w = clamp(total, math.log(1e-8), 20.0)
    for t in times:
        k, fall = positive if row.advantages[t] >= 0.0 else negative
        weight = math.exp(k * log_w) * math.exp(max(fall * (1.0 - math.exp(log_w)), -700.0))
        log_ratio = clamp(row.logprobs[t] - row.old[t], -20.0, 20.0)
        tokens[t] = Token(-weight * row.advantages[t] * row.logprobs[t], log_ratio=log_ratio)
    return tokens


def gpg(row: Row, frozen: list[float], whole: Whole):
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        log_ratio = clamp(row.logprobs[t] - row.old[t], -20.0, 20.0)
        tokens[t] = Token(-row.advantages[t] * row.logprobs[t], log_ratio=log_ratio)
    return tokens


def cispo(row: Row, frozen: list[float], whole: Whole, low: float, high: float):
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        log_ratio = clamp(frozen[t] - row.old[t], -20.0, 20.0)
        weight = clamp(math.exp(log_ratio), 1.0 - low, 1.0 + high)
        tokens[t] = Token(
            -weight * row.advantages[t] * row.logprobs[t],
            clipped=weight != math.exp(log_ratio),
            log_ratio=log_ratio,
        )
    return tokens


def dppo(row: Row, frozen: list[float], whole: Whole, low: float, high: float, top: float, by: str):
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        probability, old = math.exp(frozen[t]), math.exp(row.old[t])
        if by == "tv":
            distance = abs(probability - old)
        else:
            rest = math.log((1.0 - old + 1e-8) / (1.0 - probability + 1e-8))
            distance = old * (row.old[t] - frozen[t]) + (1.0 - old) * rest
        if row.advantages[t] > 0.0:
            left_alone = probability > old and distance > high
        else:
            left_alone = probability < old and distance > low
        log_ratio = clamp(frozen[t] - row.old[t], -20.0, 20.0)
        weight = 0.0 if left_alone else min(math.exp(log_ratio), top)
        tokens[t] = Token(
            -row.advantages[t] * weight * row.logprobs[t],
            clipped=left_alone,
            lower=not left_alone and math.exp(log_ratio) > top,
            log_ratio=log_ratio,
        )
    return tokens


def prime_rl(row: Row, frozen: list[float], whole: Whole, far: tuple, kl: float, signed: bool):
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        fall = math.exp(row.rollout[t]) - math.exp(frozen[t])
        low, high = far
        if not signed:
            left_alone = fall > low or -fall > high
        elif row.advantages[t] > 0.0:
            left_alone = -fall > high
        else:
            left_alone = fall > low
        log_ratio = row.logprobs[t] - row.rollout[t]
        gain = 0.0 if left_alone else row.advantages[t] * ratio_of(log_ratio)
        tokens[t] = Token(
            kl * log_ratio**2 - gain, clipped=left_alone, log_ratio=clamp(log_ratio, -20.0, 20.0)
        )
    return tokens


def dro(row: Row, frozen: list[float], whole: Whole, beta: float):
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        log_ratio = row.logprobs[t] - row.old[t]
        gain = row.advantages[t] * row.logprobs[t] - beta / 2.0 * log_ratio**2
        tokens[t] = Token(-gain, log_ratio=clamp(log_ratio, -20.0, 20.0))
    return tokens


def implied_less_got(row: Row, to: list[float], per_nat: float, per_reward: float) -> float:
    times = trained_times(row)
    log_ratio = math.fsum(row.logprobs[t] - to[t] for t in times)
    return per_nat * log_ratio - per_reward * math.fsum(row.advantages[t] for t in times) / len(
        times
    )


def gvpo(row: Row, frozen: list[float], whole: Whole, beta: float):
    tokens = [Token() for _ in row.mask]
    members = [one for one in whole.group if trained_times(one)]
    mean = math.fsum(implied_less_got(one, one.old, beta, 1.0) for one in members)
    for t in trained_times(row):
        distance = implied_less_got(row, row.old, beta, 1.0) - mean / len(members)
        variance = distance**2 * len(members) / max(1, len(members) - 1)
        log_ratio = clamp(row.logprobs[t] - row.old[t], -20.0, 20.0)
        tokens[t] = Token(variance / 2.0, log_ratio=log_ratio)
    return tokens


def trajectory_balance(row: Row, frozen: list[float], whole: Whole, beta: float):
    tokens = [Token() for _ in row.mask]
    members = [one for one in whole.group if trained_times(one)]
    total = math.fsum(-implied_less_got(one, one.ref, 1.0, 1.0 / beta) for one in members)
    for t in trained_times(row):
        log_z = total / len(members)
        error = log_z + implied_less_got(row, row.ref, 1.0, 1.0 / beta)
        log_ratio = clamp(row.logprobs[t] - row.old[t], -20.0, 20.0)
        tokens[t] = Token(error**2, log_ratio=log_ratio, log_z=log_z)
    return tokens


def flowrl(row: Row, frozen: list[float], whole: Whole, beta: float, limit: float):
    tokens = [Token() for _ in row.mask]
    times = trained_times(row)
    # Rows are whole: what the network says of the prompt is the same at each token.
    moved = math.fsum(frozen[t] - row.old[t] for t in times)
    weight = limit if moved > math.log(limit) else math.exp(moved)
    for t in times:
        distance = math.fsum(row.logprobs[s] - row.ref[s] for s in times) / len(times)
        reward = math.fsum(row.advantages[s] for s in times) / len(times)
        error = whole.log_z + distance - beta * reward
        log_ratio = clamp(row.logprobs[t] - row.old[t], -20.0, 20.0)
        tokens[t] = Token(weight * error**2, log_ratio=log_ratio, log_z=whole.log_z)
    return tokens


def covariances(rows: list[Row]) -> dict[tuple[int, int], float]:
    """Of every trained token, by its row and its place in it, in that order."""
    places = [(i, t) for i, row in enumerate(rows) for t in trained_times(row)]
    if not places:
        return {}
    advantage = math.fsum(rows[i].advantages[t] for i, t in places) / len(places)
    logprob = math.fsum(rows[i].logprobs[t] for i, t in places) / len(places)
    return {
        (i, t): (rows[i].advantages[t] - advantage) * (rows[i].logprobs[t] - logprob)
        for i, t in places
    }


def between(rows: list[Row], low: float, high: float, clip_low: float, clip_high: float):
    """Tokens that clip_cov may draw: unclipped, with a covariance inside the bounds."""
    found = set()
    for (i, t), covariance in covariances(rows).items():
        advantage, ratio = rows[i].advantages[t], ratio_of(rows[i].logprobs[t] - rows[i].old[t])
        above, below = ratio > 1.0 + clip_high, ratio < 1.0 - clip_low
        is_clipped = (advantage > 0.0 and above) or (advantage < 0.0 and below)
        if low < covariance < high and not is_clipped:
            found.add((i, t))
    return found


def clip_cov(row: Row, frozen: list[float], whole: Whole, low: float, high: float):
    tokens = clip(row, frozen, whole, low, high, math.inf)
    for t in trained_times(row):
        chosen = (whole.row, t) in whole.singled_out
        loss = 0.0 if chosen else tokens[t].loss
        tokens[t] = Token(loss, tokens[t].clipped, chosen=chosen, log_ratio=tokens[t].log_ratio)
    return tokens


def highest(rows: list[Row], count: int) -> set[tuple[int, int]] | None:
    """Tokens of the highest covariance; None where rounding decides which they are."""
    found = covariances(rows)
    order = sorted(found, key=lambda place: -found[place])
    if len(order) > count > 0:
        last, next_ = (
            (found[place], rows[place[0]].advantages[place[1]], rows[place[0]].logprobs[place[1]])
            for place in order[count - 1 : count + 1]
        )
        if last != next_ and abs(last[0] - next_[0]) < 1e-4:
            return None
    return set(order[:count])


def kl_cov(row: Row, frozen: list[float], whole: Whole, coefficient: float):
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        log_ratio = clamp(row.logprobs[t] - row.old[t], -20.0, 20.0)
        chosen = (whole.row, t) in whole.singled_out
        loss = -row.advantages[t] * math.exp(log_ratio)
        loss += coefficient * abs(log_ratio) if chosen else 0.0
        tokens[t] = Token(loss, chosen=chosen, log_ratio=log_ratio)
    return tokens


def bypass(row: Row, frozen: list[float], whole: Whole, form: str, bounds):
    sampled = Row(row.logprobs, row.rollout, row.rollout, row.advantages, row.mask)
    if form == "clip":
        return clip(sampled, frozen, whole, *bounds)
    tokens = [Token() for _ in row.mask]
    for t in trained_times(row):
        log_ratio = clamp(frozen[t] - row.rollout[t], -20.0, 20.0)
        tokens[t] = Token(-row.advantages[t] * row.logprobs[t], log_ratio=log_ratio)
    return tokens
