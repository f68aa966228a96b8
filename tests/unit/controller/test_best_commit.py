import json
from pathlib import Path

import pytest

from ppojob_api.v1alpha1.schedule import BestCommitSpec
from ppojob_trainer.controller.commits import BestCommit

ACCURACY, OTHER = "val-core/tiny/acc/mean@1", "val-core/other/acc/mean@1"
VALUES = {0: 0.9, 2: 0.5, 4: 0.7, 6: 0.7, 8: None, 10: 0.6}


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    records = [{"step": step, "time": 1.0, ACCURACY: value} for step, value in VALUES.items()]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in [{"step": 1}, *records]))
    return path


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
def test_the_best_of_the_steps_that_are_committed(mode, steps, metric, best, metrics) -> None:
    spec = BestCommitSpec.model_validate({"metric": metric, "mode": mode})
    assert BestCommit(spec, metrics).among(steps) == best


def test_a_metric_of_this_validation_or_an_earlier_one_is_taken(metrics: Path) -> None:
    """One that none has ends the job: tests/jobs/test_validation_and_reward_models.py."""
    BestCommit(BestCommitSpec(metric=ACCURACY), metrics).refuse_unknown({})
    BestCommit(BestCommitSpec(metric=OTHER), metrics).refuse_unknown({OTHER: float("nan")})
