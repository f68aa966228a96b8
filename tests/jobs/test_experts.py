"""Mixtures of experts by both engines: their numbers are the trainer's, and kills lose nothing."""

from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1_800)]


BESIDE = {"training": {"autocast": "none", "reshardAfterForward": False}}
"""What else ranks that share experts are tried with, and checkpoints in the background."""


@pytest.mark.parametrize(
    ("engine", "replay", "expert"), [("vllm", "recompute", 1), ("huggingface", "rollout", 2)]
)
def test_a_killed_job_of_experts_ends_as_an_undisturbed_one(
    run_through, tmp_path: Path, engine: str, replay: str, expert: int
):
    """Over two ranks, which have all experts by halves or half of them each; experts are kept."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.0, "mixture")
    cache = {"kvCacheGib": 0.1} if engine == "vllm" else {}
    job = {
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 2,
            "routerReplay": replay,
        },
        "rollout": {"engine": engine, "dtype": "float32", "maxSequences": 16, **cache},
        **({} if expert == 1 else BESIDE),
        "roles": {"actorRollout": {"ranksPerReplica": 2, "parallelism": {"expert": expert}}},
        "steps": {"total": 2},
        "checkpoint": {"every": 1, "background": expert > 1},
        "timeouts": {"livenessSeconds": 120},
        "recovery": {"restartsWithoutProgress": 100},
    }
    (tmp_path / "calm").mkdir()
    calm = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path / "calm", tmp_path, **job))
    for record in run_folders.assert_trained(calm, 2):
        assert record["actor/grad_norm"] > 0.0

    before = load_file(tmp_path / "model" / "model.safetensors")
    after = load_file(calm / "export" / "model.safetensors")
    assert after.keys() == before.keys()
    assert {name for name, tensor in after.items() if torch.equal(tensor, before[name])} == set()
    found, facts = AutoModelForCausalLM.from_pretrained(
        calm / "export", dtype=torch.float32, output_loading_info=True
    )
    assert not any(facts.values())
    first = found.model.layers[0].mlp.experts
    names = [f"model.layers.0.mlp.experts.3.{name}_proj.weight" for name in ("gate", "up", "down")]
    gate, up, down = (after[name].float() for name in names)
    assert torch.equal(first.gate_up_proj[3], torch.cat([gate, up]))
    assert torch.equal(first.down_proj[3], down)

    killed = tmp_path / "killed"
    points = ["checkpoint.shard.write.middle@4=kill"]
    if engine == "huggingface":  # vLLM takes long to start
        points.append("rpc.update.answer.before@2=kill")
    run_through(tiny_jobs.write_manifest(tmp_path, tmp_path, **job), killed, *points, seconds=900)
    assert run_folders.result(killed) == run_folders.result(calm)
