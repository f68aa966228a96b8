import subprocess
import sys
from pathlib import Path

import pytest
import tiny_jobs
from family_models import FAMILY_MODELS
from tiny_models import TWO_LAYERS, make_model, save_model, write_model

from ppojob_api.v1alpha1.rollout import RolloutSpec
from ppojob_cli.job_file import load_job
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import named_full_adapters, named_full_tensors
from ppojob_trainer.rollout.factory import build_engine


@pytest.mark.processes
def test_the_fallback_engine_loads_no_vllm() -> None:
    code = "import sys, ppojob_trainer.rollout.factory as f; assert 'vllm' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_oss", "qwen3_5_text"])
def test_the_fallback_engine_is_built_of_a_folder(family: str, tmp_path: Path) -> None:
    """Of each kind of layers; a family of its own is nothing to it."""
    kind, options = FAMILY_MODELS[family]
    write_model(tmp_path, make_model(kind, **{**TWO_LAYERS, "pad_token_id": 0, **options}))
    engine = build_engine(
        RolloutSpec(engine="huggingface", dtype="float32", max_model_tokens=64, max_sequences=4),
        tmp_path,
        device="cpu",
        shares_device=True,
        overrides={},
        lora=None,
        records_experts=False,
    )
    engine.close()


def test_the_fallback_engine_has_plain_weights_beside_adapters_of_four_bits(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    sections: dict[str, object] = {
        "model": {"path": str(tmp_path / "model"), "lora": {"rank": 2, "baseType": "nf4"}},
        "rollout": {"engine": "huggingface", "adapters": "beside", "dtype": "float32"},
    }
    spec = load_job(tiny_jobs.write_manifest(tmp_path, tmp_path, **sections)).spec
    engine = build_engine(
        spec.rollout.model_copy(update={"max_model_tokens": 64, "max_sequences": 4}),
        tmp_path / "model",
        device="cpu",
        shares_device=True,
        overrides={},
        lora=spec.adapters_of_engines,
        records_experts=False,
    )
    trained = load_model(tmp_path / "model", lora=spec.model.lora)
    engine.load_weights(
        1, [*named_full_tensors(trained, merges=False), *named_full_adapters(trained)]
    )
    assert engine.policy_version == 1
    engine.close()
