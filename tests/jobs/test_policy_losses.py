import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs

from ppojob_trainer.checkpoint.export_checkpoint import export_checkpoint

ALGORITHM = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 4, "miniBatchPrompts": 2}
FOUR_STEPS = {"total": 4}


@pytest.mark.long
def test_what_a_loss_draws_is_drawn_again(run_twice, tiny_job):
    """clip_cov draws tokens: a job that is killed draws those of one that nobody disturbed."""
    options = {"share": 0.1, "covarianceLow": 0.0, "covarianceHigh": 100.0}
    algorithm = {**ALGORITHM, "policyLoss": {"type": "clip_cov", "clipCov": options}}
    job = tiny_job(algorithm=algorithm, steps=FOUR_STEPS, checkpoint={"every": 1})
    points = ("rpc.update.answer.before@3=kill", "controller.step.computed@3=kill")
    whole = run_twice(job, *points)
    drawn = [record["actor/pg_covfrac"] for record in run_folders.metrics(whole)[-4:]]
    assert all(0.0 < share < 0.1 for share in drawn), drawn


def test_a_loss_of_groups_is_that_of_one_rank_and_survives_kills(
    alone, run_through, even_folder, tmp_path
):
    """Two ranks have a prompt of a mini-batch each, of more tokens than a micro-batch."""
    balance = {"type": "trajectory_balance", "trajectoryBalance": {"beta": 0.5}}
    job = {
        "algorithm": {
            **ALGORITHM,
            "policyLoss": balance,
            "lossAggregation": "sequence_mean_token_mean",
            "kl": {"referenceRefresh": {"everySteps": 2}},
        },
        "training": {"autocast": "none", "microBatchTokens": 8},
        "roles": {"actorRollout": {"ranksPerReplica": 2}},
        "steps": FOUR_STEPS,
    }
    calm = alone(even_folder, **job)
    plain = {"roles": {}, "training": {"autocast": "none"}}
    run_folders.assert_close(calm, alone(even_folder, **(job | plain)))
    records = run_folders.metrics(calm)[-4:]
    assert not run_folders.unnamed(records)
    assert all(record["actor/log_z"] != 0.0 for record in records), "behind the first update"

    killed = tmp_path / "run"
    points = ("rpc.update.answer.before@4=kill", "controller.step.computed@3=kill")
    run_through(tiny_jobs.write_manifest(tmp_path, even_folder, **job), killed, *points)
    assert run_folders.result(killed) == run_folders.result(calm)


@pytest.mark.long
def test_a_partition_is_learnt_and_survives_kills(alone, run_through, even_folder, tmp_path):
    """FlowRL's network is state, that of two ranks is that of one, and no export has it."""
    job = {
        "algorithm": {
            **ALGORITHM,
            "policyLoss": {"type": "flowrl", "flowrl": {"beta": 1.0}},
            "lossAggregation": "sequence_mean_token_mean",
        },
        "training": {"autocast": "none"},
        "roles": {"actorRollout": {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}},
        "steps": FOUR_STEPS,
        "checkpoint": {"every": 1},
    }
    calm = alone(even_folder, **job)
    run_folders.assert_close(calm, alone(even_folder, **(job | {"roles": {}})))
    records = run_folders.metrics(calm)[-4:]
    assert not run_folders.unnamed(records)
    assert all(record["actor/log_z"] != 0.0 for record in records[1:]), "behind the first update"
    newest = calm / "checkpoints" / "step-000004"
    kept = newest / "actorRollout" / "rank-00000" / "model.safetensors"
    assert b"log_partition.output.weight" in kept.read_bytes()
    export_checkpoint(newest, tmp_path / "exported")
    exported = (tmp_path / "exported" / "model.safetensors").read_bytes()
    assert exported == (calm / "export" / "model.safetensors").read_bytes()
    assert b"log_partition" not in exported

    killed = tmp_path / "run"
    points = ("rpc.update.answer.before@4=kill", "controller.step.computed@3=kill")
    run_through(tiny_jobs.write_manifest(tmp_path, even_folder, **job), killed, *points)
    assert run_folders.result(killed) == run_folders.result(calm)


@pytest.mark.long
def test_a_loss_against_the_sampler_leaves_out_what_is_left_behind(start, tiny_job, output: Path):
    loss = {"policyLoss": {"type": "prime_rl"}, "offPolicyThreshold": 1e-4}
    start(tiny_job(algorithm={**ALGORITHM, **loss}, steps={"total": 2}), output).succeed()
    records = run_folders.metrics(output)[-2:]
    assert not run_folders.unnamed(records)
    for record in records:
        assert "timing_s/old_log_prob" not in record
        assert math.isfinite(record["actor/pg_loss"])
        assert 0.0 <= record["actor/pg_clipfrac"] < 1.0
    assert any(0.0 < record["actor/off_policy_frac"] < 1.0 for record in records), records


def test_a_step_of_cut_responses_alone_trains_nothing(start, tiny_job, tiny_data, output: Path):
    """Rows of two tokens: whoever has not ended by then was cut off."""
    data = {**tiny_data, "maxResponseTokens": 2}
    job = tiny_job(algorithm={**ALGORITHM, "maskTruncated": True}, data=data, steps={"total": 2})
    start(job, output).succeed()
    records = run_folders.metrics(output)[-2:]
    assert [record["response_length/clip_ratio"] for record in records] == [1.0, 1.0]
    assert [record["actor/grad_norm"] for record in records] == [0.0, 0.0]
    assert any(record["critic/advantages/max"] > 0.0 for record in records), "their scores count"


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


STEPS = 6


@pytest.mark.long
def test_a_refreshed_reference_is_part_of_a_checkpoint(run_twice, tiny_job):
    """The checkpoint behind step 3 holds the policy of step 2: neither the newest nor the first."""
    job = tiny_job(
        algorithm={
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 2,
            "kl": {
                "in": "reward",
                "lossTerm": {"estimator": "full"},
                "referenceRefresh": {"everySteps": 2},
            },
        },
        roles={"actorRollout": {"ranksPerReplica": 2}},
        steps={"total": STEPS},
        checkpoint={"every": 3},
    )
    points = (
        "rpc.sync_weights.answer.before@3=kill",  # of step 2, refreshed and not answered
        "checkpoint.shard.write.after@4=kill",  # the reference, a rank's last file
        "rpc.update.answer.before@8=kill",  # in step 4: back to the checkpoint
    )
    whole = run_twice(job, *points)
    trained = run_folders.metrics(whole)[-STEPS:]
    distances = [line["actor/reward_kl_penalty"] for line in trained]
    # In the step behind a refresh the policy is the reference, whose passes give the same bits.
    assert [distance == 0.0 for distance in distances] == [True, False] * (STEPS // 2)
    # That of the loss is over a step's updates, and behind the first one they differ.
    assert all(0.0 < line["actor/kl_loss"] < 1.0 for line in trained)
