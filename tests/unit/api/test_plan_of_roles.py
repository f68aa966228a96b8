from typing import Any

import pytest
from bad_specs import GOOD_JOB

from ppojob_api.run_config import resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.plan import plan_lines


def planned(**spec: Any) -> list[str]:
    """The lines of a plan up to how long it runs, without the digest."""
    algorithm = {"type": "ppo", "promptsPerStep": 16, "samplesPerPrompt": 1, "kl": {"in": "reward"}}
    given = GOOD_JOB["spec"] | {"algorithm": algorithm} | spec
    lines = list(plan_lines(resolve(PPOJob.model_validate({**GOOD_JOB, "spec": given}))))
    return lines[2 : lines.index("Memory at the least; activations and caches come on top")]


def test_every_role() -> None:
    lines = planned(
        critic={"warmupSteps": 2, "miniBatchPrompts": 4, "epochs": 3},
        rewardModel={"path": "/models/rm"},
        rewards=[{"function": "gsm8k"}],
        roles={
            "actorRollout": {"replicas": 2, "gpusPerReplica": 4},
            "critic": {"colocateWith": "none", "gpusPerReplica": 2},
        },
        steps={"total": 20, "validateEvery": 5},
        checkpoint={"every": 10, "best": {"metric": "val-core/sum/acc/mean@1"}},
    )
    assert lines == [
        "Roles",
        "  controller    1 pod, 1 rank each, 1 thread a rank, CPU: sum-controller-0.sum-controller",
        "  actorRollout  2 pods, 4 ranks each, 1 thread a rank, 4 GPUs a pod:"
        " sum-actor-rollout-0.sum-actor-rollout ... sum-actor-rollout-1.sum-actor-rollout",
        "  reference     in the 8 ranks of actorRollout",
        "  critic        1 pod, 2 ranks each, 1 thread a rank, 2 GPUs a pod:"
        " sum-critic-0.sum-critic",
        "  rewardModel   in the 8 ranks of actorRollout",
        "  reward        1 pod, 1 rank each, 1 thread a rank, CPU: sum-reward-0.sum-reward",
        "  10 GPUs in all",
        "",
        "One step",
        "  16 prompts x 1 sample = 16 responses, at most 8192 response tokens",
        "  policy: 1 mini-batch of 16 prompts x 1 epoch = 1 optimizer step",
        "  critic: 4 mini-batches of 4 prompts x 3 epochs = 12 optimizer steps",
        "  micro-batches of 16384 tokens; the longest prompt and response take 1024",
        "",
        "Run",
        "  20 steps: 320 prompts, 320 responses",
        "  warm-up: 2 steps train the critic alone",
        "  validation: before the first step, every 5 steps, after the last step",
        "  checkpoints: every 10 steps, after the last step; the newest 2 are kept,"
        " and the one of max val-core/sum/acc/mean@1",
        "",
    ]


def test_how_ranks_share_a_model_and_how_far_engines_are_ahead() -> None:
    lines = planned(
        algorithm={"type": "grpo", "promptsPerStep": 16, "samplesPerPrompt": 8},
        rollout={"maxStaleness": 1, "parallelism": {"tensor": 4}},
        roles={
            "actorRollout": {
                "ranksPerReplica": 8,
                "parallelism": {"pipeline": 2, "tensor": 2, "sequence": 2},
            },
            "rollout": {"replicas": 4, "ranksPerReplica": 2},
        },
    )
    assert " a rank, CPU, pipeline 2, tensor 2, sequence 2: sum-actor" in lines[2]
    assert " a rank, CPU, at most 1 step ahead: sum-rollout" in lines[3]
    assert "  2 engines in rollout, 4 ranks each over 2 pods" in lines
    beside = planned(rollout={"maxStaleness": 2}, roles={"actorRollout": {"ranksPerReplica": 2}})
    assert any(", at most 2 steps ahead: sum-actor" in line for line in beside)


@pytest.mark.parametrize(
    ("roles", "ahead"),
    [({}, "at most 2 rounds ahead: sum-a"), ({"rollout": {}}, "at most 1 round ahead: sum-r")],
)
def test_rounds_are_planned(roles: dict[str, object], ahead: str) -> None:
    rounds = {"promptsPerRound": 24, "maxRounds": 5, "metric": "acc"}
    lines = planned(
        algorithm={"type": "grpo", "promptsPerStep": 16, "dynamicSampling": rounds},
        rollout={"maxStaleness": 1 if roles else 2},
        roles=roles,
    )
    assert any(ahead in line for line in lines)
    assert "  rounds of 24 prompts, at most 5, until 16 are kept by acc" in lines


@pytest.mark.parametrize(("tokens", "waits"), [(64 * 1024, True), (64 * 1024 - 1, False)])
def test_stages_that_always_have_one_micro_batch_are_told_of(tokens: int, waits: bool) -> None:
    """Eight prompts of eight rows for each of two pairs of stages, of 1,024 tokens at the most."""
    layout = {"ranksPerReplica": 4, "parallelism": {"pipeline": 2}}
    lines = planned(
        algorithm={"type": "grpo", "promptsPerStep": 16, "samplesPerPrompt": 8},
        training={"microBatchTokens": tokens},
        roles={"actorRollout": layout},
    )
    told = [line for line in lines if "a mini-batch is one micro-batch: one of 2 pipeline" in line]
    assert len(told) == waits


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("validateOnly", "one validation, and nothing is trained"),
        ("generateOnly", "responses to the held-out prompts, and nothing is scored or trained"),
    ],
)
def test_nothing_is_trained(field: str, told: str) -> None:
    lines = planned(steps={field: True})
    assert lines[lines.index("Run") + 1] == f"  {told}"


def test_a_sampler_chooses_nothing_where_nothing_is_trained() -> None:
    data = {**GOOD_JOB["spec"]["data"], "sampler": {"function": "uncertain"}}
    lines = planned(steps={"validateOnly": True}, data=data)
    assert lines[lines.index("Run") + 1].endswith("trained: data.sampler chooses no rows")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "their loss counts 0.5 times"),
        (
            {"warmupSteps": 1, "schedule": "cosine", "decaySteps": 9, "minCoefficient": 0.1},
            "their loss counts 0.5 times, from 0 on over 1 step, "
            "and falls (cosine) to 0.1 by step 9",
        ),
        (
            {"interpolate": True},
            "their loss counts 0.5 times; that of the policy by what is left to 1",
        ),
    ],
)
def test_how_much_given_answers_count(changes: dict[str, object], told: str) -> None:
    grpo = {"type": "grpo", "promptsPerStep": 16, "samplesPerPrompt": 8}
    data = {**GOOD_JOB["spec"]["data"], "demonstrations": [{"path": "d.parquet"}]}
    lines = planned(algorithm={**grpo, "supervised": {"coefficient": 0.5, **changes}}, data=data)
    assert f"  {told}" in lines


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (
            {"policyLoss": {"type": "gvpo"}},
            "8 responses to a prompt, which are in one micro-batch: up to 4608 tokens",
        ),
        (
            {"type": "online_dpo"},
            "2 responses to a prompt, which are in one micro-batch: up to 1536 tokens",
        ),
        ({}, None),
    ],
)
def test_how_large_a_micro_batch_becomes_whose_rows_are_compared(algorithm, told) -> None:
    loss = {"lossAggregation": "sequence_mean_token_mean"} if "policyLoss" in algorithm else {}
    compared = {"type": "grpo", "promptsPerStep": 16, "samplesPerPrompt": 8, **algorithm, **loss}
    lines = planned(algorithm=compared, training={"microBatchTokens": 1024})
    found = [line for line in lines if "the loss compares" in line]
    assert found == ([f"  the loss compares {told}"] if told else [])


@pytest.mark.parametrize(
    ("data", "algorithm", "told"),
    [
        ({}, {"type": "grpo", "kl": {"in": "loss"}}, None),
        (
            {"teacherPromptKey": "hint", "maxTeacherPromptTokens": 1000},
            {"type": "grpo", "kl": {"in": "loss"}},
            "of column hint: the longest prompt and response take 1512",
        ),
        (
            {},
            {"type": "distillation", "distillation": {"reprompt": {"feedbackKey": "said"}}},
            "of responses that score 1 or more, and of said:"
            " the longest prompt and response take 1792",
        ),
    ],
)
def test_what_the_reference_reads_in_the_place_of_prompts(data, algorithm, told) -> None:
    sizes = {"promptsPerStep": 16, "samplesPerPrompt": 8}
    found = planned(data=GOOD_JOB["spec"]["data"] | data, algorithm=algorithm | sizes)
    lines = [line.partition("each response, ")[2] for line in found if "before each" in line]
    assert lines == ([told] if told else [])
