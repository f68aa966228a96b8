"""vLLM's own models of the families that differ most from llama say what transformers says."""

import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models

from ppojob_trainer.models.families import FAMILIES

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(tiny_models.__file__).with_name("vllm_family.py")
OLD = ("llama", "qwen2", "qwen3", "qwen3_moe")
NEW = [name for name in FAMILIES if FAMILIES[name].is_in_vllm and name not in OLD]


@pytest.mark.parametrize("family", NEW)
def test_logprobs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    program = [sys.executable, str(SCRIPT), family, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert float(done.stdout.split()[-1]) < 1e-4
