"""A reference that takes over the policy's weights every two steps, with the KL of all tokens."""

import pytest
import run_folders

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
