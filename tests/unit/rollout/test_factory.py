import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import save_model

from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_trainer.models.load import load_model
from ppojob_trainer.rollout.factory import build_engine
from ppojob_trainer.rollout.protocol import Request, RolloutError, SamplingParams, generate

pytestmark = pytest.mark.processes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path, bos_token_id=None, eos_token_id=None)
    return tmp_path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fallback_engine_runs_from_a_folder(folder: Path, dtype: str) -> None:
    section = {"engine": "huggingface", "dtype": dtype, "maxSequences": 2, "maxModelTokens": 12}
    engine = build_engine(RolloutSpec.model_validate(section), folder)
    with pytest.raises(RolloutError, match="the engine is asleep"):
        engine.submit(Request("early", (1,), SamplingParams(1.0, 1.0, -1, max_tokens=1), seed=0))
    engine.load_weights(0, load_model(folder).named_parameters())
    sampling = SamplingParams(1.0, 1.0, -1, max_tokens=10)
    done = generate(engine, [Request(f"{n}", (1, 2), sampling, seed=n) for n in range(5)])
    assert [len(d.tokens) for d in done] == [10] * 5
    with pytest.raises(ValueError, match="at most 12"):
        engine.submit(Request("long", (1, 2, 3), sampling, seed=0))


def test_the_fallback_engine_loads_no_vllm() -> None:
    code = "import sys, ppojob_trainer.rollout.factory as f; assert 'vllm' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
