from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file

from ppojob_trainer.checkpoint.export_checkpoint import export_checkpoint

TRAINED = ["weights", "optimizer", "activations"]


@pytest.mark.long
def test_a_killed_job_with_everything_offloaded_ends_as_a_calm_one_without(
    start, run_through, even_folder: Path, tmp_path: Path
):
    """Four models over two ranks. It may change on the way: unit/api/test_run_config.py."""
    sections: dict[str, object] = {
        **tiny_jobs.PPO,
        "training": {"autocast": "none", "activationCheckpointing": True},
        "model": {"path": str(even_folder / "model"), "averageDecay": 0.5},
        "optimizer": {"learningRate": 1e-3, "momentsDtype": "bfloat16"},
        "rewards": [],
        "rewardModel": {"path": str(tiny_jobs.classifier_of(even_folder)), "dtype": "float32"},
        "steps": {"total": 4, "validateEvery": 2},
    }
    pods = {"actorRollout": {"ranksPerReplica": 2}}
    offloaded = {
        "actorRollout": {"ranksPerReplica": 2, "offload": TRAINED},
        "reference": {"offload": ["weights"]},
        "critic": {"offload": TRAINED},
        "rewardModel": {"offload": ["weights"]},
    }

    def manifest(roles: object) -> Path:
        return tiny_jobs.write_manifest(tmp_path, even_folder, **sections, roles=roles)

    calm, killed = tmp_path / "calm", tmp_path / "killed"
    start(manifest(pods), calm).succeed(600)
    points = (
        "rpc.update.answer.before@3=kill",  # in step 1: back to the beginning
        "rpc.restore.answer.before@1=kill",
        "checkpoint.shard.write.middle@2=kill",
    )
    run_through(manifest(offloaded), killed, *points, seconds=600)
    assert run_folders.result(killed) == run_folders.result(calm)
    # What the job ends with is the average of its checkpoint, not the weights.
    last = calm / "checkpoints" / "step-000004"
    export_checkpoint(last, tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    again = load_file(calm / "export" / "model.safetensors")
    assert all(torch.equal(weight, again[name]) for name, weight in exported.items())
    weights = load_file(last / "actorRollout" / "rank-00000" / "model.safetensors")
    assert not torch.equal(weights["model.norm.weight"], again["model.norm.weight"])
