from types import ModuleType

import pytest

from ppojob_api import validation
from ppojob_api.v1alpha1.job import PPOJob

NAMES = ("grpo", "rloo", "reinforce_plus_plus", "remax", "gspo", "cispo", "DAPO")


@pytest.fixture
def learning(benchmark_module) -> ModuleType:
    return benchmark_module("learning")


def test_all_were_recorded_as_they_would_run_now(learning: ModuleType) -> None:
    recorded = {name: run["algorithm"] for name, run in learning.read_record().items()}
    assert recorded == learning.algorithms()
    assert tuple(recorded) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_job_is_valid(learning: ModuleType, name: str) -> None:
    judged = validation.validate(learning.manifest(name))
    assert isinstance(judged, PPOJob), judged


@pytest.mark.parametrize("name", NAMES)
def test_a_run_learned(learning: ModuleType, name: str) -> None:
    run = learning.read_record()[name]
    assert [step for step, _ in run["reward"]] == list(range(1, learning.STEPS[name] + 1))
    (_, before), *_, (_, after) = run["accuracy"]
    assert after > before + 0.2
    rewards = [value for _, value in run["reward"]]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


def test_the_page_and_the_picture_are_of_the_record(learning: ModuleType) -> None:
    record = learning.read_record()
    page = learning.PAGE.read_text(encoding="utf-8")
    assert learning.TABLE.findall(page) == [learning.table(record)]
    assert learning.PICTURE.read_text(encoding="utf-8") == learning.draw(record)
