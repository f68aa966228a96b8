"""vLLM is played sounds, in a process of its own (`vllm_sounds.py`)."""

from pathlib import Path
from typing import Any

import pytest
import tiny_models
from engine_processes import run_together

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(tiny_models.__file__).with_name("vllm_sounds.py")
LARGEST = 1e-5
"""Difference of a log-probability in float32."""


def test_vllm_draws_what_the_whole_model_would(tmp_path: Path) -> None:
    """Of several sounds of several lengths, also after new weights; each is heard once a phase."""
    (facts,) = run_together(SCRIPT, tmp_path, tmp_path, [[]])
    assert_the_wholes(facts)
    assert facts["another sound"] > 0.01
    assert facts["heard"] == 4


def test_vllm_draws_what_qwen_2_5_omni_would(tmp_path: Path) -> None:
    """Of sounds, pictures and videos in one prompt, out of a folder that speaks too."""
    (facts,) = run_together(SCRIPT, tmp_path, tmp_path, [["omni"]])
    assert_the_wholes(facts)
    assert facts["heard"] == 7


def assert_the_wholes(facts: dict[str, Any]) -> None:
    assert facts["first"] < LARGEST
    assert facts["update"] < LARGEST
    assert facts["prompts"]
    assert facts["again"]
