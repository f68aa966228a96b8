import json
import shutil

import pytest
import run_folders
import tiny_jobs
from quantised_models import quantise
from safetensors.torch import load_file
from tiers import first_in_test

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1_800)]

SHORT = {
    "steps": {"total": 2},
    "checkpoint": {"every": 1},
    "timeouts": {"livenessSeconds": 120},
    "roles": {"actorRollout": {"ranksPerReplica": 2}},
}
KL = {"in": "loss", "coefficient": 0.01}
ALGORITHM = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 4, "miniBatchPrompts": 2}


@pytest.mark.parametrize(
    ("model", "form", "engine"),
    first_in_test(
        [
            ("gpt_oss", "mxfp4", "huggingface"),
            ("gpt_oss", "mxfp4", "vllm"),
            ("mixture", "fp8 blocks", "vllm"),
        ]
    ),
)
def test_it_ends_as_a_job_on_its_numbers(
    run_twice, start, tiny_folder_of, tmp_path, model, form, engine
):
    """Policy and reference over two ranks, of one folder; a kill changes no bit."""
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_folder_of(0.0, model), folder)
    quantise(folder / "model", form, tmp_path / "twin")
    rollout = {"engine": engine, "dtype": "float32", "maxSequences": 16}
    job = {
        **SHORT,
        "algorithm": {**ALGORITHM, "kl": KL},
        "rollout": rollout | ({"kvCacheGib": 0.1} if engine == "vllm" else {}),
    }
    manifest = tiny_jobs.write_manifest(tmp_path, folder, **job)
    if engine == "vllm":
        ours = start(manifest, tmp_path / "ours").succeed(900).output
    else:
        ours = run_twice(manifest, "checkpoint.shard.write.middle@3=kill")
    run_folders.assert_trained(ours, 2)
    job["model"] = {"path": str(tmp_path / "twin")}
    manifest = tiny_jobs.write_manifest(tmp_path / "other", folder, **job)
    theirs = start(manifest, tmp_path / "theirs").succeed(900).output
    here, there = run_folders.result(ours), run_folders.result(theirs)
    weights = "export/model.safetensors"
    assert here[weights] == there[weights]
    if engine == "vllm":
        assert here == there
    else:  # it computes in memory as the file lies, which decides last digits of what it draws with
        run_folders.assert_close(ours, theirs)
    config = json.loads((ours / "export" / "config.json").read_text())
    assert config == json.loads((theirs / "export" / "config.json").read_text())
    exported = load_file(ours / "export" / "model.safetensors")
    assert exported.keys() == load_file(tmp_path / "twin" / "model.safetensors").keys()
