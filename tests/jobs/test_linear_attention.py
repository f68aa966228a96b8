"""Jobs of a model with linear attention, by both engines: kills lose nothing."""

from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize(
    ("engine", "dtype", "layout"),
    [("huggingface", "float32", {"sequence": 2}), ("vllm", "bfloat16", {})],
)
def test_a_killed_job_of_linear_attention_ends_as_an_undisturbed_one(
    run_through, tmp_path: Path, engine: str, dtype: str, layout: dict[str, int]
):
    """Over ranks that share heads of states and of attention, and over shards."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.0, "hybrid")
    cache = {"kvCacheGib": 0.1} if engine == "vllm" else {}
    job = {
        "rollout": {"engine": engine, "dtype": dtype, "maxSequences": 16, **cache},
        "roles": {"actorRollout": {"ranksPerReplica": 2, "parallelism": layout}},
        "steps": {"total": 2},
        "checkpoint": {"every": 1},
        "timeouts": {"livenessSeconds": 120},
        "recovery": {"restartsWithoutProgress": 100},
    }
    (tmp_path / "calm").mkdir()
    calm = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path / "calm", tmp_path, **job))
    for record in run_folders.metrics(calm)[-2:]:
        assert record["actor/grad_norm"] > 0.0
        limit = 1e-4 if dtype == "float32" else 0.05
        assert record["training/rollout_probs_diff_mean"] < limit
    before = load_file(tmp_path / "model" / "model.safetensors")
    after = load_file(calm / "export" / "model.safetensors")
    assert after.keys() == before.keys()
    assert {name for name, tensor in after.items() if torch.equal(tensor, before[name])} == set()
    _, facts = AutoModelForCausalLM.from_pretrained(calm / "export", output_loading_info=True)
    assert not any(facts.values())

    killed = tmp_path / "killed"
    points = ["checkpoint.shard.write.middle@4=kill"]
    if engine == "huggingface":  # vLLM takes long to start
        points.append("rpc.update.answer.before@2=kill")
    run_through(tiny_jobs.write_manifest(tmp_path, tmp_path, **job), killed, *points, seconds=900)
    assert run_folders.result(killed) == run_folders.result(calm)
