import json
from pathlib import Path
from string import Template
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ppojob_api import shape
from ppojob_cli.from_verl import commented
from ppojob_cli.verl import keys, page, trainers
from ppojob_cli.verl.conversions import CONVERSIONS, convert
from ppojob_cli.verl.draft import Draft, Fate
from ppojob_cli.verl.settings import of_overrides, of_yaml

DOCUMENT = Path(__file__).parents[4] / "docs" / "from-verl.md"
DYNAMIC_SAMPLING = "spec.algorithm.dynamicSampling.promptsPerRound"
PLAIN = {"", "given", "speed", "given speed", "positive", "only", "nothing"}
COPIED = PLAIN - {"only", "nothing"}

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
    rows = [line for line in keys.lines() if isinstance(line, keys.Line)]
    names = [name for row in rows for name in row.keys if not name.startswith("(")]
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


def test_a_whole_configuration_at_its_defaults_is_not_lost() -> None:
    sections = ("actor_rollout_ref", "critic", "data", "algorithm", "trainer", "reward")
    given = {key: one for key, one in keys.defaults().items() if key.startswith(sections)}
    given.pop(f"{MEGATRON}.moe_router_bias_update_rate")  # counts without its switch for some
    job = convert(of_overrides((f"{key}={json.dumps(one)}", "") for key, one in given.items()))
    told = {Fate.SAME, Fate.UNNEEDED, Fate.IDLE, Fate.WRITTEN}
    noted = [key for key, outcome in job.outcomes.items() if outcome.fate not in told]
    assert noted == ["actor_rollout_ref.actor.freeze_vision_tower"]
    assert job.problems == []


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
    told = [line.partition("  # ")[2] for line in text.splitlines()]
    origins = {name.partition("=")[0] for line in told for name in line.split(", ")}
    assert set(job.outcomes) == set(read.given)
    for key, outcome in job.outcomes.items():
        is_unknown = keys.find(key) is None and read.given[key].value is not None
        assert (outcome.fate == Fate.UNKNOWN) == is_unknown
        assert outcome.fate != Fate.WRITTEN or key in origins
    for problem in job.problems:
        assert str(problem)


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
REFERENCE = "actor_rollout_ref.ref.fsdp_config"
MODEL = "actor_rollout_ref.model"
MEGATRON = f"{ACTOR}.megatron.override_transformer_config"
STACKS = "[mlp.experts.gate_up_proj,mlp.experts.down_proj]"
ALL_OF_MEGATRON = (
    "[linear_q,linear_k,linear_v,linear_proj,linear_fc1_gate,linear_fc1_up,linear_fc2]"
)
OPTIM, CORRECTION = f"{ACTOR}.optim", "algorithm.rollout_correction"
BECOMES: dict[str, dict[str, Any]] = YAML(typ="safe").load(
    Template(Path(__file__).with_name("becomes.yaml").read_text()).substitute(
        {name: value for name, value in globals().items() if isinstance(value, str)},
        HOME=Path.home(),
    )
)


@pytest.mark.parametrize("given_keys", BECOMES, ids=lambda keys: keys[:60])
def test_what_a_key_becomes(given_keys: str) -> None:
    job = converted([*BASE, *given_keys.split(" ")])
    fields = BECOMES[given_keys]
    assert job.problems == []
    assert {
        path: job.fields[path].value if path in job.fields else None for path in fields
    } == fields


def test_the_model_of_the_older_sft_trainer() -> None:
    given = [*(one for one in BASE if MODEL not in one), "model.partial_pretrain=org/older"]
    assert converted(given).fields["spec.model.path"].value == "hf://org/older"


def test_the_older_sft_trainer_has_defaults_of_its_own() -> None:
    given = ["data.train_files=a.parquet", "model.partial_pretrain=m", "optim.lr_scheduler=wsd"]
    given += ["data.multiturn.messages_key=turns", "optim.warmup_steps_ratio=0.1"]
    assert converted([given[0], "optim.lr=1e-4"]).fields["spec.algorithm.type"].value == "sft"
    assert converted([given[0], "optim=automodel"]).fields["spec.algorithm.type"].value == "ppo"
    assert trainers.of_module("verl.trainer.fsdp_sft_trainer") is trainers.FSDP_SFT
    job = converted(given)
    spec, optimizer = job.tree()["spec"], job.tree()["spec"]["optimizer"]
    assert job.problems == []
    assert (spec["data"]["promptKey"], spec["data"]["answerKey"]) == ("question", "answer")
    assert optimizer == {
        "learningRate": 1e-5,
        "warmupRatio": 0.1,
        "schedule": "cosine",
        "stableRatio": 0.9,
        "betas": [0.9, 0.95],
    }
    turns = converted([*given, "data.multiturn.enable=true", "data.prompt_key=question"])
    assert turns.problems == []
    assert turns.fields["spec.data.promptKey"].value == "turns"
    assert turns.outcomes["data.prompt_key"].fate == Fate.IDLE


def test_a_text_model_whose_folder_is_there_has_no_vision_tower(tmp_path: Path) -> None:
    tower, media = f"{ACTOR}.freeze_vision_tower", ("image", "video", "audio")
    given = [*BASE, *(f"data.{one}_key={one}s" for one in media), f"{tower}=false"]
    for text, fate in (('{"vision_config": {}}', Fate.NOTED), ("{}", Fate.SAME)):
        (tmp_path / "config.json").write_text(text)
        assert converted([*given, f"{MODEL}.path={tmp_path}"]).outcomes[tower].fate == fate


@pytest.mark.parametrize(
    "text",
    [
        "data: {train_batch_size: 8}",
        "[data.train_batch_size=8]",
        "wandb_version: 1\n_wandb: {value: {a: 1}}\ndata: {value: {train_batch_size: 8}}",
    ],
)
def test_configurations_are_read_as_hydra_and_wandb_keep_them(text: str) -> None:
    given = of_yaml(text, "config.yaml").given
    assert {key: one.value for key, one in given.items()} == {"data.train_batch_size": 8}


def test_a_whole_configuration_names_columns_that_rows_may_lack() -> None:
    given = ["data.train_files=a.parquet", "optim.lr=1e-4", "data.tools_key=tools"]
    job = converted([*given, key := "data.enable_thinking_key=enable_thinking"])
    assert job.outcomes[key.partition("=")[0]].fate == Fate.NOTED
    assert "spec.data.templateColumns" not in job.fields


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
    ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2", Fate.IDLE),
    ("critic.megatron.pipeline_model_parallel_size=2", Fate.IDLE),
    ("reward.num_workers=8", Fate.WRITTEN),
    ("trainer.max_actor_ckpt_to_keep=1", Fate.NOTED),
    ("+critic.megatron.override_transformer_config.attention_dropout=0.1", Fate.LOST),
    ("+critic.megatron.override_transformer_config.moe_z_loss_coeff=0", Fate.SAME),
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
    (f"+{MEGATRON}.apply_rope_fusion=true", Fate.UNNEEDED),
    (f"+{MEGATRON}.overlap_p2p_comm=true", Fate.UNNEEDED),
    (f"+{MEGATRON}.num_layers_in_first_pipeline_stage=3", Fate.UNNEEDED),
    (f"+{MEGATRON}.context_parallel_algo=p2p", Fate.LEFT_OUT),
    (f"+{MEGATRON}.moe_token_drop_policy=probs", Fate.LOST),
    (f"+{MEGATRON}.attention_dropout=0.0", Fate.SAME),
    (f"+{MEGATRON}.attention_dropout=0.1", Fate.LOST),
    (f"+{MEGATRON}.cpu_offloading=true", Fate.LEFT_OUT),
    ("actor_rollout_ref.actor.megatron.use_mbridge=true", Fate.UNNEEDED),
    ("actor_rollout_ref.actor.megatron.use_megatron_fsdp=true", Fate.LEFT_OUT),
    (f"+{OPTIM}.override_optimizer_config.optimizer_cpu_offload=true", Fate.WRITTEN),
    ("+critic.optim.override_optimizer_config.dampening=0.1", Fate.LOST),
    (f"{MODEL}.use_liger=true", Fate.UNNEEDED),
    ("actor_rollout_ref.ref.fsdp_config.forward_prefetch=true", Fate.UNNEEDED),
    ("actor_rollout_ref.actor.load_weight=true", Fate.SAME),
    ("actor_rollout_ref.actor.load_weight=false", Fate.LOST),
    ("actor_rollout_ref.rollout.engine_kwargs.sglang.disable_radix_cache=true", Fate.LEFT_OUT),
    ("actor_rollout_ref.rollout.engine_kwargs.trtllm.kv_cache_config.dtype=fp8", Fate.LOST),
    ("actor_rollout_ref.rollout.skip_rollout=true", Fate.LOST),
    ("reward_manager.name=naive", Fate.SAME),
    ("data.datagen.path=null", Fate.SAME),
    ("+data.mm_processor_kwargs.device=cuda", Fate.UNNEEDED),
    ("+data.mm_processor_kwargs.do_rescale=false", Fate.LOST),
    (f"{MODEL}.hf_config_path=/m", Fate.LOST),
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
    (f"+{OPTIM}.override_optimizer_config.decoupled_weight_decay=false", Fate.WRITTEN),
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
    ("trainer.profile_interval=[-1,-1]", Fate.SAME),
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
    ("trainer.no_such_key=null", Fate.IDLE),
    ("engine.reshard_after_forward=default", Fate.LEFT_OUT),
    ("transfer_queue.enable=true", Fate.UNNEEDED),
    ("algorithm.kl_ctrl.kl_coef=0.001", Fate.NOTED),
    ("algorithm.rollout_is=true", Fate.LOST),
    ("algorithm.rollout_is_level=token", Fate.IDLE),
    ("global_profiler.global_tool_config.nsys.worker_nsight_options.kill=none", Fate.UNNEEDED),
    ("trainer.profile_steps=[1]", Fate.LEFT_OUT),
    ("actor_rollout_ref.actor.profile.step_start=-1", Fate.IDLE),
    ("actor_rollout_ref.actor.veomni.attn_implementation=eager", Fate.UNNEEDED),
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
        (
            "critic.megatron.tensor_model_parallel_size=2",
            "algorithm.adv_estimator=gae",
            Fate.LEFT_OUT,
        ),
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


@pytest.mark.parametrize(("samples", "kind"), [(1, "reinforce"), (2, "rloo"), ("${x.y}", "rloo")])
def test_a_response_without_peers_is_compared_with_none(samples: object, kind: str) -> None:
    given = ["algorithm.adv_estimator=rloo", f"actor_rollout_ref.rollout.n={samples}"]
    assert converted(given).fields["spec.algorithm.type"].value == kind
