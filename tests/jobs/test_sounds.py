from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
import torch
from hearing_models import assert_decoder_alone_learnt, tone_file
from safetensors.torch import load_file, save_file
from transformers import Qwen2AudioForConditionalGeneration

PITCHES = {"low": 200, "middle": 900, "high": 4000}
REWARD = """
def pitch(data_source, solution_str, ground_truth, extra_info):
    return solution_str.count(ground_truth[0]) / 8
"""
VLLM = {"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16}
POINTS = ("rpc.update.answer.before@2=kill", "checkpoint.shard.write.middle@4=kill")
SHARED = {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}
PPO = {"type": "ppo", "promptsPerStep": 4, "samplesPerPrompt": 4}
PPO |= {"kl": {"in": "reward", "coefficient": 0.01}}


def write_rows(path: Path, count: int) -> None:
    """Rows that ask for the pitch of a tone; tones are of several lengths and forms."""
    names = list(PITCHES)
    rows = []
    for n in range(count):
        name, seconds = names[n % 3], 0.2 + n % 9 / 20
        sound = tone_file(PITCHES[name], seconds, (16_000, 22_050)[n % 2], ("WAV", "FLAC")[n % 2])
        rows.append(
            {
                "prompt": [{"role": "user", "content": "<audio>?"}],
                "sound": [{"bytes": sound, "path": None}],
                "data_source": "tones",
                "reward_model": {"style": "rule", "ground_truth": name},
                "extra_info": {"index": n},
            }
        )
    pq.write_table(pa.Table.from_pylist(rows), path)


def sound_job(folder: Path, **changes: object) -> dict[str, object]:
    """A job whose rewards count first letters of a pitch."""
    return {
        "data": {
            **tiny_jobs.make_manifest(folder)["spec"]["data"],
            "train": [{"path": str(folder / "train.parquet")}],
            "validation": [],
            "audioKey": "sound",
            "maxPromptTokens": 160,
        },
        "algorithm": {**PPO, "type": "grpo"},
        "rewards": tiny_jobs.reward_at(folder / "pitch.py", REWARD),
        "steps": {"total": 3},
        "checkpoint": {"every": 1},
        **changes,
    }


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"algorithm": PPO, "roles": {"actorRollout": SHARED}}, id="huggingface"),
        pytest.param({"rollout": VLLM}, id="vllm", marks=[pytest.mark.vllm, pytest.mark.long]),
    ],
)
def test_a_killed_job_with_sounds_ends_as_an_undisturbed_one(run_twice, tmp_path: Path, changes):
    """Over ranks that share tokens, with a critic that hears too; and undisturbed by vLLM."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.1, "hearing")
    write_rows(tmp_path / "train.parquet", 24)
    manifest = tiny_jobs.write_manifest(tmp_path, tmp_path, **sound_job(tmp_path, **changes))
    if "rollout" in changes:
        calm = tiny_jobs.run_alone(manifest)
    else:
        calm = run_twice(manifest, *POINTS, seconds=600)
    assert_decoder_alone_learnt(tmp_path / "model", calm, steps=3)
    whole = Qwen2AudioForConditionalGeneration.from_pretrained(calm / "export")
    assert whole.dtype == torch.float32


def tell_apart(path: Path) -> None:
    """Let an encoder that nobody has trained say of two tones what differs, and little else."""
    weights = load_file(path)
    for name, weight in weights.items():
        if name.startswith("audio_tower.") and name.endswith("bias"):
            weight.zero_()
        if name == "multi_modal_projector.linear.weight":
            weight.mul_(20.0)
    save_file(weights, path, {"format": "pt"})


@pytest.mark.long
def test_a_job_learns_what_it_hears(tmp_path: Path):
    """By GRPO: of three pitches no answer that is deaf to them gets more than a third."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.0, "hearing")
    tell_apart(tmp_path / "model" / "model.safetensors")
    write_rows(tmp_path / "train.parquet", 48)
    job = sound_job(
        tmp_path,
        algorithm={"type": "grpo", "promptsPerStep": 12, "samplesPerPrompt": 8},
        optimizer={"learningRate": 3e-3},
        steps={"total": 60},
        checkpoint={"every": 60},
    )
    job["data"]["maxResponseTokens"] = 8
    run = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path, tmp_path, **job))
    scores = [one["critic/score/mean"] for one in run_folders.metrics(run) if one["step"]]
    assert scores[0] < 0.1
    assert sum(scores[-5:]) / 5 > 0.5
