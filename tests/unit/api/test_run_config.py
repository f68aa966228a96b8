import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from bad_specs import GOOD_JOB, changed_job
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ppojob_api import validation
from ppojob_api.problem import ReasonCode
from ppojob_api.run_config import EngineFacts, RunConfig, layout_json, resolve
from ppojob_api.v1alpha1.job import PPOJob


def tree(**spec: Any) -> dict[str, Any]:
    return {**GOOD_JOB, "spec": GOOD_JOB["spec"] | spec}


def job(**spec: Any) -> PPOJob:
    judged = validation.validate(tree(**spec))
    assert isinstance(judged, PPOJob), judged
    return judged


def algorithm(kind: str, **settings: Any) -> dict[str, Any]:
    return {"type": kind, "promptsPerStep": 16, "samplesPerPrompt": 8, **settings}


CLIP_COV = {"policyLoss": {"type": "clip_cov", "clipCov": {"covarianceLow": 2}}}

# What is changed in the good job, and what then stands in its resolved spec.
RESOLVED = """
seed: 7 => data.seed: 7
seed: 7; data.seed: 0 => data.seed: 0
data.shuffle: false => data.seed: null
=> algorithm.miniBatchPrompts: 16; algorithm.grpo.normalizeByStd: true; algorithm.ppo: null
=> algorithm.kl.estimator: null; algorithm.lossScaleTokens: null; algorithm.rolloutCorrection: null
=> critic: null; rewardModel: null; roles.critic: null; roles.reference: null
=> model.tokenizerPath: /models/m; rollout.maxModelTokens: 1024
=> roles.actorRollout.ranksPerReplica: 1; roles.actorRollout.threadsPerRank: 1
model.tokenizerPath: /t; rollout.maxModelTokens: 2048 => model.tokenizerPath: /t; rollout.maxModelTokens: 2048
algorithm.miniBatchPrompts: 4 => algorithm.miniBatchPrompts: 4
algorithm.grpo.normalizeByStd: false => algorithm.grpo.normalizeByStd: false
algorithm.type: reinforce_plus_plus => algorithm.reinforcePlusPlus.gamma: 1.0; algorithm.grpo: null
algorithm.kl.in: loss => algorithm.kl.estimator: k3; roles.reference.colocateWith: actorRollout
algorithm.kl.in: reward => algorithm.kl.estimator: k1
algorithm.kl: {in: loss, estimator: k2} => algorithm.kl.estimator: k2
algorithm.lossAggregation: sequence_mean_token_sum_norm => algorithm.lossScaleTokens: 512
algorithm.policyLoss: {type: clip_cov} => algorithm.policyLoss.clipCov.share: 0.0002
algorithm.policyLoss: {type: bypass} => algorithm.policyLoss.bypass.form: clip
algorithm.type: ppo => algorithm.ppo.gamma: 1.0; algorithm.ppo.lambda: 1.0; roles.critic.colocateWith: actorRollout
algorithm.type: ppo => critic.path: /models/m; critic.epochs: 1; critic.optimizer.learningRate: 1.0e-5
algorithm.type: ppo; algorithm.miniBatchPrompts: 8 => critic.miniBatchPrompts: 8
algorithm.type: ppo; critic: {path: /c, epochs: 2, miniBatchPrompts: 4} => critic.path: /c; critic.epochs: 2; critic.miniBatchPrompts: 4
rewardModel.path: /r => rewardModel.tokenizerPath: /r; roles.rewardModel.colocateWith: actorRollout
roles.actorRollout: {replicas: 2, ranksPerReplica: 2, cpu: 4} => rollout.parallelism.data: 4; roles.actorRollout.threadsPerRank: 2; roles.actorRollout.parallelism.dataShard: 4
roles.actorRollout: {ranksPerReplica: 6, parallelism: {sequence: 2}} => roles.actorRollout.parallelism.dataShard: 3
roles.actorRollout: {ranksPerReplica: 6, parallelism: {pipeline: 2}} => roles.actorRollout.parallelism.dataShard: 3
algorithm.type: ppo; roles.critic: {colocateWith: none, ranksPerReplica: 4} => roles.critic.ranksPerReplica: 4; roles.critic.parallelism.dataShard: 4
algorithm.kl.in: loss => roles.reference.parallelism.dataShard: null; roles.reference.ranksPerReplica: null
"""  # noqa: E501 - a case a line


@pytest.mark.parametrize("case", RESOLVED.strip().splitlines())
def test_defaults_are_written_out(case: str) -> None:
    changes, written = ([one for one in side.split("; ") if one] for side in case.split("=> "))
    judged = validation.validate(changed_job([f"spec.{change.strip()}" for change in changes]))
    assert isinstance(judged, PPOJob), judged
    spec = resolve(judged).job().model_dump(mode="json")["spec"]
    for line in written:
        path, _, text = line.partition(": ")
        value = spec
        for key in path.split("."):
            value = value[key]
        assert value == YAML(typ="safe").load(text), path


def test_a_policy_loss_is_called_with_its_settings_and_those_of_clip() -> None:
    def settings_of(**spec: Any) -> dict[str, Any]:
        return resolve(
            job(algorithm=algorithm("grpo", **spec))
        ).spec.algorithm.policy_loss.settings()

    clip = {"clip_low": 0.2, "clip_high": 0.2}
    assert settings_of() == {**clip, "dual_clip": 3.0}
    covariances = {"share": 0.0002, "covariance_low": 2.0, "covariance_high": 5.0}
    assert settings_of(**CLIP_COV) == {**clip, **covariances}
    assert settings_of(policyLoss={"type": "bypass"})["dual_clip"] == 3.0


def test_the_lower_bound_of_a_ratio_is_written_out() -> None:
    rejection = [{"mode": "token_k1", "high": 4}, {"mode": "seq_max_k3", "high": 0.5}]
    correction = {"weights": "token", "rejection": rejection}
    spec = resolve(job(algorithm=algorithm("grpo", rolloutCorrection=correction))).spec
    assert [one.low for one in spec.algorithm.rollout_correction.rejection] == [0.25, None]


MODEL_AND_CRITIC = {"rewardModel": {"path": "/models/r"}, "algorithm": algorithm("ppo")}


@pytest.mark.parametrize(
    ("gpus", "native", "types"),
    [
        (0, None, ("auto", "auto", "auto")),
        (0, False, ("none", "float32", "float32")),
        (0, True, ("bfloat16", "bfloat16", "bfloat16")),
        (1, None, ("bfloat16", "bfloat16", "bfloat16")),
        (1, False, ("bfloat16", "bfloat16", "bfloat16")),
    ],
)
def test_types_of_numbers_follow_the_device(gpus: int, native: bool | None, types):
    roles = {"actorRollout": {"gpusPerReplica": gpus}}
    config = resolve(
        job(**MODEL_AND_CRITIC, roles=roles), facts=EngineFacts(native_bfloat16=native)
    )
    spec = config.spec
    assert spec.reward_model is not None
    assert (spec.training.autocast, spec.rollout.dtype, spec.reward_model.dtype) == types
    # A pod that knows its processor writes out what is open, and nothing else.
    in_a_pod = config.on_processor(native_bfloat16=bool(native))
    assert "auto" not in {in_a_pod.spec.training.autocast, in_a_pod.spec.rollout.dtype}
    assert (in_a_pod == config) is (types[0] != "auto")


def test_a_reward_model_on_processors_decides_its_own_type_alone() -> None:
    own = {"colocateWith": "none"}
    roles = {"actorRollout": {"gpusPerReplica": 1}, "rewardModel": own}
    spec = resolve(job(**MODEL_AND_CRITIC, roles=roles)).spec
    assert spec.reward_model is not None
    types = (spec.training.autocast, spec.rollout.dtype, spec.reward_model.dtype)
    assert types == ("bfloat16", "bfloat16", "auto")


def test_types_of_numbers_that_are_given_stay() -> None:
    given_types = {"training": {"autocast": "bfloat16"}, "rollout": {"dtype": "float32"}}
    spec = resolve(job(**given_types), facts=EngineFacts(native_bfloat16=False)).spec
    assert (spec.training.autocast, spec.rollout.dtype) == ("bfloat16", "float32")


def ppo_job(**spec: Any) -> PPOJob:
    """A job of every role, sound in itself; what it holds may not be in this version."""
    spec = {"algorithm": algorithm("ppo", miniBatchPrompts=8, kl={"in": "reward"})} | spec
    read = PPOJob.model_validate(tree(**spec))
    assert serious(read) == []
    return read


def serious(judged: PPOJob) -> list[str]:
    problems = validation.check(judged)
    return [str(p) for p in problems if p.reason_code is not ReasonCode.NOT_IN_THIS_VERSION]


GUESTS = st.sampled_from(
    [
        None,
        {},
        {"colocateWith": "none"},
        {"colocateWith": "none", "replicas": 2, "ranksPerReplica": 2},
        {"colocateWith": "none", "ranksPerReplica": 4, "parallelism": {"dataShard": 4}},
    ]
)


def is_on_one_device(roles: dict[str, Any]) -> bool:
    """What rows go to is where they come from; none of these guests has GPUs."""
    guests = [roles[name] or {} for name in ("reference", "critic")]
    is_apart = any(guest.get("colocateWith") == "none" for guest in guests)
    return not (is_apart and "gpusPerReplica" in roles["actorRollout"])


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "critic": st.sampled_from([None, {}, {"miniBatchPrompts": 4, "epochs": 3}]),
            "rewardModel": st.just({"path": "/models/rm"}),
            "roles": st.fixed_dictionaries(
                {
                    "actorRollout": st.sampled_from([{}, {"replicas": 2}, {"gpusPerReplica": 4}]),
                    "reference": GUESTS,
                    "critic": GUESTS,
                    "rewardModel": GUESTS,
                }
            ).filter(is_on_one_device),
        }
    )
)
def test_any_layout_resolves_to_itself(spec: dict[str, Any]) -> None:
    config = resolve(ppo_job(**spec))
    assert serious(config.job()) == []
    assert resolve(config.job()).to_json() == config.to_json()
    assert RunConfig.from_json(config.to_json()) == config
    assert RunConfig.from_json(config.to_short_json()) == config


def test_canonical_json_is_ascii_sorted_and_dense() -> None:
    text = resolve(job(model={"path": "/models/größe"})).to_json().decode("ascii")
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


@pytest.mark.processes
def test_digest_is_the_same_in_every_process() -> None:
    config = resolve(job(algorithm=algorithm("rloo", kl={"in": "loss"})))
    program = (
        "import sys; from ppojob_api.run_config import RunConfig;"
        "print(RunConfig.from_json(sys.stdin.buffer.read()).digest())"
    )
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            input=config.to_json(),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        assert run.stdout.decode().strip() == config.digest()
    assert config.digest() == hashlib.sha256(config.to_json()).hexdigest()


def test_facts_count_in_the_digest_and_not_in_the_trajectory() -> None:
    one, other = (resolve(job(), facts=EngineFacts(torch=torch)) for torch in ("2.13.0", "2.14.0"))
    assert one.digest() != other.digest()
    assert one.trajectory_json() == other.trajectory_json()


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ({"steps": {"total": 40}}, True),
        ({"loggers": ["console", "tensorboard"]}, True),
        ({"checkpoint": {"keepLast": 5}}, True),
        ({"checkpoint": {"background": True, "every": 5}}, True),
        ({"timeouts": {"stageSeconds": 10}}, True),
        ({"seed": 1}, False),
        ({"optimizer": {"learningRate": 2.0e-6}}, False),
        ({"algorithm": algorithm("rloo")}, False),
        ({"roles": {"actorRollout": {"threadsPerRank": 2}}}, False),
        ({"roles": {"actorRollout": {"offload": ["weights", "optimizer"]}}}, True),
        ({"training": {"reshardAfterForward": False}}, True),
        ({"rollout": {"repetitionPenalty": 1.1}}, False),
        ({"steps": {"total": 20, "validateEvery": 5}}, True),
    ],
)
def test_what_decides_the_weights(spec: dict[str, Any], same: bool) -> None:
    assert (resolve(job(**spec)).trajectory_json() == resolve(job()).trajectory_json()) is same


def test_another_reference_is_another_job() -> None:
    one, other = (
        json.loads(resolve(ppo_job(reference={"path": path})).trajectory_json())
        for path in ("/teacher", "/other")
    )
    assert one["layout"] == other["layout"]
    assert one["spec"].pop("reference") != other["spec"].pop("reference")
    assert one == other


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ("rollout", {"gpuMemoryShare": 0.6}),
        ("rollout", {"maxBatchedTokens": 4096, "maxSequences": 8}),
        ("rollout", {"enforceEager": True, "kvCacheGib": 1.0}),
        ("rollout", {"drafts": {}}),
        ("training", {"microBatchTokens": 4096, "logprobChunkTokens": 0, "mlpTileTokens": 512}),
        ("training", {"activationCheckpointing": True}),
    ],
)
def test_how_models_compute_may_differ_as_ranks_may(section: str, setting: dict[str, Any]) -> None:
    changed, plain = (
        json.loads(resolve(job(**{section: one})).trajectory_json()) for one in (setting, {})
    )
    assert changed["spec"] == plain["spec"]
    assert changed["layout"] != plain["layout"]


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ({"seed": 1, "rollout": {"temperature": 0.5}}, True),
        # As an API server fills in defaults, also those of fields that came later.
        ({"roles": {"actorRollout": {"replicas": 1, "offload": []}, "reward": {"cpu": 1}}}, True),
        ({"training": {"microBatchTokens": 16_384, "reshardAfterForward": True}}, True),
        ({"roles": {"actorRollout": {"offload": ["weights"]}}}, False),
        ({"roles": {"rollout": {}}}, False),
        ({"training": {"reshardAfterForward": False}}, False),
        ({"rollout": {"enforceEager": True}}, False),
    ],
)
def test_a_layout_is_what_is_written_of_it(spec: dict[str, Any], same: bool) -> None:
    assert (layout_json(job(**spec).spec) == layout_json(job().spec)) is same


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ({}, True),
        ({"critic": {"optimizer": {"schedule": "cosine"}}}, False),
        ({"optimizer": {"schedule": "cosine"}}, False),
        ({"optimizer": {"schedule": "linear"}}, False),
        ({"optimizer": {"warmupRatio": 0.1}}, False),
    ],
)
def test_length_decides_the_weights_of_a_cosine(spec: dict[str, Any], same: bool) -> None:
    short, long = (resolve(ppo_job(**spec, steps={"total": n})) for n in (20, 40))
    assert (short.trajectory_json() == long.trajectory_json()) is same


def test_spelling_does_not_count() -> None:
    rate = resolve(job(optimizer={"learningRate": 1}))
    assert rate.digest() == resolve(job(optimizer={"learningRate": 1.0})).digest()
    assert resolve(job()).digest() == resolve(job(optimizer={}, rewards=[], seed=0)).digest()
    # kubectl sends 1.0 as 1, wherever it stands.
    asked = [
        resolve(job(rewards=[{"function": "gsm8k", "arguments": {"a": one, "b": [{"c": one}]}}]))
        for one in (1, 1.0)
    ]
    assert asked[0].to_json() == asked[1].to_json()


def test_uid_is_the_given_one_or_one_of_the_name() -> None:
    assert resolve(job()).uid == resolve(job(seed=1)).uid
    named = job().model_copy(update={"metadata": job().metadata.model_copy(update={"uid": "u"})})
    assert resolve(named).uid == "u"


@pytest.mark.parametrize("data", ["", "{}", "[]", "null", '{"name": "sum"}', b"\xff"])
def test_other_text_is_refused(data: str | bytes) -> None:
    with pytest.raises(ValueError, match="RunConfig"):
        RunConfig.from_json(data)
