"""vLLM is played audios, in a process of its own (`vllm_audios.py`)."""

from pathlib import Path

import pytest
import tiny_models
from engine_processes import run_together

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(tiny_models.__file__).with_name("vllm_audios.py")
LARGEST = 1e-5
"""Difference of a log-probability in float32."""


def test_vllm_draws_what_the_whole_model_would(tmp_path: Path) -> None:
    """Also after new weights; each is shown once a phase.

    `audio`: of several audios of several lengths; others, Qwen2.5-Omni and Qwen3-Omni: of audios,
    images and videos in one prompt, out of a folder that speaks too.
    """
    (found,) = run_together(SCRIPT, tmp_path, tmp_path, [[]])
    for facts in found.values():
        assert facts["first"] < LARGEST
        assert facts["update"] < LARGEST
        assert facts["prompts"]
        assert facts["again"]
    assert found["audio"]["another audio"] > 0.01
    assert {kind: facts["heard"] for kind, facts in found.items()} == {"audio": 4, "2.5": 7, "3": 7}
