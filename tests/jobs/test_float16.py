"""Jobs in float16, trainer and engine: kills lose nothing, the scale of losses neither."""

import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize("engine", ["huggingface", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_a_killed_job_in_float16_ends_as_a_calm_one(run_twice, even_folder, tmp_path, engine):
    cache = {"kvCacheGib": 0.1} if engine == "vllm" else {}
    job = {
        "training": {"autocast": "float16"},
        "rollout": {"engine": engine, "dtype": "float16", "maxSequences": 16, **cache},
        "roles": {"actorRollout": {"ranksPerReplica": 2}},
        "steps": {"total": 2},
        "checkpoint": {"every": 1},
        "timeouts": {"livenessSeconds": 120},
        "recovery": {"restartsWithoutProgress": 100},
    }
    manifest = tiny_jobs.write_manifest(tmp_path, even_folder, **job)
    calm = run_twice(manifest, "checkpoint.shard.write.middle@4=kill")
    for record in run_folders.metrics(calm)[-2:]:
        assert record["actor/loss_scale"] > 1.0
        assert 0.0 < record["actor/grad_norm"] < float("inf")
        assert 0.0 < record["training/rollout_probs_diff_mean"] < 2e-3
