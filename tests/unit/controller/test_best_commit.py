import json
from pathlib import Path

import pytest

from ppojob_api.v1alpha1.schedule import BestCommitSpec
from ppojob_trainer.controller.commits import BestCommit
from ppojob_trainer.errors import ConfigError

ACCURACY = "val-core/tiny/acc/mean@1"
RECORDS = [
    {"step": 0, "time": 1.0, ACCURACY: 0.9},
    {"step": 1, "time": 2.0},
    {"step": 2, "time": 3.0, ACCURACY: 0.5},
    {"step": 4, "time": 4.0, ACCURACY: 0.7},
    {"step": 6, "time": 5.0, ACCURACY: 0.7},
    {"step": 8, "time": 6.0, ACCURACY: None},
    {"step": 10, "time": 7.0, ACCURACY: 0.6},
]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


@pytest.mark.parametrize(
    ("mode", "steps", "best"),
    [
        ("max", {2, 4, 6, 8, 10}, 4),
        ("max", {2, 6, 10}, 6),
        ("max", {1, 8}, None),
        ("max", set(), None),
        ("min", {2, 4, 10}, 2),
        ("min", {4, 10}, 10),
    ],
)
def test_the_best_of_the_steps_that_are_committed(mode, steps, best, metrics) -> None:
    spec = BestCommitSpec.model_validate({"metric": ACCURACY, "mode": mode})
    assert BestCommit(spec, metrics).among(steps) == best


def test_a_metric_that_no_validation_has_is_refused_with_those_that_there_are(metrics) -> None:
    best = BestCommit(BestCommitSpec(metric="val-core/tinny/acc/mean@1"), metrics)
    told = {ACCURACY: 0.5, "val-aux/tiny/reward/mean@1": 0.5}
    with pytest.raises(ConfigError) as refused:
        best.refuse_unknown(told)
    assert str(refused.value).startswith("spec.checkpoint.best.metric: ")
    assert str(refused.value).endswith(", ".join(told))


def test_a_metric_of_this_validation_or_an_earlier_one_is_taken(metrics: Path) -> None:
    BestCommit(BestCommitSpec(metric=ACCURACY), metrics).refuse_unknown({})
    other = BestCommit(BestCommitSpec(metric="val-core/other/acc/mean@1"), metrics)
    other.refuse_unknown({other.spec.metric: float("nan")})


def test_a_metric_that_nobody_wrote_has_no_best(metrics: Path) -> None:
    spec = BestCommitSpec(metric="val-core/other/acc/mean@1")
    assert BestCommit(spec, metrics).among({2, 4}) is None
