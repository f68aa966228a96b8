import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import is_repeatable

from ppojob_trainer.metrics import names, step_metrics
from ppojob_trainer.metrics.pass_statistics import PassStatistics, step_statistics
from ppojob_trainer.metrics.timer import StepTimer, StepTimes

ROWS = step_metrics.StepRows(
    scores=[1.0, 0.1, 0.0, 9.0],
    rewards=[0.5, 0.1, -0.5, 9.0],
    prompt_tokens=[10, 10, 20, 20],
    response_tokens=[8, 4, 8, 0],
    truncated=[True, False, False, False],
    extras=[{"f/format": 1.0}, {"f/format": 0.5, "pred": "3"}, {"pred": "4"}, {"f/format": 9.0}],
)

numbers = st.floats(-1e6, 1e6)


def metrics_of(rows: step_metrics.StepRows) -> dict[str, float]:
    return step_metrics.row_metrics(rows, max_prompt_tokens=20)


def test_each_of_several_functions_has_a_mean():
    extras = [{"f/score": 1.0, "g/score": 2.0}, {"f/score": 0.0, "g/score": 5.0}] * 2
    found = metrics_of(dataclasses.replace(ROWS, extras=extras))
    own = {name: value for name, value in found.items() if name.startswith("rewards/")}
    # The last row was aborted.
    assert own == {"rewards/f/mean": 2 / 3, "rewards/g/mean": 3.0}
    assert found["reward_extra/f/score/mean"] == 2 / 3


def test_given_responses_are_told_apart_from_drawn_ones():
    scores, lengths = [9.0, 1.0, 0.0, 4.0, math.nan], [2, 3, 5, 4, 7]
    found = step_metrics.guidance_metrics(scores, lengths, given={0, 3}, dropped=[4])
    assert found == {
        "on_off_metrics/on_score": 0.5,
        "on_off_metrics/off_score": 6.5,
        "on_off_metrics/on_response_length_mean": 5.0,
        "on_off_metrics/off_response_length_mean": 3.0,
    }
    drawn = step_metrics.guidance_metrics(scores[:4], lengths[:4], given=())
    assert [name.partition("/")[2].partition("_")[0] for name in drawn] == ["on", "on"]


def test_a_row_without_a_score_has_no_part_in_the_means():
    found = metrics_of(dataclasses.replace(ROWS, dropped=[1]))
    assert found["critic/score/mean"] == 0.5
    assert found["critic/rewards/mean"] == 0.0
    assert found["critic/rewards/max"] == 0.5
    assert found["response_length/mean"] == metrics_of(ROWS)["response_length/mean"]


def test_hand_computed_rows():
    found = metrics_of(ROWS)
    expected = {
        "critic/score/mean": 1.1 / 3,
        "critic/score/max": 1.0,
        "critic/score/min": 0.0,
        "critic/rewards/mean": 0.1 / 3,
        "critic/rewards/max": 0.5,
        "critic/rewards/min": -0.5,
        "response_length/mean": 5.0,
        "response_length/max": 8.0,
        "response_length/min": 0.0,
        # verl counts row 2 as well, which is as long as the limit of 8 and ended by itself.
        "response_length/clip_ratio": 0.25,
        "response_length_non_aborted/mean": 20 / 3,
        "response_length_non_aborted/max": 8.0,
        "response_length_non_aborted/min": 4.0,
        "response_length_non_aborted/clip_ratio": 1 / 3,
        "response/aborted_ratio": 0.25,
        "reward_extra/f/format/mean": 0.75,
        "reward_extra/f/format/max": 1.0,
        "reward_extra/f/format/min": 0.5,
        "prompt_length/mean": 15.0,
        "prompt_length/max": 20.0,
        "prompt_length/min": 10.0,
        "prompt_length/clip_ratio": 0.5,
    }
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=1e-15)


def test_all_aborted_is_nan_and_not_an_error():
    rows = step_metrics.StepRows([1.0], [1.0], [3], [0], [False], [{}])
    found = metrics_of(rows)
    assert math.isnan(found["critic/score/mean"])
    assert math.isnan(found["response_length_non_aborted/clip_ratio"])
    assert found["response/aborted_ratio"] == 1.0


@given(st.lists(numbers, min_size=1, max_size=50), st.randoms())
def test_the_order_of_rows_changes_no_bit(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    first, second = step_metrics.Spread.of(values), step_metrics.Spread.of(shuffled)
    assert first == second
    slow = 0.0
    for value in values:
        slow += value
    assert first.mean == pytest.approx(slow / len(values), rel=1e-9, abs=1e-6)
    assert first.max == max(values)
    assert first.min == min(values)


def test_spread_of_non_finite_values():
    spread = step_metrics.Spread.of([math.inf, -math.inf, 1.0])
    assert math.isnan(spread.mean)
    assert (spread.max, spread.min) == (math.inf, -math.inf)


def test_speed_by_hand():
    stages = {"gen": 2.0, "update_actor": 4.0, "reward": 1.0}
    found = step_metrics.speed_metrics(ROWS, StepTimes(stages, 8.0), num_devices=2)
    assert found == {
        "perf/total_num_tokens": 80.0,
        "perf/time_per_step": 8.0,
        "perf/throughput": 5.0,
        "timing_per_token_ms/gen": 100.0,
        "timing_per_token_ms/update_actor": 50.0,
    }


@pytest.mark.parametrize(("kept", "guesses"), [(30, 40), (0, 0)])
def test_what_came_of_guesses_by_hand(kept: int, guesses: int):
    counts = {"passes": 20, "guesses": guesses, "kept": kept}
    drafted = dataclasses.replace(ROWS, counts=counts)
    known = step_metrics.speed_metrics(ROWS, StepTimes({}, 8.0), num_devices=2)
    found = step_metrics.speed_metrics(drafted, StepTimes({}, 8.0), num_devices=2)
    assert {key: value for key, value in found.items() if key not in known} == {
        "perf/draft_accept_rate": 0.75 if guesses else 0.0,
        "perf/draft_accept_length": 2.5 if guesses else 1.0,
    }


def test_what_an_engine_counts_by_hand():
    counts = {"rows": 8, "preempted": 2, "steps": 10, "running": 60, "waiting": 5}
    counts |= {"blocks": 400, "used": 300, "looked_up": 50, "found": 20}
    known = step_metrics.speed_metrics(ROWS, StepTimes({}, 8.0), num_devices=2)
    counted = dataclasses.replace(ROWS, counts=counts)
    found = step_metrics.speed_metrics(counted, StepTimes({}, 8.0), num_devices=2)
    assert {key: value for key, value in found.items() if key not in known} == {
        "perf/kv_cache_usage": 0.75,
        "perf/prefix_cache_hit_rate": 0.4,
        "perf/preemptions_per_row": 0.25,
        "perf/rows_running": 6.0,
        "perf/rows_waiting": 0.5,
    }


def test_times_of_tools_are_told_under_a_name_that_is_not_compared():
    timed = dataclasses.replace(ROWS, tool_seconds=[1.0, 0.0, 2.0, 3.0])
    known = step_metrics.speed_metrics(ROWS, StepTimes({}, 8.0), num_devices=2)
    found = step_metrics.speed_metrics(timed, StepTimes({}, 8.0), num_devices=2)
    told = {key: value for key, value in found.items() if key not in known}
    assert told == {
        "timing_s/agent_loop/tool_calls/mean": 1.5,
        "timing_s/agent_loop/tool_calls/max": 3.0,
        "timing_s/agent_loop/tool_calls/min": 0.0,
    }
    assert not any(map(is_repeatable, told))
    assert None not in map(names.find, told)


def test_balance_by_hand():
    assert step_metrics.balance_metrics([10, 30, 20], [21, 20, 19]) == {
        "global_seqlen/min": 10.0,
        "global_seqlen/max": 30.0,
        "global_seqlen/minmax_diff": 20.0,
        "global_seqlen/balanced_min": 19.0,
        "global_seqlen/balanced_max": 21.0,
        "global_seqlen/mean": 20.0,
    }


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_timer_by_hand():
    clock = Clock()
    timer = StepTimer(clock)
    for stage, seconds in (("gen", 2.0), ("reward", 1.0), ("gen", 3.0)):
        with timer(stage):
            clock.now += seconds
    clock.now += 2.0
    times = timer.finish()
    assert times.stages == {"gen": 5.0, "reward": 1.0}
    assert times.metrics() == {
        "timing_s/gen": 5.0,
        "timing_s/reward": 1.0,
        "timing_s/step": 8.0,
        "timing_s/unaccounted": 2.0,
        "perf/unaccounted_share": 0.25,
    }


def test_telling_of_a_stage_is_a_part_of_it():
    clock = Clock()

    def tell(_: str) -> None:
        clock.now += 0.5

    timer = StepTimer(clock, on_stage=tell)
    with timer("gen"):
        clock.now += 2.0
    assert timer.finish().stages == {"gen": 2.5}


def test_timer_counts_a_stage_that_fails():
    clock = Clock()
    timer = StepTimer(clock)

    def fail() -> None:
        with timer("gen"):
            clock.now += 2.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert timer.finish().stages == {"gen": 2.0}


def test_stages_do_not_nest():
    timer = StepTimer(Clock())

    def nest() -> None:
        with timer("gen"), timer("reward"):
            pass

    with pytest.raises(AssertionError, match="reward begins inside gen"):
        nest()


def test_every_metric_has_a_row_in_the_table():
    keys = {
        **metrics_of(ROWS),
        **step_metrics.balance_metrics([1], [1]),
        **step_metrics.speed_metrics(ROWS, StepTimes({"gen": 1.0}, 1.0), num_devices=1),
        "training/global_step": 1.0,
        "training/epoch": 0.0,
        **StepTimer(Clock()).finish().metrics(),
    }
    assert [key for key in keys if names.find(key) is None] == []


def update(rate: float, norm: float, entropy_sum: float, tokens: int) -> PassStatistics:
    return PassStatistics(
        values={"actor/grad_norm": norm},
        state={"actor/lr": rate},
        token_sums={"actor/entropy": entropy_sum},
        tokens=tokens,
    )


def test_means_weigh_tokens_values_are_averaged_over_updates_and_states_are_the_last():
    told = step_statistics([update(1.0, 1.0, 2.0, 1), update(2.0, 4.0, 12.0, 3)])
    assert told == {"actor/entropy": 14.0 / 4, "actor/grad_norm": 2.5, "actor/lr": 2.0}


def test_updates_that_compute_nothing_leave_means_as_they_are():
    with_signal, silent = update(1.0, 1.0, 20.0, 10), update(1.0, 0.0, 0.0, 0)
    assert step_statistics([silent, with_signal, silent, silent])["actor/entropy"] == 2.0
    assert math.isnan(step_statistics([silent])["actor/entropy"])


def test_a_sum_of_fewer_values_has_a_count_of_its_own():
    parts = [
        PassStatistics(token_sums={"loss": 6.0, "good": 4.0}, tokens=3, counts={"good": 2.0}),
        PassStatistics(token_sums={"loss": 2.0, "good": 0.0}, tokens=1, counts={"good": 0.0}),
    ]
    assert step_statistics(parts) == {"loss": 2.0, "good": 2.0}
    assert math.isnan(step_statistics(parts[1:])["good"])
