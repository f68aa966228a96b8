"""What is shown of the algorithms that learn is what was recorded, of the jobs as they are."""

import json
import re
import xml.etree.ElementTree as ElementTree
from types import ModuleType

import pytest

from ppojob_api import validation
from ppojob_api.v1alpha1.job import PPOJob

SVG = "{http://www.w3.org/2000/svg}"
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


def test_the_table_and_the_picture_show_what_changes(learning: ModuleType) -> None:
    """Were it not so, they would show nothing of the record."""
    record = learning.read_record()
    other = json.loads(json.dumps(record))
    other["rloo"]["accuracy"][-1][1] = 0.123
    other["rloo"]["reward"][-1][1] = 0.0
    changed = [
        (was, now)
        for was, now in zip(
            learning.table(record).splitlines(), learning.table(other).splitlines(), strict=True
        )
        if was != now
    ]
    assert len(changed) == 1
    assert re.match(r"\| `rloo` \|.*\| 0\.12 \|$", changed[0][1])
    assert "0.12" in {
        text.text for text in ElementTree.fromstring(learning.draw(other)).iter(f"{SVG}text")
    }
