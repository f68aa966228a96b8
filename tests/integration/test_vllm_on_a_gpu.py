"""The real vLLM on a GPU, in processes of its own (`vllm_gpu_facts.py`)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_processes import environment
from family_models import is_half_in_vllm
from made_once import made_once
from tiny_models import FOR_ENGINES, save_model

from ppojob_trainer.models.families import FAMILIES

pytestmark = [pytest.mark.gpu, pytest.mark.vllm, pytest.mark.timeout(1_800)]

SCRIPT = Path(__file__).with_name("vllm_gpu_facts.py")
# Largest and mean |log-probability of vLLM - of a float32 forward|.
LIMITS = {"float32": (1e-4, 1e-5), "bfloat16": (1e-1, 1e-2)}
VARIANTS = ["eager float32", "eager bfloat16", "compiled bfloat16", "compiled untied bfloat16"]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    def make(folder: Path) -> None:
        for kind in ("tied", "untied"):
            sizes = {**FOR_ENGINES, "tie_word_embeddings": kind == "tied"}
            save_model(folder / kind, **sizes)
        program = [sys.executable, str(SCRIPT), str(folder), str(folder / "facts.json")]
        done = subprocess.run(
            program, capture_output=True, text=True, timeout=1_700, env=environment()
        )
        assert done.returncode == 0, done.stderr[-4_000:]

    return json.loads((made_once(tmp_path_factory, "gpu", make) / "facts.json").read_text())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("moment", range(4))
def test_logprobs_are_those_of_the_trainer(facts, variant: str, moment: int) -> None:
    assert isinstance(facts[variant], dict), facts[variant]
    largest, mean = LIMITS[variant.split()[-1]]
    found = facts[variant][f"update {moment}"]
    assert found["max"] <= largest
    assert found["mean"] <= mean


@pytest.mark.parametrize("variant", VARIANTS)
def test_synchronised_weights_equal_a_fresh_engine_bit_by_bit(facts, variant: str) -> None:
    assert facts[variant]["again"]
    assert facts[variant]["first"] == facts[f"{variant}, first"]
    assert facts[variant]["last"] == facts[f"{variant}, last"]


def test_adapters_beside_weights_are_those_of_the_trainer(facts) -> None:
    found, (largest, mean) = facts["adapters"], LIMITS["bfloat16"]
    for moment in ("first", "update"):
        assert found[moment]["max"] <= largest
        assert found[moment]["mean"] <= mean
    assert found["all again"]
    assert not found["aliased"]


def test_an_engine_that_sleeps_gives_its_memory_back(facts) -> None:
    assert facts["asleep"]["given back"] > 4.0
    assert facts["asleep"]["again"]


def test_rows_are_cut_off_and_shared_as_on_processors(facts) -> None:
    found = facts["behaviour"]
    assert found["distinct"] == 64
    assert found["aborted"]["tokens"] == found["unaborted prefix"]
    assert found["spared"]
    assert found["awake"]
    assert found["marks of start"] == found["marks of generate"] == []
    assert found["no numbers"].startswith("RolloutError: request '0': got NaN for the prob")


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_transformers(facts, family: str) -> None:
    assert isinstance(facts[family], float), facts[family]
    assert facts[family] < (0.1 if is_half_in_vllm(family, "cuda") else 1e-3)
