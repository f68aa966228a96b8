"""Tiny jobs whose prompts show images or play audios, and are asked for a word of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tiny_jobs

REWARD = """
def letters(data_source, solution_str, ground_truth, extra_info):
    return solution_str.count(ground_truth[0]) / 8
"""
VLLM = {"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16}
POINTS = ("rpc.update.answer.before@2=kill", "checkpoint.shard.write.middle@4=kill")
SHARED = {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}
PPO = {"type": "ppo", "promptsPerStep": 4, "samplesPerPrompt": 4}
PPO |= {"kl": {"in": "reward", "coefficient": 0.01}}


def row_of(index: int, asked: str, word: str, **shown: object) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": asked}],
        "data_source": "letters",
        "reward_model": {"style": "rule", "ground_truth": word},
        "extra_info": {"index": index},
        **shown,
    }


def write_table(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


def media_job(folder: Path, data: dict[str, object], **changes: object) -> dict[str, Any]:
    """Sections of a job whose rewards count how often a response has a word's first letter."""
    given = tiny_jobs.make_manifest(folder)["spec"]["data"]
    train = [{"path": str(folder / "train.parquet")}]
    return {
        "data": {**given, "train": train, "validation": [], **data},
        "algorithm": {**PPO, "type": "grpo"},
        "rewards": tiny_jobs.reward_at(folder / "letters.py", REWARD),
        "steps": {"total": 3},
        "checkpoint": {"every": 1},
        **changes,
    }
