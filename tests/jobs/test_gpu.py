"""Whole jobs on one GPU, with the types of numbers that `auto` is there (`make test-gpu`)."""

import subprocess
import sys
from pathlib import Path

import job_points
import one_gpu
import pytest
import run_folders
import tiny_jobs
import torch
from ruamel.yaml import YAML

pytestmark = [pytest.mark.gpu, pytest.mark.processes, pytest.mark.timeout(900)]

ONE_GPU = {"gpusPerReplica": 1}
OWN_GPU = {"colocateWith": "none", **ONE_GPU}
AUTO = {"training": {}, "rollout": {"engine": "huggingface"}}
FLOAT32 = {
    "training": {"autocast": "none"},
    "rollout": {"engine": "huggingface", "dtype": "float32"},
}
VLLM = {"engine": "vllm", "kvCacheGib": 0.25, "maxSequences": 16}
FOUR_STEPS = {"steps": {"total": 4, "validateEvery": 2}, "timeouts": {"livenessSeconds": 120}}


def manifest(folder: Path, tiny_folder: Path, role: object = ONE_GPU, **sections: object) -> Path:
    changes = {"roles": {"actorRollout": role}, **FOUR_STEPS, **sections}
    return tiny_jobs.write_manifest(folder, tiny_folder, **changes)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_job_in_float32_is_that_of_a_processor(algorithm, start, even_folder, tmp_path):
    sections = FLOAT32 | (tiny_jobs.PPO if algorithm == "ppo" else {})
    runs = {}
    for device, role in (("gpu", ONE_GPU), ("cpu", {})):
        job = manifest(tmp_path / device, even_folder, role, **sections)
        runs[device] = start(job, tmp_path / device / "run")
    ours, theirs = (run_folders.without_clock(run.succeed().output) for run in runs.values())
    assert len(ours) == len(theirs)
    for here, there in list(zip(ours, theirs, strict=True))[:2]:
        assert here == pytest.approx(there, rel=1e-3, abs=1e-4, nan_ok=True)


def folder_of(folder: Path, kind: str) -> Path:
    made = folder / kind
    made.mkdir(exist_ok=True)
    tiny_jobs.make_tiny_folder(made, 0.0, kind)
    return made


def with_dropout(folder: Path) -> dict[str, object]:
    return {}


def with_float16(folder: Path) -> dict[str, object]:
    return {
        "training": {"autocast": "float16"},
        "rollout": {"engine": "huggingface", "dtype": "float16"},
    }


def with_four_models_offloaded(folder: Path) -> dict[str, object]:
    trained = ["weights", "optimizer", "activations"]
    return {
        **tiny_jobs.PPO,
        "training": {"activationCheckpointing": True},
        "rewards": [],
        "rewardModel": {"path": str(tiny_jobs.classifier_of(folder))},
        "roles": {
            "actorRollout": {**ONE_GPU, "offload": trained},
            "reference": {"offload": ["weights"]},
            "critic": {"offload": trained},
            "rewardModel": {"offload": ["weights"]},
        },
    }


def with_adapters(folder: Path) -> dict[str, object]:
    return {
        "model": {"path": str(folder / "model"), "lora": {"rank": 4}},
        "rollout": {"engine": "huggingface", "adapters": "beside"},
    }


def with_log_z(folder: Path) -> dict[str, object]:
    algorithm = tiny_jobs.make_manifest(folder)["spec"]["algorithm"]
    return {
        "algorithm": {
            **algorithm,
            "policyLoss": {"type": "flowrl"},
            "lossAggregation": "sequence_mean_token_mean",
        }
    }


def with_process_rewards(folder: Path) -> dict[str, object]:
    algorithm = tiny_jobs.make_manifest(folder)["spec"]["algorithm"]
    return {
        "algorithm": {**algorithm, "type": "prime"},
        "critic": {"optimizer": {"learningRate": 1e-3}},
    }


def with_states(folder: Path) -> dict[str, object]:
    """Layers of Mamba-2, of experts and of attention."""
    return {"model": {"path": str(folder_of(folder, "nemotron_h") / "model")}}


def with_vllm(folder: Path) -> dict[str, object]:
    return {"rollout": VLLM, "roles": {"actorRollout": {**ONE_GPU, "offload": ["optimizer"]}}}


def with_adapters_in_vllm(folder: Path) -> dict[str, object]:
    return {**with_adapters(folder), "rollout": {**VLLM, "adapters": "beside"}}


def with_experts_of_vllm(folder: Path) -> dict[str, object]:
    mixture = folder_of(folder, "mixture")
    algorithm = tiny_jobs.make_manifest(mixture)["spec"]["algorithm"]
    return {
        "model": {"path": str(mixture / "model")},
        "rollout": {**VLLM, "enforceEager": True},
        "algorithm": {**algorithm, "routerReplay": "rollout"},
    }


@pytest.mark.parametrize(
    "sections",
    [
        with_dropout,
        with_float16,
        with_four_models_offloaded,
        with_adapters,
        with_log_z,
        with_process_rewards,
        with_states,
        pytest.param(with_vllm, marks=pytest.mark.vllm),
        pytest.param(with_adapters_in_vllm, marks=pytest.mark.vllm),
        pytest.param(with_experts_of_vllm, marks=pytest.mark.vllm),
    ],
)
def test_killed_on_a_gpu_a_job_ends_with_the_bits_of_one_that_was_not(
    sections, start, run_through, tiny_folder, even_folder, tmp_path
):
    folder = tiny_folder if sections is with_dropout else even_folder
    job = manifest(tmp_path, folder, **{**AUTO, **sections(folder)})
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    start(job, calm).succeed(600)
    points = ["rpc.update.answer.before@3=kill"]
    if "vllm" not in sections.__name__:  # which takes long to start
        points.append("rpc.generate.answer.before@2=kill")
        points.append("checkpoint.seal.rename.after@1=kill_group")
    run_through(job, killed, *points, seconds=600)
    assert run_folders.result(killed) == run_folders.result(calm)
    spec = YAML(typ="safe").load((calm / "job.yaml").read_text())["spec"]
    numbers = "float16" if sections is with_float16 else "bfloat16"
    assert (spec["training"]["autocast"], spec["rollout"]["dtype"]) == (numbers, numbers)


def test_roles_on_gpus_of_their_own_speak_by_nccl(start, once, even_folder, tmp_path):
    """Two ranks of the policy, a critic and a reference; where there is one GPU, all share it."""
    roles = {"reference": OWN_GPU, "critic": OWN_GPU, "actorRollout": {"replicas": 2, **ONE_GPU}}
    job = manifest(tmp_path, even_folder, roles=roles, **AUTO, **tiny_jobs.PPO)
    gpus = one_gpu.shared_by_pods(tmp_path, 4) if torch.cuda.device_count() < 4 else {}
    start(job, tmp_path / "calm", **gpus).succeed(600)
    points = ["rpc.update.answer.before@3=kill", "rpc.open_channel.answer.before@2=kill"]
    start(job, tmp_path / "killed", **gpus, **job_points.armed(once, *points)).succeed(600)
    assert run_folders.result(tmp_path / "killed") == run_folders.result(tmp_path / "calm")
    assert sorted(marker.name for marker in once.iterdir()) == sorted(points)


def test_a_plan_says_that_a_gpu_is_used(even_folder, tmp_path):
    job = manifest(tmp_path, even_folder, **AUTO)
    command = [sys.executable, "-m", "ppojob_cli", "plan", job]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "1 GPU in all" in told
