"""Jobs whose prompts have pictures: killed they end as they would have."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file
from tiny_models import SEEING, picture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
REWARD = """
def color(data_source, solution_str, ground_truth, extra_info):
    return solution_str.count(ground_truth[0]) / 8
"""


def write_rows(path: Path, count: int) -> None:
    """Rows that ask for the colour of a picture; pictures are of several sizes."""
    names = list(COLORS)
    rows = [
        {
            "prompt": [{"role": "user", "content": "<image>?"}],
            "images": [{"bytes": picture(COLORS[names[n % 3]], (16, 8 + n % 9)), "path": None}],
            "data_source": "colors",
            "reward_model": {"style": "rule", "ground_truth": names[n % 3]},
            "extra_info": {"index": n},
        }
        for n in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


VLLM = {"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param("seeing", {}, id="huggingface"),
        pytest.param("seeing_3", {"rollout": VLLM}, id="vllm", marks=pytest.mark.vllm),
    ],
)
def test_a_killed_job_with_pictures_ends_as_an_undisturbed_one(
    run_through, tmp_path: Path, kind: str, changes
):
    """Over two ranks, one of which computes rows that the other owns; and with engines apart."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.1, kind)
    write_rows(tmp_path / "train.parquet", 24)
    job = {
        "data": {
            **tiny_jobs.make_manifest(tmp_path)["spec"]["data"],
            "train": [{"path": str(tmp_path / "train.parquet")}],
            "validation": [],
        },
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "kl": {"in": "reward", "coefficient": 0.01},
        },
        "rewards": tiny_jobs.reward_at(tmp_path / "color.py", REWARD),
        "roles": {"actorRollout": {"ranksPerReplica": 2}},
        "steps": {"total": 3},
        "checkpoint": {"every": 1},
        "recovery": {"restartsWithoutProgress": 100},
        **changes,
    }
    (tmp_path / "calm").mkdir()
    calm = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path / "calm", tmp_path, **job))
    run_folders.assert_trained(calm, 3)
    steps = [record for record in run_folders.metrics(calm) if record["step"]]
    assert all(record["training/rollout_probs_diff_mean"] < 1e-6 for record in steps)
    before = load_file(tmp_path / "model" / "model.safetensors")
    exported = calm / "export"
    whole = SEEING[kind].from_pretrained(exported)
    tower = {name for name in before if "visual." in name}
    after = load_file(exported / "model.safetensors")
    assert {name for name in before if torch.equal(after[name], before[name])} == tower
    assert whole.model.visual.dtype == torch.float32

    killed = tmp_path / "killed"
    points = ("rpc.update.answer.before@2=kill", "checkpoint.shard.write.middle@4=kill")
    run_through(tiny_jobs.write_manifest(tmp_path, tmp_path, **job), killed, *points, seconds=600)
    assert run_folders.result(killed) == run_folders.result(calm)

    roles = {**job["roles"], "rollout": {"replicas": 2}}
    (tmp_path / "apart").mkdir()
    apart = tiny_jobs.write_manifest(tmp_path / "apart", tmp_path, **{**job, "roles": roles})
    assert run_folders.result(tiny_jobs.run_alone(apart)) == run_folders.result(calm)
