import math

from ppojob_trainer.metrics.pass_statistics import PassStatistics, step_statistics


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


def test_a_pass_that_measures_nothing_says_nothing():
    assert step_statistics([PassStatistics()]) == {}
