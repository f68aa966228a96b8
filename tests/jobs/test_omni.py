from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_jobs
from hearing_models import assert_decoder_alone_learnt, tone_file
from tiny_models import picture
from transformers import Qwen2_5OmniForConditionalGeneration, Qwen3OmniMoeForConditionalGeneration

PITCHES, COLORS = (200, 900, 4000), ("red", "green", "blue")
REWARD = """
def letters(data_source, solution_str, ground_truth, extra_info):
    return solution_str.count(ground_truth[0]) / 8
"""
VLLM = {"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16}
POINTS = ("rpc.update.answer.before@2=kill", "checkpoint.shard.write.middle@4=kill")
PPO = {"type": "ppo", "promptsPerStep": 4, "samplesPerPrompt": 4}
PPO |= {"kl": {"in": "reward", "coefficient": 0.01}}
SHARED = {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}


def write_rows(path: Path, count: int) -> None:
    """Rows with a tone, with a square, and with both."""
    rows = []
    for n in range(count):
        color = COLORS[n % 3]
        shows = ("<audio>?", "<image>?", "<image>?<audio>", "<audio><image>")[n % 4]
        sound = {"bytes": tone_file(PITCHES[n % 3], 0.2 + n % 9 / 4), "path": None}
        seen = {"bytes": picture(color, (16, 8 + n % 5 * 8)), "path": None}
        rows.append(
            {
                "prompt": [{"role": "user", "content": shows}],
                "audios": [sound] if "<audio>" in shows else [],
                "images": [seen] if "<image>" in shows else [],
                "data_source": "both",
                "reward_model": {"style": "rule", "ground_truth": color},
                "extra_info": {"index": n},
            }
        )
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param(
            "2.5", {"algorithm": PPO, "roles": {"actorRollout": SHARED}}, id="huggingface"
        ),
        pytest.param("3", {"rollout": VLLM}, id="vllm", marks=pytest.mark.vllm),
    ],
)
def test_a_killed_job_ends_as_an_undisturbed_one(run_twice, tmp_path: Path, kind, changes):
    """Over ranks that share tokens, with a critic; and by vLLM. What is not trained is kept."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.1, f"omni {kind}")
    write_rows(tmp_path / "train.parquet", 24)
    manifest = tiny_jobs.write_manifest(
        tmp_path,
        tmp_path,
        data={
            **tiny_jobs.make_manifest(tmp_path)["spec"]["data"],
            "train": [{"path": str(tmp_path / "train.parquet")}],
            "validation": [],
            "maxPromptTokens": 240,
        },
        rewards=tiny_jobs.reward_at(tmp_path / "letters.py", REWARD),
        steps={"total": 3},
        checkpoint={"every": 1},
        **{"algorithm": {**PPO, "type": "grpo"}, **changes},
    )
    if "rollout" in changes:
        calm = tiny_jobs.run_alone(manifest)
    else:
        calm = run_twice(manifest, *POINTS, seconds=600)
    assert_decoder_alone_learnt(tmp_path / "model", calm, steps=3)
    if kind == "3":
        Qwen3OmniMoeForConditionalGeneration.from_pretrained(calm / "export")
    else:
        assert Qwen2_5OmniForConditionalGeneration.from_pretrained(calm / "export").speaker_map
