from pathlib import Path

import pytest
import run_folders
import tiny_jobs

pytestmark = pytest.mark.timeout(1_800)


def job(ranks: int, **rollout: object) -> dict[str, object]:
    return {
        "training": {"autocast": "float16"},
        "rollout": {"dtype": "float16", "maxSequences": 16, **rollout},
        "roles": {"actorRollout": {"ranksPerReplica": ranks}},
        "steps": {"total": 2},
        "checkpoint": {"every": 1},
        "timeouts": {"livenessSeconds": 120},
    }


def assert_scaled(calm: Path) -> None:
    for record in run_folders.metrics(calm)[-2:]:
        assert record["actor/loss_scale"] > 1.0
        assert 0.0 < record["actor/grad_norm"] < float("inf")
        assert 0.0 < record["training/rollout_probs_diff_mean"] < 2e-3


@pytest.mark.long
def test_a_killed_job_in_float16_ends_as_a_calm_one(run_twice, even_folder, tmp_path):
    sections = job(2, engine="huggingface")
    manifest = tiny_jobs.write_manifest(tmp_path, even_folder, **sections)
    assert_scaled(run_twice(manifest, "checkpoint.shard.write.middle@4=kill"))


@pytest.mark.long
@pytest.mark.vllm
def test_vllm_in_float16_draws_what_the_trainer_says(alone, even_folder):
    assert_scaled(alone(even_folder, **job(1, engine="vllm", kvCacheGib=0.1)))
