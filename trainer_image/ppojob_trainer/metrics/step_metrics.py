"""Metrics of one step; one row is one response.

Names and meanings are verl's (``compute_data_metrics`` and related functions). Sums are exact, so
means do not depend on the order of rows or the layout.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from ppojob_trainer.metrics.timer import StepTimes

_T = TypeVar("_T")

TOOL_SECONDS: Final = "timing_s/agent_loop/tool_calls"
"""Duration of a row's tool calls."""
OWN_SCORE: Final = "/score"
"""Suffix of a function's own score among the values of several."""

# As in verl: generation is per response token, these are per token.
_STAGES_OVER_ALL_TOKENS: Final = ("ref", "values", "adv", "update_critic", "update_actor")


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """Mean, maximum and minimum of some values; NaN for none."""

    mean: float
    max: float
    min: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Compute the spread of values; the mean is correctly rounded."""
        if not values:
            return cls(mean=math.nan, max=math.nan, min=math.nan)
        return cls(
            mean=_exact_sum(values) / len(values), max=float(max(values)), min=float(min(values))
        )

    def named(self, prefix: str) -> dict[str, float]:
        """Return the metrics ``<prefix>/mean``, ``/max`` and ``/min``."""
        return {f"{prefix}/mean": self.mean, f"{prefix}/max": self.max, f"{prefix}/min": self.min}


def staleness_metrics(versions: Sequence[Mapping[int, int]], trained: int) -> dict[str, float]:
    """Return metrics of the staleness: trained version minus rollout version of a token.

    Args:
        versions: (rows,) token counts by rollout version.
        trained: version of the weights at the start of the step.
    """
    tokens = Counter[int]()
    for row in versions:
        tokens.update({trained - version: count for version, count in row.items()})
    total = sum(tokens.values())
    mean = sum(age * count for age, count in tokens.items()) / total if total else 0.0
    return {
        "async/staleness_mean": mean,
        "async/staleness_max": float(max(tokens, default=0)),
        "async/partial_rows": sum(len(row) > 1 for row in versions) / max(1, len(versions)),
    }


def guidance_metrics(
    scores: Sequence[float],
    lengths: Sequence[int],
    given: Collection[int],
    dropped: Collection[int] = (),
) -> dict[str, float]:
    """Return mean score and length of generated and of given responses, under LUFFY's names.

    Args:
        scores: (rows,) scores, except of `dropped` rows.
        lengths: (rows,) response tokens.
        given: rows whose responses came from the data.
        dropped: rows without a score.
    """
    found = {}
    for name, is_given in (("on", False), ("off", True)):
        rows = [row for row in range(len(scores)) if (row in given) is is_given]
        scored = [scores[row] for row in rows if row not in dropped]
        if scored:
            found[f"on_off_metrics/{name}_score"] = Spread.of(scored).mean
        if rows:
            mean = Spread.of([lengths[row] for row in rows]).mean
            found[f"on_off_metrics/{name}_response_length_mean"] = mean
    return found


class RowFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Turns and tool calls of a multi-turn row; its scorers get them in `extra_info`."""

    num_turns: int  # turns of the model, tools and user, and the prompt, as in verl
    tool_calls: int
    tool_failures: int  # failed calls of tools and user simulators
    tool_rewards: list[float]  # rewards of the tool calls, in order
    given_tokens: int  # response tokens that the model did not generate
    # the user simulator's scores of turns, in order; None without one
    turn_scores: list[float] | None = None
    # the sum of its environments' scores at the row's end, or the score of its agent loop; None if
    # none has a score
    environment_score: float | None = None
    contexts: int = 1  # number of contexts of the model


@dataclass(frozen=True, slots=True)
class StepRows:
    """Metadata of the step's rows, in any consistent order."""

    scores: Sequence[float]  # (rows,) from the reward functions
    rewards: Sequence[float]  # (rows,) scores with penalties (KL in the reward)
    prompt_tokens: Sequence[int]  # (rows,) prompt lengths
    response_tokens: Sequence[int]  # (rows,) response lengths, with the end token
    truncated: Sequence[bool]  # (rows,) whether a length limit ended a response
    extras: Sequence[Mapping[str, float | str]]  # (rows,) further values of the reward functions
    figures: Sequence[RowFigures] = ()  # (rows,) turns and tool calls; empty for single-turn rows
    tool_seconds: Sequence[float] = ()  # (rows,) time in tool calls; empty if unknown
    counts: Mapping[str, int] = field(default_factory=dict)  # of engines; empty if unknown
    dropped: Sequence[int] = ()  # rows excluded because a reward function failed
    filtered: Sequence[int] = ()  # rows excluded by the group filter

    @property
    def total_tokens(self) -> int:
        """Return prompt and response tokens; a prompt counts once per response, as in verl."""
        return sum(self.prompt_tokens) + sum(self.response_tokens)


def row_metrics(
    rows: StepRows, *, max_prompt_tokens: int, is_scored: bool = True
) -> dict[str, float]:
    """Return metrics of scores, rewards and lengths, as far as present.

    Departs from verl: ``response_length/clip_ratio`` counts responses that a length limit ended,
    where verl counts those of maximum length. As there, empty responses count as aborted.

    Dropped rows have no score and no reward, filtered ones no reward.
    """
    is_aborted = [length == 0 for length in rows.response_tokens]
    at_limit = [length == max_prompt_tokens for length in rows.prompt_tokens]
    unscored, filtered = set(rows.dropped), set(rows.filtered)
    is_out = [aborted or row in unscored for row, aborted in enumerate(is_aborted)]
    scores = Spread.of(_without(rows.scores, is_out)) if is_scored else None
    is_out = [out or row in filtered for row, out in enumerate(is_out)]
    rewards = Spread.of(_without(rows.rewards, is_out)) if is_scored and rows.rewards else None
    return {
        **({} if scores is None else scores.named("critic/score")),
        **({} if rewards is None else rewards.named("critic/rewards")),
        **_extra_metrics(_without(rows.extras, is_aborted)),
        **Spread.of(rows.response_tokens).named("response_length"),
        "response_length/clip_ratio": _share(rows.truncated),
        **Spread.of(_without(rows.response_tokens, is_aborted)).named(
            "response_length_non_aborted"
        ),
        "response_length_non_aborted/clip_ratio": _share(_without(rows.truncated, is_aborted)),
        "response/aborted_ratio": _share(is_aborted),
        **Spread.of(rows.prompt_tokens).named("prompt_length"),
        "prompt_length/clip_ratio": _share(at_limit),
        **(_turn_metrics(rows) if rows.figures else {}),
    }


def length_metrics(rows: StepRows) -> dict[str, float]:
    """Return metrics of lengths, for demonstrations."""
    return {
        **Spread.of(rows.response_tokens).named("response_length"),
        **Spread.of(rows.prompt_tokens).named("prompt_length"),
    }


def _turn_metrics(rows: StepRows) -> dict[str, float]:
    calls = [own.tool_calls for own in rows.figures]
    asked = sum(calls) + sum(len(own.turn_scores or ()) for own in rows.figures)
    failures = sum(own.tool_failures for own in rows.figures)
    given = sum(own.given_tokens for own in rows.figures)
    of_users = [own for own in rows.figures if own.turn_scores is not None]
    contexts = [own.contexts for own in of_users]
    failed = [own.tool_failures > 0 for own in of_users]
    return {
        **Spread.of([own.num_turns for own in rows.figures]).named("num_turns"),
        **(Spread.of(contexts).named("num_contexts") if contexts else {}),
        **({"user/failed_rows": _share(failed)} if failed else {}),
        **Spread.of(calls).named("tool_call_counts"),
        "tool/failed_share": failures / max(1, asked),
        "response/given_share": given / max(1, sum(rows.response_tokens)),
    }


def balance_metrics(given: Sequence[int], balanced: Sequence[int]) -> dict[str, float]:
    """Return the balance of tokens over ranks: as generated, and as computed."""
    return {
        "global_seqlen/min": float(min(given)),
        "global_seqlen/max": float(max(given)),
        "global_seqlen/minmax_diff": float(max(given) - min(given)),
        "global_seqlen/balanced_min": float(min(balanced)),
        "global_seqlen/balanced_max": float(max(balanced)),
        "global_seqlen/mean": sum(given) / len(given),
    }


def speed_metrics(rows: StepRows, times: StepTimes, *, num_devices: int) -> dict[str, float]:
    """Return tokens per second, milliseconds per token, and the time of tool calls.

    Devices are GPUs, or ranks without GPUs.
    """
    tokens_of_stage = dict.fromkeys(_STAGES_OVER_ALL_TOKENS, rows.total_tokens)
    tokens_of_stage["gen"] = sum(rows.response_tokens)
    return {
        "perf/total_num_tokens": float(rows.total_tokens),
        "perf/time_per_step": times.step_seconds,
        "perf/throughput": _ratio(rows.total_tokens, times.step_seconds * num_devices),
        **{
            f"timing_per_token_ms/{stage}": _ratio(1000.0 * times.stages[stage], tokens)
            for stage, tokens in sorted(tokens_of_stage.items())
            if stage in times.stages
        },
        **(Spread.of(rows.tool_seconds).named(TOOL_SECONDS) if rows.tool_seconds else {}),
        **(_engine_metrics(rows.counts) if rows.counts.get("steps") else {}),
        **(_draft_metrics(rows.counts) if rows.counts.get("passes") else {}),
    }


def _engine_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    """Return engine metrics, absent for rows that were read from disk."""

    def by(name: str, all_of: str) -> float:
        return counts.get(name, 0) / max(1, counts.get(all_of, 0))

    return {
        "perf/kv_cache_usage": by("used", "blocks"),
        "perf/prefix_cache_hit_rate": by("found", "looked_up"),
        "perf/preemptions_per_row": by("preempted", "rows"),
        "perf/rows_running": by("running", "steps"),
        "perf/rows_waiting": by("waiting", "steps"),
    }


def _draft_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    kept, guesses, passes = (counts.get(name, 0) for name in ("kept", "guesses", "passes"))
    return {
        "perf/draft_accept_rate": kept / guesses if guesses else 0.0,
        "perf/draft_accept_length": 1.0 + kept / passes,
    }


def _extra_metrics(extras: Sequence[Mapping[str, float | str]]) -> dict[str, float]:
    """Return metrics of the further values of reward functions, with the score of each function."""
    found: dict[str, list[float]] = {}
    for values in extras:
        for name, value in values.items():
            if not isinstance(value, str):
                found.setdefault(name, []).append(value)
    spreads = (Spread.of(found[name]).named(f"reward_extra/{name}") for name in sorted(found))
    extra = {name: value for spread in spreads for name, value in spread.items()}
    own = {name.removesuffix(OWN_SCORE) for name in found if name.endswith(OWN_SCORE)}
    return extra | {
        f"rewards/{name}/mean": extra[f"reward_extra/{name}{OWN_SCORE}/mean"]
        for name in sorted(own)
    }


def _exact_sum(values: Sequence[float]) -> float:
    if all(map(math.isfinite, values)):
        return math.fsum(values)
    return sum(values)  # fsum refuses infinities of both signs


def _without(values: Sequence[_T], excluded: Sequence[bool]) -> list[_T]:
    return [value for value, is_out in zip(values, excluded, strict=True) if not is_out]


def _share(claims: Sequence[bool]) -> float:
    return sum(claims) / len(claims) if claims else math.nan


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
