"""Jobs of GPT-2 and GPT-NeoX, killed and calm: by the names of their files, by vLLM."""

from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.processes, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("family", "ranks", "kill", "overrides"),
    [
        (
            "gpt2",
            {},
            "checkpoint.shard.write.middle@4=kill",
            {"layer_norm_epsilon": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
        ),
        (
            "gpt_neox",
            {"ranksPerReplica": 2, "parallelism": {"tensor": 2}},
            "rpc.update.answer.before@2=kill",
            {"layer_norm_eps": 0.1, "hidden_dropout": 0.1},
        ),
    ],
)
def test_a_killed_job_ends_as_an_undisturbed_one(
    run_twice, tiny_folder_of, tmp_path: Path, family: str, ranks, kill: str, overrides
):
    folder = tiny_folder_of(0.0, family)
    job = {
        "model": {
            **{"path": str(folder / "model"), "attentionDropout": 0.1},
            "configOverrides": overrides,
        },
        "steps": {"total": 2},
        "timeouts": {"livenessSeconds": 120},
        "recovery": {"restartsWithoutProgress": 100},
        "rollout": {"engine": "vllm", "dtype": "float32", "maxSequences": 16, "kvCacheGib": 0.1},
        "roles": {"actorRollout": ranks},
        "checkpoint": {"every": 1},
    }
    calm = run_twice(tiny_jobs.write_manifest(tmp_path, folder, **job), kill)
    for record in run_folders.metrics(calm)[-2:]:
        assert record["actor/grad_norm"] > 0.0
        assert record["training/rollout_probs_diff_mean"] < 1e-4
    before, after = (
        load_file(one / "model.safetensors") for one in (folder / "model", calm / "export")
    )
    assert after.keys() == before.keys()
    assert not any(torch.equal(tensor, before[name]) for name, tensor in after.items())
    found = AutoModelForCausalLM.from_pretrained(calm / "export").config.to_dict()
    assert found == {**found, **overrides}
