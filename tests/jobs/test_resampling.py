"""Responses that are drawn by their scores: policy and critic train on the same ones."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs


@pytest.mark.long
def test_what_is_drawn_is_drawn_again(run_twice, tiny_job):
    """The critic has pods of its own, to which the draw has to come."""
    algorithm = {
        **tiny_jobs.PPO["algorithm"],
        "kl": {"in": "none"},
        "resampling": {"method": "max_random"},
        "scoreClip": {"low": 0.02, "high": 0.06},
        "truncationPenalty": 0.5,
    }
    job = tiny_job(
        algorithm=algorithm,
        critic=tiny_jobs.PPO["critic"],
        roles={"critic": {"colocateWith": "none"}},
        steps={"total": 3},
        checkpoint={"every": 2},
    )
    points = ("rpc.advantages.answer.after@2=kill", "rpc.update.answer.before@7=kill")
    whole = run_twice(job, *points)
    trained = run_folders.metrics(whole)[-3:]
    shares = [line["training/resampling/distinct_share"] for line in trained]
    assert all(0.0 < share < 1.0 for share in shares), shares
    cut = [row for step in sorted((whole / "rollouts").iterdir()) for row in rows_of(step)]
    told = [row for step in sorted((whole / "advantages").iterdir()) for row in rows_of(step)]
    for row, of_step in zip(cut, told, strict=True):
        assert row["score"] == of_step["score"]
        shaped = min(max(row["score"], 0.02), 0.06) - 0.5 * row["truncated"]
        assert of_step["reward"] == pytest.approx(shaped, abs=1e-6)
    assert {row["truncated"] for row in cut} == {True, False}
    assert min(row["score"] for row in cut) < 0.02
    assert max(row["score"] for row in cut) > 0.06


def rows_of(step: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(step).to_pylist()
    return rows
