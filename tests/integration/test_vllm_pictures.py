"""vLLM is shown pictures, in processes of its own (`vllm_pictures.py`)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(tiny_models.__file__).with_name("vllm_pictures.py")
LARGEST = 1e-5
"""Difference of a log-probability in float32."""

Facts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeing")


@pytest.fixture(scope="module")
def facts(folder: Path) -> Facts:
    run(folder, [["0"]])
    return json.loads((folder / "0").read_text())


def run(folder: Path, commands: list[list[str]]) -> None:
    """Run a process a command, whose first word is the name of what it writes."""
    children = []
    try:
        for output, *options in commands:
            argv = [sys.executable, SCRIPT, folder, folder / output, *options]
            with (folder / f"{output}.log").open("wb") as log:
                children.append(subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT))
        for child, (output, *_) in zip(children, commands, strict=True):
            assert child.wait(timeout=300) == 0, (folder / f"{output}.log").read_text()[-6_000:]
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("family", ["2", "2.5"])
@pytest.mark.parametrize("moment", ["first", "update", "squeezed"])
def test_logprobs_are_those_of_the_whole_model(facts: Facts, family: str, moment: str) -> None:
    """Of several pictures of several sizes; after new weights; where rows are begun again."""
    assert facts[family][moment] < LARGEST
    assert facts[family]["another picture"] > 0.1
    assert facts[family]["restarted"] > 0


@pytest.mark.parametrize("family", ["2", "2.5"])
def test_prompts_have_the_tokens_and_positions_that_they_were_given(
    facts: Facts, family: str
) -> None:
    assert facts[family]["prompts"]
    assert facts[family]["restarted row"]


@pytest.mark.parametrize("family", ["2", "2.5"])
def test_a_prompt_is_computed_once_for_its_samples_and_no_other_picture(
    facts: Facts, family: str
) -> None:
    """Prompts 2 and 3 have the same tokens; of long ones the first of three samples computes."""
    cached = facts[family]["cached"]
    for prompt in ("2", "3", "4", "5"):
        assert sorted(cached[f"{prompt}/{sample}"] for sample in range(3)) == [0, 32, 32]


@pytest.mark.parametrize("family", ["2", "2.5"])
def test_the_same_requests_again_give_the_same_bits(facts: Facts, family: str) -> None:
    """Whatever was seen in between, and after a sleep and other weights.

    Each phase shows the tower its four pictures anew, a picture once: in another company the last
    bits of what it says may be others.
    """
    assert facts[family]["again"]
    assert facts[family]["shown"] == 4
    assert facts[family]["shown in three phases"] == 12
    assert facts[family]["back"]


def test_neighbours_share_an_engine_that_sees(facts: Facts, folder: Path) -> None:
    store = ["--store", str(folder / "store")]
    run(folder, [[f"rank-{rank}", "--rank", str(rank), *store] for rank in range(2)])
    first, second = (json.loads((folder / f"rank-{rank}").read_text()) for rank in range(2))
    assert first == second
    for found in first.values():
        assert max(found["first"], found["update"], found["squeezed"]) < LARGEST
        assert found["again"]
        assert found["back"]
