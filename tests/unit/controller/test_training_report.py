import pytest

from ppojob_api.v1alpha1.status import TrainingStatus
from ppojob_trainer.controller.progress import TrainingReport, duration

STEP = {
    "critic/score/mean": 0.512345,
    "actor/kl_loss": 0.002,
    "actor/entropy": 1.5,
    "response_length/mean": 20.0,
    "perf/total_num_tokens": 3000.0,
    "timing_s/step": 2.0,
}


class Told:
    """A report of a controller that has taken over, and what it tells."""

    def __init__(self, total: int = 10) -> None:
        self.states: list[TrainingStatus] = []
        self.report = TrainingReport(self.states.append)
        self.report.begin(attempt=3, step=4, saved=2)
        self.report.change_phase("Training", total)

    def after(self, step: int, metrics: dict[str, float]) -> TrainingStatus:
        self.report.done(step, metrics)
        return self.states[-1]


def test_whoever_has_not_taken_over_says_nothing() -> None:
    told: list[TrainingStatus] = []
    report = TrainingReport(told.append)
    report.change_phase("Starting", 8)
    report.change_phase("Failed", 8)
    assert not told
    report.begin(attempt=1, step=0, saved=None)
    assert told == [TrainingStatus(attempt=1, stage="Starting", total_steps=8) for _ in told]


def test_a_step_shows_its_figures() -> None:
    assert Told().after(5, STEP) == TrainingStatus(
        attempt=3,
        step=5,
        total_steps=10,
        reward=0.5123,
        kl=0.002,
        entropy=1.5,
        response_tokens=20.0,
        tokens_per_second=1500.0,
        eta="10s",
        stage="Training",
        last_checkpoint_step=2,
    )


def test_what_changes_nothing_is_not_told_and_a_checkpoint_is() -> None:
    told = Told()
    number = len(told.states)
    for _ in range(5):
        told.report.change_phase("Training", 10)
    assert len(told.states) == number
    told.report.checkpoint(4)
    assert told.states[-1].last_checkpoint_step == 4


@pytest.mark.parametrize(
    ("metrics", "kl"),
    [({}, 0.1), ({"actor/reward_kl_penalty": 0.3}, 0.3), ({"actor/kl_loss": 0.2}, 0.2)],
)
def test_kl_is_that_to_the_reference_where_there_is_one(metrics, kl) -> None:
    assert Told().after(5, {"actor/ppo_kl": 0.1, **metrics}).kl == kl


def test_a_validation_stays_until_the_next_and_tells_nothing_of_the_pace() -> None:
    told = Told()
    metrics = {"val-core/a/b/acc/mean@1": 0.25, "val-core/c/acc/mean@1": 0.75}
    first = told.after(0, {**metrics, "timing_s/step": 900.0})
    assert (first.validation, first.reward) == (0.5, None)
    assert (first.eta, first.tokens_per_second) == (None, None)
    assert told.after(1, {**STEP, "val-core/c/acc/best@2/mean": 1.0}).validation == 0.5
    assert told.after(2, {**STEP, "val-core/c/acc/mean@1": 1.0}).validation == 1.0


def test_time_that_is_left_is_that_of_recent_steps_and_of_what_only_some_have() -> None:
    told = Told(total=100)
    seldom = {"timing_s/save_checkpoint": 50.0, "timing_s/testing": 10.0, "timing_s/step": 62.0}
    slow = {"timing_s/step": 100.0}
    history = [
        {**STEP, **(slow if step < 12 else seldom if step % 12 == 0 else {})}
        for step in range(1, 25)
    ]
    for step, metrics in enumerate(history, start=1):
        last = told.after(step, metrics)
    assert last.eta == duration((2.0 + 2 * 60.0 / 24) * (100 - 24)) == "8m52s"
    told.report.resume(24, 24, history)
    assert told.states[-1].eta == "8m52s"
    assert told.after(100, STEP).eta is None


def test_who_stands_up_shows_what_stands() -> None:
    told = Told()
    told.report.change_phase("Recovering", 10)
    told.after(5, {**STEP, "critic/score/mean": 0.9})
    history = [{"val-core/a/acc/mean@1": 0.125}, {**STEP, "critic/score/mean": None}, STEP]
    told.report.resume(2, 2, history)
    last = told.states[-1]
    assert (last.step, last.reward, last.validation, last.eta) == (2, 0.5123, 0.125, "16s")
    told.report.resume(0, None, [])
    assert told.states[-1] == TrainingStatus(attempt=3, total_steps=10, stage="Recovering")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.01, "1s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (125.0, "2m05s"),
        (3599.6, "1h00m"),
        (5400.0, "1h30m"),
        (86_399.0, "1d00h"),
        (270_000.0, "3d03h"),
    ],
)
def test_times_are_short(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
