from pathlib import Path

import pytest
import run_folders
import tiny_jobs

RIGHT = 0.25
JOB: dict[str, object] = {
    **tiny_jobs.PPO,
    "algorithm": {
        **tiny_jobs.PPO["algorithm"],
        "ppo": {"criticLambda": 1.0, "lengthAdaptiveAlpha": 0.5},
        "positiveExamples": {"coefficient": 0.5, "minScore": RIGHT},
        "truncationPenalty": 1.0,  # which decides nothing of what is right
    },
    "steps": {"total": 4},
    "checkpoint": {"every": 2},
}


@pytest.mark.long
def test_what_is_right_is_learnt_whatever_is_killed(
    run_twice, replay, finished, even_folder: Path, tmp_path: Path
):
    """The critic is in pods of its own, and learns alone at first; ranks change only rounding."""
    roles = {"critic": {"colocateWith": "none"}}
    job = tiny_jobs.write_manifest(tmp_path, even_folder, **JOB, roles=roles)
    points = (
        "rpc.advantages.answer.after@2=kill",
        "rpc.update.answer.before@9=kill",
        "controller.step.computed@3=kill",
    )
    whole = run_twice(job, *points)
    records = run_folders.metrics(whole)
    assert run_folders.unnamed(records) == set()
    trained = [record for record in records if "actor/pg_loss" in record]
    assert len(trained) == 3
    for record in trained:
        terms = record["actor/pg_loss"] + 0.5 * record["actor/positive_loss"]
        assert record["actor/loss"] == pytest.approx(terms, rel=1e-5)
        scores = [row["score"] for row in run_folders.rows(whole, record["step"])]
        assert (record["actor/positive_loss"] > 0.0) == (max(scores) >= RIGHT), scores
    assert any(record["actor/positive_loss"] > 0.0 for record in trained)
    replay(job, whole)

    small = {"training": {"autocast": "none", "microBatchTokens": 60}}
    three = {"actorRollout": {"ranksPerReplica": 3}}
    run_folders.assert_close(finished("three", **JOB, roles=three, **small), whole)
