import pytest

from ppojob_api.v1alpha1.schedule import BestCheckpointSpec
from ppojob_trainer.controller.checkpoints import BestCheckpoint

ACCURACY, OTHER = "val-core/tiny/acc/mean@1", "val-core/other/acc/mean@1"
VALUES = {0: 0.9, 2: 0.5, 4: 0.7, 6: 0.7, 8: None, 10: 0.6}


def best_by(metric: str, mode: str = "max") -> BestCheckpoint:
    records = [{"step": step, ACCURACY: value} for step, value in VALUES.items()]
    spec = BestCheckpointSpec.model_validate({"metric": metric, "mode": mode})
    return BestCheckpoint(spec, lambda: iter([{"step": 1}, *records]))


@pytest.mark.parametrize(
    ("mode", "steps", "metric", "best"),
    [
        ("max", {2, 4, 6, 8, 10}, ACCURACY, 4),
        ("max", {2, 6, 10}, ACCURACY, 6),
        ("max", {1, 8}, ACCURACY, None),
        ("max", set(), ACCURACY, None),
        ("max", {2, 4}, OTHER, None),
        ("min", {2, 4, 10}, ACCURACY, 2),
        ("min", {4, 10}, ACCURACY, 10),
    ],
)
def test_the_best_of_the_steps_that_are_saved(mode, steps, metric, best) -> None:
    assert best_by(metric, mode).among(steps) == best


def test_a_metric_of_this_validation_or_an_earlier_one_is_taken() -> None:
    """One that none has ends the job: tests/jobs/test_validation_and_reward_models.py."""
    best_by(ACCURACY).refuse_unknown({})
    best_by(OTHER).refuse_unknown({OTHER: float("nan")})
