"""The table of verl's keys holds together, and no key that is given is dropped in silence."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ppojob_api import shape
from ppojob_cli.from_verl import commented
from ppojob_cli.verl import keys, page, trainers
from ppojob_cli.verl.conversions import CONVERSIONS, convert
from ppojob_cli.verl.draft import Draft, Fate
from ppojob_cli.verl.settings import of_overrides

DOCUMENT = Path(__file__).parents[4] / "docs" / "from-verl.md"
DYNAMIC_SAMPLING = "spec.algorithm.dynamicSampling.promptsPerRound"
PLAIN = {"", "given", "speed", "given speed", "positive", "nothing"}
COPIED = PLAIN - {"nothing"}

NAMES = [name.replace(".*", ".some") for name in keys.rows()]
UNKNOWN = st.sampled_from(["data.no_such_key", "trainer.other", "critic.model.nothing"])
VALUES = st.one_of(
    st.sampled_from(["null", "true", "false", "0", "1", "2", "-1", "0.5", "3.5", "[]", "[a, b]"]),
    st.sampled_from(["text", "'0.5_2.0'", "grpo", "gae", "gspo", "k3", "low_var_kl", "cosine"]),
    st.sampled_from(["disable", "dapo", "bf16", "fp16", "sglang", "adaptive", "{a: 1}", "${x.y}"]),
)


def test_the_page_is_made_of_the_table() -> None:
    assert page.page() == DOCUMENT.read_text()


def test_each_key_stands_once() -> None:
    names = [
        section.prefix + name
        for section in keys.sections()
        for line in section.lines
        for name in line.keys
        if not name.startswith("(")
    ]
    assert sorted(names) == sorted(set(names))


def test_a_row_says_what_can_be_done() -> None:
    for key in keys.rows().values():
        if key.other:
            other = keys.find(key.other)
            assert other is not None, key
            assert not other.how.startswith("as "), key
            continue
        assert key.how in PLAIN or key.how in CONVERSIONS, key
        if key.how in COPIED and not key.row.status:
            (field,) = key.row.here
            assert shape.at(tuple(field.split("."))) is not None, key


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, key in keys.rows().items()
        if key.default is not None and key.row.status and key.how not in CONVERSIONS
    ],
)
def test_what_is_not_there_is_not_missed_at_its_default(name: str) -> None:
    job = convert(of_overrides([(f"{name}={json.dumps(keys.rows()[name].default)}", "")]))
    assert job.outcomes[name].fate in {Fate.SAME, Fate.UNNEEDED, Fate.IDLE}


def test_each_conversion_is_in_the_table() -> None:
    assert {key.how for key in keys.rows().values()}.issuperset(CONVERSIONS)


def converted(overrides: list[str]) -> Draft:
    return convert(of_overrides((text, "") for text in overrides))


@settings(deadline=None)
@given(st.dictionaries(st.one_of(st.sampled_from(NAMES), UNKNOWN), VALUES, max_size=12))
@example({"data.max_length": "8", "data.max_prompt_length": "9", "data.max_response_length": "7"})
@example({"data.max_length": "8", "data.max_prompt_length": "9"})
@example({"data.max_prompt_length": "0", "max_turns": "null"})
@example({"data.max_prompt_length": "99999", "max_turns": "2"})
@example({"data.truncation": "left", "max_turns": "2"})
@example({"algorithm.rollout_correction.rollout_rs": "[a, null]"})
@example({"algorithm.filter_groups.enable": "true", "data.gen_batch_size": "${x.y}"})
@example({"trainer.n_gpus_per_node": ".nan", "actor_rollout_ref.actor.ppo_epochs": "-.inf"})
@example(
    {
        "global_profiler.steps": "[1]",
        "actor_rollout_ref.actor.profiler.all_ranks": "true",
        "trainer.n_gpus_per_node": "3.5",
        "actor_rollout_ref.actor.profiler.tool_config.torch.contents": "true",
        "actor_rollout_ref.model.lora_rank": "8",
        "actor_rollout_ref.model.exclude_modules": "1",
        "actor_rollout_ref.model.tiled_mlp.enabled": "true",
        "actor_rollout_ref.model.tiled_mlp.num_shards": "0",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "0.5",
        "rollout.total_rollout_steps": "8",
    }
)
@example(
    dict.fromkeys(
        [f"actor_rollout_ref.actor.{name}.dtype" for name in ("fsdp_config", "megatron")], "float32"
    )
)
@example({"rollout.total_rollout_steps": "many", "async_training.require_batches": "2"})
def test_no_key_is_dropped_in_silence(values: dict[str, str]) -> None:
    read = of_overrides((f"{key}={value}", "") for key, value in values.items())
    job = convert(read)
    text = commented(job.tree(), [], job.origins)
    origins = {name for line in text.splitlines() for name in line.partition("  # ")[2].split(", ")}
    assert set(job.outcomes) == set(read.given)
    for key, outcome in job.outcomes.items():
        assert (outcome.fate == Fate.UNKNOWN) == (keys.find(key) is None)
        assert outcome.fate != Fate.WRITTEN or key in origins
    for problem in job.problems:
        assert str(problem)


# Of each, what is given and what it becomes, with the fate of keys that are not written.
TEACHING = "distillation.enabled=true distillation.teacher_models.teacher_model.model_path=t"
TEACHERS = "distillation.teacher_models"
SEVERAL = " ".join(
    f"+{TEACHERS}.{name}.model_path={path} +{TEACHERS}.{name}.key={source}"
    for name, path, source in (
        ("a", "u", "openai/gsm8k"),
        ("b", "v", "hiyouga/geometry3k"),
        ("c", "u", "dapo"),
    )
)
LOSS = "distillation.distillation_loss"
DIVERGENCE = "spec.algorithm.distillation.divergence"
BASE = [
    "data.train_files=a.parquet",
    "data.val_files=b.parquet",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=m",
    "actor_rollout_ref.rollout.n=2",
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
]
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REFERENCE, OFFLOAD = "actor_rollout_ref.ref.fsdp_config", "spec.roles.actorRollout.offload"
MODEL = "actor_rollout_ref.model"
MEGATRON = f"{ACTOR}.megatron.override_transformer_config"
STACKS = "[mlp.experts.gate_up_proj,mlp.experts.down_proj]"
ALL_OF_MEGATRON = (
    "[linear_q,linear_k,linear_v,linear_proj,linear_fc1_gate,linear_fc1_up,linear_fc2]"
)
OPTIM, CORRECTION = f"{ACTOR}.optim", "algorithm.rollout_correction"
REJECTION = "spec.algorithm.rolloutCorrection.rejection"
BECOMES: list[tuple[str, dict[str, Any]]] = [
    # Warm-up counts training steps there, optimizer steps here: 4 a step, and 8 with two epochs.
    (f"{OPTIM}.lr_warmup_steps=3", {"spec.optimizer.warmupSteps": 12}),
    (f"{OPTIM}.lr_warmup_steps=3 {ACTOR}.ppo_epochs=2", {"spec.optimizer.warmupSteps": 24}),
    (
        f"{OPTIM}.lr_warmup_steps=0 {OPTIM}.lr_warmup_steps_ratio=0.1",
        {"spec.optimizer.warmupSteps": None, "spec.optimizer.warmupRatio": 0.1},
    ),
    (
        f"{OPTIM}.lr_decay_style=linear {OPTIM}.lr=1e-5 {OPTIM}.min_lr=1e-6",
        {"spec.optimizer.schedule": "linear", "spec.optimizer.minLearningRateRatio": 0.1},
    ),
    (
        f"{OPTIM}.lr_scheduler_type=cosine {OPTIM}.lr=1e-5 {OPTIM}.lr_min=2e-6",
        {"spec.optimizer.minLearningRateRatio": 0.2},
    ),
    (
        f"{OPTIM}.lr_scheduler_type=cosine {OPTIM}.min_lr_factor=0.3",
        {"spec.optimizer.minLearningRateRatio": 0.3},
    ),
    # A schedule of its own length; of Megatron the warm-up is a share of that.
    (
        f"{OPTIM}.lr_decay_style=cosine {OPTIM}.lr_decay_steps=50 {OPTIM}.lr_warmup_steps_ratio=0.1"
        f" {OPTIM}.lr=1e-6 {OPTIM}.lr_warmup_init=1e-7",
        {
            "spec.optimizer.decaySteps": 200,
            "spec.optimizer.warmupSteps": 20,
            "spec.optimizer.warmupRatio": None,
            "spec.optimizer.warmupStartRatio": 0.1,
        },
    ),
    (
        f"{OPTIM}.lr_decay_steps=51200 {OPTIM}.lr_warmup_init=1e-7 {OPTIM}.lr_start=1e-7",
        {"spec.optimizer.decaySteps": None, "spec.optimizer.warmupStartRatio": None},
    ),
    (
        "algorithm.adv_estimator=gae critic.optim.lr_scheduler_type=cosine critic.optim.lr=1e-5"
        " critic.optim.lr_decay_ratio=0.9 critic.optim.lr_warmup_steps=2"
        " critic.optim.lr_start=1e-6",
        {
            "spec.critic.optimizer.decayRatio": 0.9,
            "spec.critic.optimizer.warmupSteps": 8,
            "spec.critic.optimizer.warmupStartRatio": 0.1,
            "spec.optimizer.warmupStartRatio": None,
        },
    ),
    (
        f"{OPTIM}.lr_decay_style=WSD {OPTIM}.lr_wsd_decay_style=linear"
        f" {OPTIM}.lr_wsd_decay_steps=2 {OPTIM}.lr_warmup_steps=2 trainer.total_training_steps=12",
        {"spec.optimizer.schedule": "linear", "spec.optimizer.stableRatio": 0.8},
    ),
    (
        f"{OPTIM}.lr_decay_style=WSD {OPTIM}.lr_wsd_decay_style=linear"
        f" {OPTIM}.lr_wsd_decay_steps=9 {OPTIM}.lr_warmup_steps=4 {OPTIM}.lr_decay_steps=12",
        {"spec.optimizer.schedule": None, "spec.optimizer.stableRatio": None},
    ),
    (
        f"{OPTIM}.lr_decay_style=WSD {OPTIM}.lr_wsd_decay_steps=2",
        {"spec.optimizer.schedule": None, "spec.optimizer.stableRatio": None},
    ),
    # The optimizers of other engines, and what those have by default.
    (
        f"{OPTIM}.lr_decay_style=inverse_square_root",
        {"spec.optimizer.schedule": "inverse_sqrt", "spec.optimizer.decaySteps": None},
    ),
    ("model_engine=veomni", {"spec.optimizer.schedule": "cosine"}),
    (
        "model_engine=veomni algorithm.adv_estimator=gae",
        {"spec.critic.optimizer.schedule": "cosine"},
    ),
    (
        f"actor@actor_rollout_ref.actor=veomni_actor {OPTIM}.lr_scheduler_type=constant",
        {"spec.optimizer.schedule": None},
    ),
    (
        "optim=automodel optim.lr_warmup_steps=1",
        {
            "spec.optimizer.learningRate": 1e-5,
            "spec.optimizer.schedule": "cosine",
            "spec.optimizer.minLearningRateRatio": 0.01,
            "spec.optimizer.warmupStartRatio": 0.1,
        },
    ),
    (
        f"{ACTOR}.engine.tp=2 {ACTOR}.engine.pp=4",
        {
            "spec.roles.actorRollout.parallelism.tensor": 2,
            "spec.roles.actorRollout.parallelism.pipeline": 4,
        },
    ),
    ("engine.pp_size=4", {"spec.roles.actorRollout.parallelism.pipeline": 4}),
    ("engine.model_dtype=bf16", {"spec.model.dtype": "bfloat16"}),
    ("engine.model_dtype=bf16 optim.master_weights=true", {"spec.model.dtype": None}),
    (f"{OPTIM}.betas='[0.8,0.95]'", {"spec.optimizer.betas": [0.8, 0.95]}),
    (
        f"{OPTIM}.optimizer=SGD critic.optim.optimizer=Muon algorithm.adv_estimator=gae",
        {
            "spec.optimizer.type": "sgd",
            "spec.optimizer.momentum": 0.0,
            "spec.optimizer.betas": None,
            "spec.critic.optimizer.type": "muon",
            "spec.critic.optimizer.momentum": None,
            "spec.critic.optimizer.muon.scaleMode": "shape_scaling",  # as PyTorch's
        },
    ),
    (
        f"{OPTIM}.optimizer=Muon +{OPTIM}.override_optimizer_config.momentum=0.9"
        f" +{OPTIM}.override_optimizer_config.adjust_lr_fn=match_rms_adamw"
        f" +{OPTIM}.override_optimizer_config.nesterov=False"
        f" +{OPTIM}.override_optimizer_config.betas=[0.9,0.95]"
        f" +{OPTIM}.override_optimizer_config.eps=1e-6",
        {
            "spec.optimizer.type": "muon",
            "spec.optimizer.momentum": 0.9,
            "spec.optimizer.betas": [0.9, 0.95],
            "spec.optimizer.epsilon": 1e-6,
            "spec.optimizer.muon.scaleMode": None,
            "spec.optimizer.muon.nesterov": False,
        },
    ),
    (
        f"model_engine=megatron {OPTIM}.optimizer=muon {OPTIM}.muon_num_ns_steps=6"
        f" {OPTIM}.muon_match_adamw_update_rms=True {OPTIM}.muon_momentum=0.9",
        {
            "spec.optimizer.type": "muon",
            "spec.optimizer.momentum": 0.9,
            "spec.optimizer.muon.nesterov": False,
            "spec.optimizer.muon.coefficients": "quintic",
            "spec.optimizer.muon.nsSteps": 6,
            "spec.optimizer.muon.extraScaleFactor": 0.229415734,
        },
    ),
    (
        f"{OPTIM}.optimizer=muon {OPTIM}.muon_scale_mode=unit_rms_norm",
        {
            "spec.optimizer.muon.scaleMode": "unit_rms_norm",
            "spec.optimizer.muon.extraScaleFactor": 1.0,
        },
    ),
    (f"{ACTOR}.ppo_mini_batch_size=64", {"spec.algorithm.miniBatchPrompts": None}),
    # A step is what lies between two synchronizations: 3 * 2 * 16 prompts.
    (
        f"async_training.trigger_parameter_sync_step=3 async_training.require_batches=2"
        f" async_training.staleness_threshold=1.5 {OPTIM}.lr_warmup_steps=5"
        " rollout.total_rollout_steps=1000 rollout.nnodes=3",
        {
            "spec.algorithm.promptsPerStep": 96,
            "spec.algorithm.miniBatchPrompts": 16,
            "spec.algorithm.policyLoss.type": "bypass",
            "spec.optimizer.warmupSteps": 10,
            "spec.rollout.maxStaleness": 2,
            "spec.roles.rollout.replicas": 3,
            "spec.roles.rollout.gpusPerReplica": 8,
            "spec.steps.total": 10,
        },
    ),
    ("async_training.staleness_threshold=0", {"spec.rollout.maxStaleness": None}),
    (
        "async_training.staleness_threshold=1.5 algorithm.filter_groups.enable=true",
        {"spec.rollout.maxStaleness": 1},
    ),
    # -1 is absent, in six places.
    (
        "data.train_max_samples=-1 data.val_max_samples=9",
        {"spec.data.maxTrainRows": None, "spec.data.maxValidationRows": 9},
    ),
    (
        "trainer.save_freq=-1 trainer.test_freq=0",
        {"spec.checkpoint.every": None, "spec.steps.validateEvery": None},
    ),
    (f"{ACTOR}.fsdp_config.fsdp_size=-1", {"spec.roles.actorRollout.parallelism.dataShard": None}),
    (
        f"{ACTOR}.fsdp_config.fsdp_size=4 {ACTOR}.ulysses_sequence_parallel_size=2",
        {
            "spec.roles.actorRollout.parallelism.dataShard": 2,
            "spec.roles.actorRollout.parallelism.sequence": 2,
        },
    ),
    (
        f"{ACTOR}.fsdp_config.fsdp_size=2 {ACTOR}.ulysses_sequence_parallel_size=4",
        {"spec.roles.actorRollout.parallelism.dataShard": None},
    ),
    (
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size=2",
        {"spec.roles.reference.parallelism.sequence": None},
    ),
    (
        f"{ACTOR}.megatron.pipeline_model_parallel_size=2",
        {"spec.roles.actorRollout.parallelism.pipeline": 2},
    ),
    (
        f"{ACTOR}.megatron.expert_model_parallel_size=4",
        {"spec.roles.actorRollout.parallelism.expert": 4},
    ),
    ("engine.ep_size=4", {"spec.roles.actorRollout.parallelism.expert": 4}),
    (
        f"{ACTOR}.veomni.expert_parallel_size=8",
        {"spec.roles.actorRollout.parallelism.expert": 8},
    ),
    # One pair of bounds is that of all losses; verl's own where none is given.
    (
        f"{ACTOR}.policy_loss.loss_mode=cispo {ACTOR}.clip_ratio_low=10",
        {"spec.algorithm.policyLoss.cispo.clipLow": 10, "spec.algorithm.policyLoss.clipLow": None},
    ),
    (
        f"{ACTOR}.policy_loss.loss_mode=geo_mean",
        {
            "spec.algorithm.policyLoss.geoMean.clipLow": 0.2,
            "spec.algorithm.lossAggregation": "sequence_mean_token_mean",
        },
    ),
    (f"{ACTOR}.policy_loss.loss_mode=kl_cov", {"spec.algorithm.policyLoss.klCov.coefficient": 0.1}),
    (
        f"{ACTOR}.policy_loss.loss_mode=dppo_tv {ACTOR}.clip_ratio_high=0.15",
        {
            "spec.algorithm.policyLoss.dppoTv.divergenceLow": 0.2,
            "spec.algorithm.policyLoss.dppoTv.divergenceHigh": None,
            "spec.algorithm.policyLoss.dppoTv.ratioLimit": 3.0,
        },
    ),
    (f"{ACTOR}.clip_ratio=0.5", {"spec.algorithm.policyLoss.clipLow": None}),
    (
        f"{CORRECTION}.bypass_mode=true {CORRECTION}.loss_type=reinforce"
        f" {CORRECTION}.rollout_is=sequence",
        {
            "spec.algorithm.policyLoss.type": "bypass",
            "spec.algorithm.policyLoss.bypass.form": "reinforce",
            "spec.algorithm.rolloutCorrection.weights": "sequence",
        },
    ),
    # Until verl 0.6 bounds of trainer to engine, of which the lower one is 1 / the upper one.
    (
        f"{CORRECTION}.rollout_rs=geometric {CORRECTION}.rollout_rs_threshold=1.25",
        {REJECTION: [{"mode": "seq_mean_k1", "low": 0.8, "high": 1.25}]},
    ),
    (
        f"{CORRECTION}.rollout_rs=token {CORRECTION}.rollout_rs_threshold=4"
        f" {CORRECTION}.rollout_rs_threshold_lower=0.5",
        {REJECTION: [{"mode": "token_k1", "low": 0.25, "high": 2.0}]},
    ),
    (
        f"{CORRECTION}.rollout_token_veto_threshold=0.001",
        {REJECTION: [{"mode": "seq_max_k1", "high": 1000.0}]},
    ),
    (
        f"{CORRECTION}.rollout_rs=token {CORRECTION}.rollout_rs_threshold=4"
        f" {CORRECTION}.rollout_token_veto_threshold=0.01",
        {
            REJECTION: [
                {"mode": "token_k1", "low": 0.25, "high": 4.0},
                {"mode": "seq_max_k1", "high": 100.0},
            ]
        },
    ),
    # A teacher in the place of rewards, over the vocabulary or sampled, and beside them.
    (
        f"{TEACHING} {LOSS}.use_task_rewards=false {LOSS}.loss_mode=forward_kl_topk",
        {
            "spec.algorithm.type": "distillation",
            "spec.algorithm.distillation.divergence": "forward_kl",
            "spec.reference.path": "t",
            "spec.data.validation": None,
        },
    ),
    (f"{TEACHING} {LOSS}.use_task_rewards=false", {DIVERGENCE: "reverse_kl"}),
    # A teacher of a name of its own takes the place of verl's; of several each has a data source.
    (f"{TEACHING} +{TEACHERS}.gsm8k.model_path=u", {"spec.reference.path": "u"}),
    (
        f"{TEACHING} +{TEACHERS}.a.model_path=u +{TEACHERS}.b.model_path=v",
        {"spec.reference": None, "spec.algorithm.type": "grpo"},
    ),
    (
        f"{TEACHING} {LOSS}.use_task_rewards=false {SEVERAL}",
        {
            "spec.algorithm.type": "distillation",
            "spec.reference.teachers": [
                {"path": "u", "dataSources": ["openai/gsm8k", "dapo"]},
                {"path": "v", "dataSources": ["hiyouga/geometry3k"]},
            ],
        },
    ),
    (
        f"{TEACHING} {LOSS}.use_task_rewards=false {LOSS}.loss_max_clamp=10.0",
        {"spec.algorithm.distillation.maxTokenLoss": 10.0},
    ),
    (
        f"{TEACHING} {LOSS}.use_task_rewards=false {LOSS}.loss_mode=k1 "
        f"{LOSS}.use_policy_gradient=true {LOSS}.clip_ratio_high=0.3 distillation.nnodes=2",
        {
            DIVERGENCE: None,
            "spec.algorithm.policyLoss.clipHigh": 0.3,
            "spec.roles.reference.colocateWith": "none",
            "spec.roles.reference.replicas": 2,
            "spec.roles.reference.gpusPerReplica": 8,
        },
    ),
    (
        f"{TEACHING} {LOSS}.distillation_loss_coef=0.5 {LOSS}.loss_mode=k2",
        {
            "spec.algorithm.type": "grpo",
            "spec.algorithm.kl.in": "loss",
            "spec.algorithm.kl.estimator": "k2",
            "spec.algorithm.kl.coefficient": 0.5,
            "spec.reference.path": "t",
        },
    ),
    # A KL in either place, in both, and with a coefficient that switches it off.
    (
        f"{ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_type=mse",
        {"spec.algorithm.kl.in": "loss", "spec.algorithm.kl.estimator": "k2"},
    ),
    (
        f"algorithm.use_kl_in_reward=true {ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0.1",
        {
            "spec.algorithm.kl.in": "reward",
            "spec.algorithm.kl.coefficient": None,
            "spec.algorithm.kl.lossTerm.coefficient": 0.1,
        },
    ),
    (f"{ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0", {"spec.algorithm.kl.in": None}),
    # Without an end in verl, and one round less is none.
    (
        "algorithm.filter_groups.enable=true algorithm.filter_groups.metric=seq_reward"
        " trainer.total_training_steps=2",
        {
            "spec.algorithm.dynamicSampling.metric": None,
            "spec.algorithm.dynamicSampling.maxRounds": 1000,
        },
    ),
    ("algorithm.adv_estimator=gae trainer.critic_warmup=1", {"spec.critic.warmupSteps": None}),
    ("algorithm.adv_estimator=gae trainer.critic_warmup=7", {"spec.critic.warmupSteps": 6}),
    (
        "algorithm.adv_estimator=grpo_vectorized algorithm.norm_adv_by_std_in_grpo=false",
        {"spec.algorithm.type": "grpo", "spec.algorithm.grpo.normalizeByStd": False},
    ),
    (
        "algorithm.adv_estimator=intuitor",
        {"spec.algorithm.type": "grpo", "spec.algorithm.certaintyReward": {}},
    ),
    (
        "algorithm.use_pf_ppo=true algorithm.pf_ppo.reweight_method=max_min",
        {"spec.algorithm.resampling.method": "max_min", "spec.algorithm.resampling.power": None},
    ),
    (
        "algorithm.adv_estimator=gdpo algorithm.gdpo_reward_keys=[a,b]",
        {"spec.algorithm.gdpo.rewardKeys": ["a", "b"]},
    ),
    # Temperature of validation, and what has no effect beside 0.
    (f"{ROLLOUT}.val_kwargs.top_p=0.7", {"spec.rollout.validation.topP": None}),
    (
        f"{ROLLOUT}.val_kwargs.temperature=1 {ROLLOUT}.val_kwargs.top_p=0.7",
        {"spec.rollout.validation.topP": 0.7},
    ),
    # Older versions of verl hand these to vLLM, for validations too.
    (
        f"+{ROLLOUT}.min_p=0.1 +{ROLLOUT}.repetition_penalty=1.05",
        {
            "spec.rollout.minP": 0.1,
            "spec.rollout.repetitionPenalty": 1.05,
            "spec.rollout.validation.minP": None,
            "spec.rollout.validation.repetitionPenalty": 1.05,
        },
    ),
    (
        f"+{ROLLOUT}.min_p=0.1 {ROLLOUT}.val_kwargs.temperature=1",
        {"spec.rollout.validation.minP": 0.1},
    ),
    (
        " ".join(
            f"+actor_rollout_ref.model.override_config.{one}"
            for one in (
                "rope_scaling.type=yarn",
                "rope_scaling.factor=4.0",
                "attention_dropout=0.1",
            )
        ),
        {
            "spec.model.ropeScaling.type": "yarn",
            "spec.model.ropeScaling.factor": 4.0,
            "spec.model.attentionDropout": 0.1,
        },
    ),
    (
        "+actor_rollout_ref.model.override_config.model_config.max_position_embeddings=9000",
        {"spec.model.maxPositionEmbeddings": 9000},
    ),
    (
        " ".join(
            f"+actor_rollout_ref.model.override_config.{one}"
            for one in ("rms_norm_eps=1e-6", "text_config.rope_theta=5e5", "resid_pdrop=0.1")
        ),
        {
            "spec.model.configOverrides": {
                **{"rms_norm_eps": 1e-6, "rope_theta": 5e5, "resid_pdrop": 0.1}
            }
        },
    ),
    (
        f"{OPTIM}.exp_avg_dtype=bf16 {OPTIM}.exp_avg_sq_dtype=bf16",
        {"spec.optimizer.momentsDtype": "bfloat16"},
    ),
    (
        "global_profiler.tool=torch global_profiler.steps=[2,5] "
        "actor_rollout_ref.actor.profiler.ranks=[0,1]",
        {"spec.profile.steps": [2, 5], "spec.profile.ranks": [0, 1]},
    ),
    (
        "global_profiler.steps=[2] actor_rollout_ref.actor.profiler.all_ranks=true "
        "trainer.n_gpus_per_node=4 actor_rollout_ref.actor.profiler.ranks=[1] "
        "actor_rollout_ref.actor.profiler.tool_config.torch.contents=[cuda,stack,shapes]",
        {"spec.profile.ranks": [0, 1, 2, 3], "spec.profile.contents": ["stack", "shapes"]},
    ),
    (
        "global_profiler.steps=[2] "
        "actor_rollout_ref.actor.profiler.tool_config.torch.contents=[cpu,cuda]",
        {"spec.profile.steps": [2], "spec.profile.contents": None},
    ),
    ("global_profiler.tool=nsys global_profiler.steps=[2]", {"spec.profile.steps": None}),
    # bfloat16 is what auto is on GPUs; processors are told.
    (f"{ROLLOUT}.dtype=bfloat16", {"spec.rollout.dtype": None}),
    (
        f"{ROLLOUT}.dtype=bfloat16 trainer.device=cpu trainer.n_gpus_per_node=1",
        {"spec.rollout.dtype": "bfloat16", "spec.roles.actorRollout.gpusPerReplica": None},
    ),
    (f"{ACTOR}.fsdp_config.dtype=float32", {"spec.training.autocast": "none"}),
    (f"{ACTOR}.megatron.dtype=float16", {"spec.training.autocast": "float16"}),
    ("actor_rollout_ref.rollout.dtype=half", {"spec.rollout.dtype": "float16"}),
    (f"{ROLLOUT}.nnodes=1 {ROLLOUT}.n_gpus_per_node=2", {"spec.roles.rollout.gpusPerReplica": 2}),
    (
        "data.filter_overlong_prompts=true data.truncation=left",
        {"spec.data.overlongPrompts": "drop"},
    ),
    (
        f"{ROLLOUT}.gpu_memory_utilization=0.9 {ACTOR}.fsdp_config.optimizer_offload=true",
        {"spec.rollout.gpuMemoryShare": 0.9, OFFLOAD: ["optimizer"]},
    ),
    (
        f"{ACTOR}.fsdp_config.offload_policy=true {ACTOR}.megatron.param_offload=true"
        " actor_rollout_ref.model.enable_activation_offload=true",
        {OFFLOAD: ["weights", "optimizer", "activations"]},
    ),
    (
        "actor_rollout_ref.model.enable_activation_offload=true"
        " actor_rollout_ref.model.enable_gradient_checkpointing=false",
        {OFFLOAD: None},
    ),
    # Layers that are computed again are those of Megatron, too.
    (
        f"{MODEL}.enable_gradient_checkpointing=false"
        f" {ACTOR}.megatron.override_transformer_config.recompute_granularity=full",
        {"spec.training.activationCheckpointing": True},
    ),
    (
        f"{MODEL}.enable_gradient_checkpointing=false {ROLLOUT}.ignore_eos=true",
        {"spec.training.activationCheckpointing": None, "spec.rollout.ignoreEos": True},
    ),
    # So many tiles of the largest micro-batch.
    (
        f"{MODEL}.tiled_mlp.enabled=true {MODEL}.tiled_mlp.num_shards=3",
        {"spec.training.mlpTileTokens": 5462},
    ),
    # verl's balance loss has no effect before its type is named; the z-loss has.
    (
        f"{MEGATRON}.moe_aux_loss_coeff=0.01 {MEGATRON}.moe_z_loss_coeff=0.001",
        {
            "spec.algorithm.routerBalanceCoefficient": None,
            "spec.algorithm.routerZCoefficient": 0.001,
        },
    ),
    (
        f"{MEGATRON}.moe_aux_loss_coeff=0.01"
        f" {MEGATRON}.moe_router_load_balancing_type=seq_aux_loss",
        {"spec.algorithm.routerBalanceCoefficient": 0.01},
    ),
    (
        f"{MEGATRON}.moe_router_enable_expert_bias=true",
        {"spec.algorithm.routerBiasRate": 0.001},
    ),
    (
        f"{MEGATRON}.moe_router_enable_expert_bias=true"
        f" {MEGATRON}.moe_router_bias_update_rate=0.01",
        {"spec.algorithm.routerBiasRate": 0.01},
    ),
    (f"{MEGATRON}.moe_router_bias_update_rate=0.01", {"spec.algorithm.routerBiasRate": None}),
    (
        f"{MEGATRON}.moe_aux_loss_coeff=0.01"
        f" {MEGATRON}.moe_router_load_balancing_type=[seq_aux_loss,global_aux_loss]",
        {"spec.algorithm.routerBalanceCoefficient": None},
    ),
    (
        f"{MODEL}.custom_chat_template='{{{{messages[0].content}}}}'",
        {"spec.model.chatTemplate": "{{messages[0].content}}"},
    ),
    (
        f"{ROLLOUT}.tensor_model_parallel_size=16 trainer.n_gpus_per_node=8",
        {"spec.rollout.parallelism.tensor": 8},
    ),
    (
        f"{ROLLOUT}.tensor_model_parallel_size=16 trainer.n_gpus_per_node=8 trainer.nnodes=4",
        {"spec.rollout.parallelism.tensor": 16},
    ),
    (
        f"{ROLLOUT}.tensor_model_parallel_size=8 {ROLLOUT}.pipeline_model_parallel_size=2"
        " trainer.n_gpus_per_node=8 trainer.nnodes=2",
        {"spec.rollout.parallelism.tensor": 16},
    ),
    (  # by verl's own two of each stage
        f"{ROLLOUT}.pipeline_model_parallel_size=2 trainer.n_gpus_per_node=8",
        {"spec.rollout.parallelism.tensor": 4},
    ),
    (
        f"{ROLLOUT}.pipeline_model_parallel_size=1 {ROLLOUT}.expert_parallel_size=1"
        " trainer.n_gpus_per_node=8",
        {"spec.rollout.parallelism.tensor": None, "spec.rollout.parallelism.expert": None},
    ),
    (
        f"{ROLLOUT}.tensor_model_parallel_size=1 {ROLLOUT}.data_parallel_size=8"
        f" {ROLLOUT}.expert_parallel_size=8 trainer.n_gpus_per_node=8",
        {"spec.rollout.parallelism.tensor": 8, "spec.rollout.parallelism.expert": 8},
    ),
    # The older SFT trainer names columns and fields within them.
    (
        "data.prompt_key=extra_info data.prompt_dict_keys=[question]"
        " data.response_key=extra_info data.response_dict_keys=[answer]",
        {"spec.data.promptKey": "extra_info.question", "spec.data.answerKey": "extra_info.answer"},
    ),
    # By vLLM's names, of which some have a field, and some say nothing of text.
    (
        f"+{ROLLOUT}.engine_kwargs.vllm.compilation_config.cudagraph_mode=PIECEWISE"
        f" +{ROLLOUT}.engine_kwargs.vllm.stream_interval=2"
        f" +{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb=0"
        f" +{ROLLOUT}.engine_kwargs.vllm.limit_mm_per_prompt.image=5"
        f" +{ROLLOUT}.engine_kwargs.vllm.max_model_len=9",
        {
            "spec.rollout.engineArguments": {
                "compilation_config": {"cudagraph_mode": "PIECEWISE"},
                "stream_interval": 2,
            },
        },
    ),
    # Of a reference or a critic that is there.
    (f"{REFERENCE}.param_offload=true", {"spec.roles.reference.offload": None}),
    (
        f"{REFERENCE}.param_offload=true {ACTOR}.use_kl_loss=true",
        {"spec.roles.reference.offload": ["weights"]},
    ),
    (
        f"{REFERENCE}.param_offload=true {ACTOR}.use_kl_loss=true"
        " actor_rollout_ref.model.lora_rank=8",
        {"spec.roles.reference.offload": None},
    ),
    (
        "algorithm.adv_estimator=gae critic.model.fsdp_config.param_offload=true"
        " critic.fsdp.optimizer_offload=true critic.model.enable_activation_offload=true",
        {"spec.roles.critic.offload": ["weights", "optimizer", "activations"], OFFLOAD: None},
    ),
    ("trainer.max_actor_ckpt_to_keep=1", {"spec.checkpoint.keepLast": None}),
    (
        "trainer.max_actor_ckpt_to_keep=1 trainer.max_critic_ckpt_to_keep=5",
        {"spec.checkpoint.keepLast": 5},
    ),
    (
        "reward.reward_manager.name=dapo reward_model.overlong_buffer.enable=true"
        " reward_model.overlong_buffer.len=9",
        {"spec.algorithm.overlongPenalty.bufferTokens": 9},
    ),
    (
        "reward.custom_reward_function.path=pkg://our.rewards",
        {"spec.rewards": [{"function": "compute_score", "source": {"package": "our.rewards"}}]},
    ),
    ("trainer.experiment_name=Qwen2.5_7B", {"metadata.name": "qwen2-5-7b"}),
    ("trainer.experiment_name=2025", {"metadata.name": "from-verl"}),
    (
        "data.train_files=~/a.parquet data.val_files=[~/b.parquet,~c.parquet]",
        {
            "spec.data.train": [{"path": f"{Path.home()}/a.parquet"}],
            "spec.data.validation": [{"path": f"{Path.home()}/b.parquet"}, {"path": "~c.parquet"}],
        },
    ),
    # Adapters: of FSDP, and of Megatron where each layer has its own.
    (f"{MODEL}.lora_rank=8", {"spec.model.lora.rank": 8, "spec.rollout.adapters": "beside"}),
    (f"{MODEL}.lora_rank=8 {MODEL}.lora.merge=true", {"spec.rollout.adapters": None}),
    (
        f"{MODEL}.lora_rank=8 {MODEL}.target_parameters={STACKS}",
        {"spec.model.lora.experts": True, "spec.model.lora.targetModules": None},
    ),
    (
        f"{MODEL}.lora_rank=8 {MODEL}.target_modules=[q_proj] {MODEL}.target_parameters={STACKS}",
        {
            "spec.model.lora.experts": True,
            "spec.model.lora.targetModules": [
                "q_proj",
                "experts.gate_up_proj",
                "experts.down_proj",
            ],
        },
    ),
    (
        f"{MODEL}.lora_rank=8 {MODEL}.target_parameters=[mlp.experts.down_proj]",
        {
            "spec.model.lora.experts": True,
            "spec.model.lora.targetModules": [
                *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
                "experts.down_proj",
            ],
            "spec.rollout.adapters": None,
        },
    ),
    (
        f"{MODEL}.lora_rank=8 {MODEL}.target_modules=[q_proj]"
        f" {MODEL}.target_parameters=[experts.gate_up_proj]",
        {"spec.model.lora.targetModules": ["q_proj", "experts.gate_up_proj"]},
    ),
    (
        f"{MODEL}.lora_rank=8 {MODEL}.path=Qwen/Qwen3-30B-A3B-Instruct",
        {"spec.rollout.adapters": None},
    ),
    (
        f"{MODEL}.lora_rank=8 {MODEL}.path=Qwen/Qwen3-30B-A3B {ROLLOUT}.name=hf",
        {"spec.rollout.adapters": "beside"},
    ),
    (
        f"{MODEL}.lora.rank=8 {MODEL}.lora.target_modules=[linear_proj,linear_fc2]",
        {
            "spec.model.lora.rank": 8,
            "spec.model.lora.alpha": 32,
            "spec.model.lora.targetModules": ["o_proj", "down_proj"],
            "spec.rollout.adapters": "beside",
        },
    ),
    (
        f"{MODEL}.lora.rank=8 {MODEL}.lora.type=canonical_lora"
        f" {MODEL}.lora.target_modules={ALL_OF_MEGATRON} {MODEL}.lora.dropout=0.1"
        f" {MODEL}.lora.dropout_position=post",
        {
            "spec.model.lora.targetModules": None,
            "spec.model.lora.dropout": 0.1,
            "spec.model.lora.dropoutPosition": "post",
            "spec.model.lora.init": "xavier",
        },
    ),
    (
        f"{MODEL}.lora.rank=8 {MODEL}.lora.type=dora {MODEL}.lora.target_modules=[linear_proj]"
        f" {MODEL}.lora.merge=true",
        {"spec.model.lora.weightDecomposed": True, "spec.model.lora.targetModules": ["o_proj"]},
    ),
    (
        f"{MODEL}.lora.rank=8 {MODEL}.lora.type=dora {MODEL}.lora.target_modules=[linear_proj]",
        {"spec.model.lora.weightDecomposed": True, "spec.rollout.adapters": None},
    ),
    (
        "algorithm.adv_estimator=gae critic.model.lora.rank=4"
        " critic.model.lora.target_modules=[linear_fc2]",
        {"spec.critic.lora.rank": 4, "spec.critic.lora.targetModules": ["down_proj"]},
    ),
    (f"{MODEL}.lora.rank=8", {"spec.model.lora.rank": None, "spec.rollout.adapters": None}),
    (
        "data.enable_thinking_key=enable_thinking data.enable_thinking_default=false",
        {
            "spec.data.templateColumns": ["enable_thinking"],
            "spec.data.applyChatTemplateKwargs": {"enable_thinking": False},
        },
    ),
    ("data.seed=3 data.shuffle=false", {"spec.data.seed": None, "spec.data.shuffle": False}),
    (f"{MODEL}.path=InternVL3-1B-hf", {"spec.model.freezeVisionTower": False}),
    (f"{MODEL}.path=SmolVLM2-500M", {"spec.model.freezeVisionTower": False}),
    (f"{MODEL}.path=Qwen2.5-VL-3B", {"spec.model.freezeVisionTower": False}),
    (f"{MODEL}.path=Qwen2.5-3B", {"spec.model.freezeVisionTower": None}),
]


@pytest.mark.parametrize(("given_keys", "fields"), BECOMES, ids=lambda one: str(one)[:60])
def test_what_a_key_becomes(given_keys: str, fields: dict[str, Any]) -> None:
    job = converted([*BASE, *given_keys.split(" ")])
    assert job.problems == []
    assert {
        path: job.fields[path].value if path in job.fields else None for path in fields
    } == fields


def test_the_model_of_the_older_sft_trainer() -> None:
    given = [*(one for one in BASE if MODEL not in one), "model.partial_pretrain=models/older"]
    assert converted(given).fields["spec.model.path"].value == "models/older"


@pytest.mark.parametrize("trainer", ["main_dapo", "recipe.entropy.main_entropy"])
@pytest.mark.parametrize(("filters", "prompts"), [("false", 96), ("true", 64)])
def test_main_dapo_trains_on_what_it_fetches_unless_it_filters(trainer, filters, prompts):
    keys = ["data.gen_batch_size=96", f"algorithm.filter_groups.enable={filters}"]
    settings = of_overrides((text, "") for text in [*BASE, *keys])
    settings.trainer = trainers.of_module(trainer)
    job = convert(settings)
    assert job.fields["spec.algorithm.promptsPerStep"].value == prompts
    assert job.outcomes["data.gen_batch_size"].fate == Fate.WRITTEN
    rewards = job.fields.get("spec.rewards")
    assert (rewards and rewards.value) == (
        [{"function": "math_verify"}] if trainer.endswith("entropy") else None
    )


@pytest.mark.parametrize(
    ("given", "lost", "fields"),
    [
        # Of 5 responses a mean of a fifth lies on the bound, and 64 of them are no whole prompts.
        (
            "actor_rollout_ref.rollout.n=5",
            "reward_model.mini_batch_size",
            {
                "spec.critic.miniBatchPrompts": None,
                "spec.algorithm.dynamicSampling.meanAbove": 0.1,
                "spec.algorithm.dynamicSampling.meanBelow": 0.9,
            },
        ),
        (
            "data.filter_accuracy=false",
            "data.filter_accuracy data.oversample_factor",
            {DYNAMIC_SAMPLING: None},
        ),
        ("data.filter_accuracy=false data.filter_truncate=false", "", {DYNAMIC_SAMPLING: None}),
        ("reward_model.model.update=none", "reward_model.model.update", {}),
        ("reward_model.model.loss_type=dpo", "reward_model.model.loss_type", {}),
        ("reward_model.prime_granularity=whole", "reward_model.prime_granularity", {}),
        ("reward_model.lambda=0.5", "reward_model.lambda", {}),
        ("reward_model.enable=false", "reward_model.enable", {"spec.algorithm.type": "prime"}),
        (
            "reward_model.prime_norm=none actor_rollout_ref.actor.ppo_epochs=2",
            "",
            {
                "spec.algorithm.prime.normalize": False,
                "spec.critic.epochs": 1,
                "spec.critic.miniBatchPrompts": 16,
                "spec.critic.optimizer.learningRate": 1e-6,
                "spec.critic.optimizer.weightDecay": 0.0,
                "spec.critic.optimizer.gradientClip": 10.0,
            },
        ),
    ],
)
def test_what_of_the_recipe_prime_is_lost(given: str, lost: str, fields: dict[str, Any]) -> None:
    factor = 1 if "filter_truncate" in given else 2
    sizes = ["algorithm.adv_estimator=rloo", f"{ROLLOUT}.n=4", f"data.oversample_factor={factor}"]
    sizes += ["reward_model.mini_batch_size=64", "reward_model.model.path=models/small"]
    settings = of_overrides((text, "") for text in [*BASE, *sizes, *given.split()])
    settings.trainer = trainers.of_module("recipe.prime.main_prime")
    job = convert(settings)
    told = [key for key, outcome in job.outcomes.items() if outcome.fate == Fate.LOST]
    assert told == lost.split()
    assert {
        path: job.fields[path].value if path in job.fields else None for path in fields
    } == fields


FATES = [
    ("trainer.balance_batch=false", Fate.UNNEEDED),
    ("actor_rollout_ref.actor.fsdp_config.param_offload=true", Fate.WRITTEN),
    ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2", Fate.UNNEEDED),
    ("critic.megatron.pipeline_model_parallel_size=2", Fate.UNNEEDED),
    ("actor_rollout_ref.actor.fsdp_config.forward_prefetch=true", Fate.UNNEEDED),
    ("actor_rollout_ref.actor.fsdp_config.param_offload=false", Fate.SAME),
    ("actor_rollout_ref.rollout.tensor_model_parallel_size=2", Fate.WRITTEN),
    ("actor_rollout_ref.actor.fsdp_config.reshard_after_forward=false", Fate.WRITTEN),
    ("actor_rollout_ref.actor.fsdp_config.reshard_after_forward=true", Fate.SAME),
    ("actor_rollout_ref.actor.kl_loss_coef=0.1", Fate.IDLE),
    ("actor_rollout_ref.actor.optim.min_lr_ratio=0.1", Fate.IDLE),
    ("critic.optim.lr=1", Fate.IDLE),
    ("+actor_rollout_ref.model.override_config.attn_implementation=sdpa", Fate.UNNEEDED),
    ("+actor_rollout_ref.model.override_config.moe_config.freeze=true", Fate.LOST),
    ("+actor_rollout_ref.model.override_config.model_config.rope_theta=1e6", Fate.WRITTEN),
    ("+actor_rollout_ref.model.override_config.embd_pdrop=0.0", Fate.SAME),
    ("+actor_rollout_ref.model.override_config.torch_dtype=bfloat16", Fate.UNNEEDED),
    ("+actor_rollout_ref.model.override_config.text_config.attention_dropout=0.1", Fate.WRITTEN),
    ("+actor_rollout_ref.model.override_config.moe_config.freeze_moe_router=true", Fate.WRITTEN),
    (f"{MEGATRON}.moe_router_enable_expert_bias=true", Fate.WRITTEN),
    (f"{MEGATRON}.moe_router_bias_update_rate=0.01", Fate.LOST),
    (f"{MEGATRON}.moe_z_loss_coeff=0.001", Fate.NOTED),
    (f"{MEGATRON}.moe_aux_loss_coeff=0.01", Fate.LEFT_OUT),
    (f"{MEGATRON}.moe_router_load_balancing_type=none", Fate.SAME),
    ("actor_rollout_ref.model.mtp.enable=true", Fate.SAME),
    ("actor_rollout_ref.model.mtp.enable_rollout=true", Fate.LEFT_OUT),
    (
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.method=ngram",
        Fate.LEFT_OUT,
    ),
    ("actor_rollout_ref.actor.router_replay.mode=R3", Fate.WRITTEN),
    ("actor_rollout_ref.actor.megatron.router_replay.mode=R2", Fate.WRITTEN),
    ("actor_rollout_ref.rollout.enable_rollout_routing_replay=true", Fate.UNNEEDED),
    ("distillation.distillation_loss.topk=3", Fate.UNNEEDED),
    ("distillation.teacher_model.inference.name=vllm", Fate.UNNEEDED),
    ("distillation.teacher_key=a", Fate.IDLE),
    ("distillation.enabled=true", Fate.LOST),
    ("distillation.distillation_loss.log_prob_min_clamp=-10.0", Fate.UNNEEDED),
    ("distillation.distillation_loss.use_policy_gradient=true", Fate.IDLE),
    ("actor_rollout_ref.actor.optim.optimizer=AdamW8bit", Fate.LOST),
    ("actor_rollout_ref.actor.optim.name=SGD", Fate.WRITTEN),
    ("+actor_rollout_ref.model.override_config.attn_pdrop=0.1", Fate.WRITTEN),
    ("optim.exp_avg_dtype=bf16", Fate.LOST),
    ("optim.exp_avg_dtype=fp32", Fate.SAME),
    ("optim.main_grads_dtype=bf16", Fate.LOST),
    ("optim.weight_decay_incr_style=linear", Fate.UNNEEDED),
    (f"+{OPTIM}.override_optimizer_config.decoupled_weight_decay=true", Fate.SAME),
    (f"+{OPTIM}.override_optimizer_config.decoupled_weight_decay=false", Fate.LOST),
    ("data.image_key=images", Fate.SAME),
    ("data.image_key=photos", Fate.LOST),
    ("data.enable_thinking_key=thinks", Fate.LOST),
    ("actor_rollout_ref.actor.freeze_vision_tower=true", Fate.SAME),
    ("actor_rollout_ref.actor.freeze_vision_tower=false", Fate.WRITTEN),
    ("data.video_key=videos", Fate.SAME),
    ("data.image_patch_size=16", Fate.UNNEEDED),
    (f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=4096", Fate.UNNEEDED),
    ("trainer.use_v1=false", Fate.UNNEEDED),
    ("trainer.profile_interval=[2,4]", Fate.WRITTEN),
    ("trainer.profile_interval=[-1,-1]", Fate.IDLE),
    (f"{MODEL}.lora.rank=8", Fate.LOST),  # of q, k and v together, by default
    (f"{MODEL}.target_parameters={STACKS}", Fate.IDLE),
    (f"{MODEL}.lora.merge=true", Fate.IDLE),
    (f"{MODEL}.lora.freeze_language_model=true", Fate.IDLE),
    ("trainer.v1.trainer_mode=separate_async", Fate.LOST),
    ("reward.reward_manager.name=remote", Fate.LOST),
    ("actor_rollout_ref.actor.clip_ratio=0.3", Fate.NOTED),
    ("actor_rollout_ref.actor.policy_loss.tau_pos=2", Fate.NOTED),
    ("actor_rollout_ref.actor.optim.lr=1e-6", Fate.SAME),
    ("trainer.total_epochs=3", Fate.WRITTEN),
    ("trainer.no_such_key=3", Fate.UNKNOWN),
    ("actor_rollout_ref.actor.optim.lr=${x.y}", Fate.REPLACED),
    (f"{ROLLOUT}.pipeline_model_parallel_size=${{x.y}}", Fate.REPLACED),
    ("actor_rollout_ref.actor.optim.lr=fast", Fate.REPLACED),
    ("actor_rollout_ref.actor.optim.lr=.nan", Fate.REPLACED),
    ("actor_rollout_ref.rollout.min_p=low", Fate.REPLACED),
    ("actor_rollout_ref.actor.optim.lr_decay_steps=9", Fate.IDLE),
    ("trainer.project_name=${x.y}", Fate.IDLE),
    ("actor_rollout_ref.model.path=${x.y}/m", Fate.UNREAD),
    ("trainer.experiment_name=a_${now:%d}", Fate.NOTED),
]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("data.train_batchsize", "data.train_batch_size"),
        ("algorithm.use_kl_loss", "actor_rollout_ref.actor.use_kl_loss"),
        ("actor_rollout_ref.rolout.top_p", "actor_rollout_ref.rollout.top_p"),
        ("trainer.shard_files", None),
    ],
)
def test_a_key_that_nobody_knows_is_told_with_the_one_that_is_meant(name: str, meant: str | None):
    assert keys.nearest(name) == meant
    why = converted([*BASE, f"{name}=1"]).outcomes[name].why
    assert why.endswith(f", did you mean {meant}" if meant else " here")


def test_what_belongs_to_a_teacher_of_its_own_name_is_not_missed() -> None:
    own = {"key": "openai/gsm8k", "num_replicas": 2, "inference.name": "vllm"}
    given = [f"+{TEACHERS}.one.{name}={value}" for name, value in own.items()]
    job = converted([*BASE, "distillation.enabled=true", f"+{TEACHERS}.one.model_path=u", *given])
    assert {job.outcomes[f"{TEACHERS}.one.{name}"].fate for name in own} == {Fate.SAME}


@pytest.mark.parametrize(
    ("several", "column", "fate"),
    [
        ("", "a", Fate.SAME),
        (SEVERAL, "data_source", Fate.SAME),
        (SEVERAL, "a", Fate.LOST),
        (f"{SEVERAL} data.reward_fn_key=a", "a", Fate.SAME),
    ],
)
def test_several_teachers_are_chosen_as_rewards_are(several: str, column: str, fate: Fate) -> None:
    given = [*TEACHING.split(), *several.split(), f"distillation.teacher_key={column}"]
    assert converted([*BASE, *given]).outcomes["distillation.teacher_key"].fate == fate


@pytest.mark.parametrize(
    ("scorer", "fate"),
    [([], Fate.LEFT_OUT), (["reward.custom_reward_function.path=r.py"], Fate.WRITTEN)],
)
def test_held_out_prompts_beside_a_teacher_are_kept_or_told(scorer: list[str], fate: Fate) -> None:
    alone = [*TEACHING.split(), f"{LOSS}.use_task_rewards=false", "data.val_files=v.parquet"]
    assert converted([*BASE, *alone, *scorer]).outcomes["data.val_files"].fate == fate


@pytest.mark.parametrize(("override", "fate"), FATES)
def test_what_becomes_of_a_key(override: str, fate: Fate) -> None:
    job = converted([*BASE, override])
    assert job.outcomes[override.partition("=")[0].strip("+")].fate == fate


@pytest.mark.parametrize(
    ("key", "beside", "fate"),
    [
        (
            f"{MEGATRON}.moe_router_enable_expert_bias=true",
            f"{MEGATRON}.moe_router_bias_update_rate=0",
            Fate.SAME,
        ),
        (f"{MODEL}.target_parameters=[experts.down_proj]", f"{MODEL}.lora_rank=8", Fate.WRITTEN),
        (f"{MODEL}.target_parameters=[experts.gate_up_proj]", f"{MODEL}.lora_rank=8", Fate.LOST),
        (f"{MODEL}.target_parameters=[mlp.gate]", f"{MODEL}.lora_rank=8", Fate.LOST),
        (f"{MODEL}.lora.merge=false", f"{MODEL}.lora_rank=8", Fate.WRITTEN),
        (f"{OPTIM}.betas=[0.9,0.95]", "model_engine=megatron", Fate.NOTED),
        (f"{OPTIM}.betas=[0.9,0.95]", "model_engine=dp", Fate.WRITTEN),
    ],
)
def test_what_becomes_of_a_key_beside_another(key: str, beside: str, fate: Fate) -> None:
    job = converted([*BASE, key, beside])
    assert job.outcomes[key.partition("=")[0]].fate == fate


def test_two_names_of_a_first_rate_are_one() -> None:
    at = "actor_rollout_ref.actor.optim"
    given = ["lr=2.0", "lr_warmup_steps=4", "lr_warmup_init=1.0", "lr_start=0.5"]
    job = converted([f"{at}.{one}" for one in given])
    assert job.fields["spec.optimizer.warmupStartRatio"].value == 0.25
    assert job.outcomes[f"{at}.lr_warmup_init"].fate == Fate.LOST


@pytest.mark.parametrize("votes", ["many", "null", "true", "[64]"])
def test_votes_that_are_no_number_are_not_written(votes: str) -> None:
    manager, at = "reward_model.reward_manager=ttrl", "reward_model.reward_kwargs"
    job = converted([*BASE, manager, f"{at}.n_votes_per_prompt={votes}"])
    assert job.fields["spec.rewards"].value == [{"function": "majority_vote"}]
    assert "spec.algorithm.groupFilter" not in job.fields


@pytest.mark.parametrize(("samples", "kind"), [(1, "reinforce"), (2, "rloo")])
def test_a_response_without_peers_is_compared_with_none(samples: int, kind: str) -> None:
    given = ["algorithm.adv_estimator=rloo", f"actor_rollout_ref.rollout.n={samples}"]
    assert converted(given).fields["spec.algorithm.type"].value == kind
