import json

import pytest
import tiny_jobs
import torch
from family_models import FAMILY_MODELS
from mtp_models import save_mtp_model
from safetensors.torch import load_file, save_file
from tiny_jobs import config_of
from tiny_models import SIZES, save_model
from whole_models import save_whole

from ppojob_api.run_config import RunConfig
from ppojob_trainer.models import memory
from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.architectures import HEAD
from ppojob_trainer.models.cache_checks import check_cache
from ppojob_trainer.models.config_files import TOWER
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.log_partition import LogPartition
from ppojob_trainer.models.memory import (
    GIB,
    MTP,
    count_parameters,
    held_by_rank,
    held_in_turns,
    least_cache,
    machine_bytes,
    offloads,
)

HYBRID = {**SIZES, **FAMILY_MODELS["qwen3_5_text"][1]}
POLICY, CRITIC, REWARD = 1000, 500, 300


def held(config: RunConfig, role: str) -> dict[str, int]:
    spec = config.spec
    parameters = {spec.model.path: POLICY, "/critic": CRITIC, "/reward": REWARD}
    return held_by_rank(config, role, parameters)


def test_a_trained_weight_takes_four_numbers_and_the_engine_one(tmp_path):
    assert held(config_of(tmp_path), "actorRollout") == {
        "policy": 16 * POLICY,
        "rollout engine": 4 * POLICY,
    }


def test_copies_for_checkpoints_are_of_weights_and_moments_and_on_no_gpu(tmp_path):
    checkpoint = {"background": True, "every": 5}
    config = config_of(tmp_path, **tiny_jobs.PPO, checkpoint=checkpoint)
    assert held(config, "actorRollout")["copies for checkpoints"] == 2 * 12 * POLICY
    on_gpus = {"actorRollout": {"gpusPerReplica": 1}}
    config = config_of(tmp_path, checkpoint=checkpoint, roles=on_gpus)
    assert held(config, "actorRollout")["copies for checkpoints"] == 12 * POLICY
    assert offloads(config, "actorRollout")
    turns = held_in_turns(config, "actorRollout", {config.spec.model.path: POLICY})
    assert [list(there) for there in turns.values()] == [["policy"], ["policy", "rollout engine"]]


@pytest.mark.parametrize(
    ("critic", "weights"),
    [
        ({}, 4 * POLICY),
        ({"path": "/critic"}, 4 * CRITIC),
        ({"path": "/critic", "referencePath": "/reward"}, 4 * REWARD),
        ({"lora": {"rank": 2}, "referencePath": "/reward"}, 4 * REWARD),
        ({"lora": {"rank": 2}}, None),
    ],
)
def test_a_process_reward_model_has_a_reference_beside_it(tmp_path, critic, weights):
    algorithm = {"type": "prime", "promptsPerStep": 4, "samplesPerPrompt": 2}
    roles = {"critic": {"colocateWith": "none"}}
    config = config_of(tmp_path, algorithm=algorithm, critic=critic, roles=roles)
    assert held(config, "critic").get("critic's reference") == weights


@pytest.mark.parametrize("shards", [1, 2])
def test_layers_that_are_not_given_back_are_whole_while_a_model_works(tmp_path, shards):
    training = {"autocast": "none", "reshardAfterForward": False}
    roles = {"actorRollout": {"ranksPerReplica": shards}}
    config = config_of(tmp_path, training=training, roles=roles)
    parameters = {config.spec.model.path: POLICY}
    work = held_in_turns(config, "actorRollout", parameters)["policy"]["policy"]
    assert work == (16 * POLICY if shards == 1 else 8 * POLICY + 4 * POLICY)


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [
        ({"type": "muon"}, 3),
        ({"type": "sgd"}, 3),
        ({"type": "sgd", "momentum": 0.0}, 2),
        ({"momentsDtype": "bfloat16"}, 3),
        ({"amsgrad": True}, 5),
    ],
)
def test_optimizers_take_what_they_keep(tmp_path, optimizer, numbers):
    config = config_of(tmp_path, optimizer=optimizer)
    assert held(config, "actorRollout")["policy"] == 4 * numbers * POLICY


@pytest.mark.parametrize(("dtype", "size"), [("float32", 20), ("bfloat16", 12)])
def test_an_average_of_weights_takes_four_bytes(tmp_path, dtype, size):
    model = {"path": str(tmp_path / "model"), "averageDecay": 0.9, "dtype": dtype}
    assert held(config_of(tmp_path, model=model), "actorRollout")["policy"] == size * POLICY


def test_who_lives_with_the_policy_takes_memory_there(tmp_path):
    ppo = {**tiny_jobs.PPO, "critic": {"path": "/critic"}, "rewardModel": {"path": "/reward"}}
    assert held(config_of(tmp_path, **ppo, rewards=[]), "actorRollout") == {
        "policy": 16 * POLICY,
        "rollout engine": 4 * POLICY,
        "reference": 4 * POLICY,
        "critic": 16 * CRITIC,
        "reward model": 2 * REWARD,
    }
    apart = config_of(tmp_path, **ppo, rewards=[], roles=tiny_jobs.OWN_PODS)
    assert held(apart, "critic") == {"critic": 16 * CRITIC}
    assert held(apart, "reference") == {"reference": 4 * POLICY}


def test_adapters_alone_have_gradients_and_moments_and_the_policy_is_its_reference(tmp_path):
    save_model(tmp_path / "model", num_hidden_layers=3)  # query: 16 to 16, value: 16 to 8
    lora = {"rank": 2, "targetModules": ["q_proj", "v_proj"]}
    model = {"path": str(tmp_path / "model"), "lora": lora, "dtype": "bfloat16"}
    adapters = 16 * 3 * 2 * (16 + 16 + 16 + 8)
    together = config_of(tmp_path, **tiny_jobs.PPO | {"critic": {"path": "/critic"}}, model=model)
    assert held(together, "actorRollout") == {
        "policy": 2 * POLICY,
        "adapters": adapters,
        "rollout engine": 4 * POLICY,
        "critic": 8 * CRITIC,
    }
    apart = config_of(
        tmp_path,
        **tiny_jobs.PPO | {"critic": {"lora": lora}, "roles": tiny_jobs.OWN_PODS, "model": model},
    )
    assert held(apart, "reference") == {"reference": 2 * POLICY}
    other = {"reference": {"path": "/critic"}, "model": model}
    with_teacher = config_of(tmp_path, **tiny_jobs.PPO | other)
    assert held(with_teacher, "actorRollout")["reference"] == 2 * CRITIC
    assert held(apart, "critic") == {"critic": 2 * POLICY, "critic's adapters": adapters}
    whole = {**model, "lora": {**lora, "modulesToSave": ["embed_tokens"]}}
    beside = held(config_of(tmp_path, **tiny_jobs.PPO | {"model": whole}), "actorRollout")
    assert beside["reference"] == 2 * POLICY
    assert beside["adapters"] > adapters


def test_matrices_beside_adapters_take_four_bits_and_their_scales(tmp_path):
    """Also of a critic, and of a reference in pods of its own; not of the engine."""
    wide = {"hidden_size": 128, "intermediate_size": 200}
    save_model(tmp_path / "model", num_hidden_layers=3, **wide)
    lora = {"rank": 2, "baseType": "nf4"}
    model = {"path": str(tmp_path / "model"), "lora": lora, "dtype": "bfloat16"}
    job = tiny_jobs.PPO | {"critic": {"lora": lora}, "roles": tiny_jobs.OWN_PODS, "model": model}
    config = config_of(tmp_path, **job)
    loaded = load_model(tmp_path / "model", torch.bfloat16, lora=config.spec.model.lora)
    named = loaded.named_parameters()
    expected = sum(  # an output layer is not counted
        one.nbytes for name, one in named if not is_adapter(name) and name != HEAD
    )
    counted = count_parameters(config)
    assert counted[str(tmp_path / "model")] * 2 > 2 * expected  # in bfloat16
    for role, name in (("critic", "critic"), ("reference", "reference")):
        assert held_by_rank(config, role, counted)[name] == pytest.approx(expected, abs=2)
    of_policy = held_by_rank(config, "actorRollout", counted)
    assert of_policy["policy"] == pytest.approx(expected, abs=2)
    assert of_policy["rollout engine"] == 4 * counted[str(tmp_path / "model")]
    for role in ("critic", "reference", "actorRollout"):  # of weights that are not there yet
        named_so = held_by_rank(config, role, {})
        assert all("adapters" in name for name in named_so), named_so


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_the_network_of_log_z_is_counted_with_what_is_trained_beside_it(tmp_path, lora):
    width = save_model(tmp_path / "model").config.hidden_size
    model = {"path": str(tmp_path / "model"), "lora": lora}
    grpo = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2}
    flowrl = {"policyLoss": {"type": "flowrl"}, "lossAggregation": "sequence_mean_token_mean"}
    sizes = [
        held(config_of(tmp_path, model=model, algorithm=algorithm), "actorRollout")
        for algorithm in (grpo, {**grpo, **flowrl})
    ]
    network = sum(weight.numel() for weight in LogPartition(width).parameters())
    name = "policy" if lora is None else "adapters"
    assert sizes[1][name] - sizes[0][name] == 16 * network


def test_ranks_share_the_trainer_s_weights_and_each_has_an_engine(tmp_path):
    roles = {"actorRollout": {"ranksPerReplica": 2}}
    rollout = {"engine": "vllm", "dtype": "bfloat16", "kvCacheGib": 2}
    found = held(config_of(tmp_path, roles=roles, rollout=rollout), "actorRollout")
    assert found == {"policy": 8 * POLICY, "rollout engine": 2 * POLICY + 2 * GIB}


def test_ranks_of_an_engine_share_its_weights_and_have_a_cache_each(tmp_path):
    rollout = {"engine": "vllm", "kvCacheGib": 2, "parallelism": {"tensor": 2}, "dtype": "float32"}
    roles = {"actorRollout": {"ranksPerReplica": 2}, "rollout": {"ranksPerReplica": 4}}
    found = held(config_of(tmp_path, roles=roles, rollout=rollout), "rollout")
    assert found == {"rollout engine": 2 * POLICY + 2 * GIB}


def test_models_that_leave_a_gpu_are_there_in_their_turns(tmp_path):
    """By weights of 4 bytes: a policy at work has its gradients, and the others are away."""
    gpu = {"gpusPerReplica": 1}
    everything = ["weights", "optimizer"]
    roles = {
        "actorRollout": {**gpu, "offload": everything},
        "critic": {"offload": ["optimizer"]},
        "rewardModel": {"offload": ["weights"]},
    }
    ppo = {**tiny_jobs.PPO, "critic": {"path": "/critic"}, "rewardModel": {"path": "/reward"}}
    ppo |= {"rewards": [], "rollout": {"engine": "vllm", "dtype": "float32"}}
    config = config_of(tmp_path, **ppo, roles=roles)
    parameters = {config.spec.model.path: POLICY, "/critic": CRITIC, "/reward": REWARD}
    stays = {"reference": 4 * POLICY, "critic": 8 * CRITIC}
    assert held_in_turns(config, "actorRollout", parameters) == {
        "policy": {"policy": 8 * POLICY, **stays},
        "rollout engine": {"rollout engine": 4 * POLICY, **stays},
        "reference": stays,
        "critic": stays,
        "reward model": {"rollout engine": 4 * POLICY, **stays, "reward model": 2 * REWARD},
    }
    assert held(config, "actorRollout")["policy"] == 16 * POLICY

    # On processors nothing is gained, and on a GPU where nothing leaves all lie beside the engine.
    for pods in ({"offload": everything}, gpu):
        config = config_of(tmp_path, **ppo, roles={"actorRollout": pods})
        turns = held_in_turns(config, "actorRollout", parameters)
        assert turns["rollout engine"]["policy"] == 16 * POLICY
        whole = sum(held(config, "actorRollout").values())
        assert max(sum(there.values()) for there in turns.values()) == whole


@pytest.mark.parametrize(
    "algorithm",
    [
        {"type": "distillation", "distillation": {"divergence": "jsd"}},
        {"type": "grpo", "kl": {"in": "loss", "estimator": "full"}},
    ],
)
def test_a_reference_that_an_update_compares_with_is_there_in_its_turn(tmp_path, algorithm):
    roles = {"actorRollout": {"gpusPerReplica": 1}, "reference": {"offload": ["weights"]}}
    algorithm |= {"promptsPerStep": 4, "samplesPerPrompt": 2}
    changes = {"reference": {"path": "/teacher"}, "roles": roles}
    config = config_of(tmp_path, algorithm=algorithm, **changes)
    parameters = {config.spec.model.path: POLICY, "/teacher": CRITIC}
    turns = held_in_turns(config, "actorRollout", parameters)
    assert turns["policy"] == {"policy": 16 * POLICY, "reference": 4 * CRITIC}
    assert "reference" not in turns["rollout engine"]


@pytest.mark.parametrize("offload", [[], ["weights"]])
def test_of_several_teachers_that_leave_one_is_on_the_device(tmp_path, offload):
    roles = {"actorRollout": {"gpusPerReplica": 1}, "reference": {"offload": offload}}
    algorithm = {"type": "distillation", "promptsPerStep": 4}
    teachers = [{"path": "/a", "dataSources": ["a"]}, {"path": "/b", "dataSources": ["b"]}]
    changes = {"reference": {"teachers": teachers}, "roles": roles}
    config = config_of(tmp_path, algorithm=algorithm, **changes)
    parameters = {config.spec.model.path: POLICY, "/a": CRITIC, "/b": 3 * CRITIC}
    assert held_by_rank(config, "actorRollout", parameters)["reference"] == 16 * CRITIC
    turns = held_in_turns(config, "actorRollout", parameters)
    assert turns["reference"]["reference"] == (12 if offload else 16) * CRITIC
    assert turns["policy"].get("reference", 0) == (0 if offload else 16 * CRITIC)


def test_a_copy_of_the_model_is_held_by_the_ranks_of_its_shards(tmp_path):
    pods = {"ranksPerReplica": 4, "parallelism": {"dataShard": 2}}
    roles = {"actorRollout": pods, "critic": {"colocateWith": "none", **pods}}
    whole = {"miniBatchPrompts": 4, "shuffleMiniBatches": False}
    algorithm = {**tiny_jobs.PPO["algorithm"], **whole}
    ppo = {**tiny_jobs.PPO, "algorithm": algorithm, "critic": {"path": "/critic"}, "roles": roles}
    config = config_of(tmp_path, **ppo)
    assert held(config, "actorRollout")["policy"] == 8 * POLICY
    assert held(config, "actorRollout")["reference"] == 2 * POLICY
    assert held(config, "critic") == {"critic": 8 * CRITIC}


@pytest.mark.parametrize(
    ("layout", "each"),
    [({"dataShard": 1, "sequence": 2}, 8), ({"tensor": 2}, 4), ({"pipeline": 2}, 4)],
)
def test_ranks_of_a_layout_hold_parts_of_the_policy(tmp_path, layout, each):
    pods = {"ranksPerReplica": 4, "parallelism": layout}
    found = held(config_of(tmp_path, roles={"actorRollout": pods}), "actorRollout")
    assert found == {"policy": each * POLICY, "rollout engine": 4 * POLICY}


def test_tensor_ranks_hold_recurrent_layers_whole(tmp_path):
    model = save_model(tmp_path / "model", FAMILY_MODELS["qwen3_5_text"][0], **HYBRID)
    named = {name: one.numel() for name, one in model.named_parameters()}
    own = sum(size for name, size in named.items() if ".linear_attn." in name)
    assert 0 < own < sum(named.values()) - named[HEAD]
    pods = {"ranksPerReplica": 2, "parallelism": {"tensor": 2}}
    config = config_of(tmp_path, roles={"actorRollout": pods})
    found = held_by_rank(config, "actorRollout", count_parameters(config))
    assert found["policy"] == 16 * (sum(named.values()) - named[HEAD] + own) // 2


def test_a_job_that_only_validates_holds_engines_alone(tmp_path):
    config = config_of(tmp_path, steps={"validateOnly": True}, model={"path": "/m"})
    assert held(config, "actorRollout") == {"rollout engine": 4 * POLICY}


@pytest.mark.parametrize(
    ("changes", "gpus", "numbers"),
    [
        ({"num_key_value_heads": 4, "head_dim": 16, "num_hidden_layers": 3}, 0, 3 * 2 * 4 * 16),
        ({"num_key_value_heads": 4, "head_dim": 16, "num_hidden_layers": 3}, 2, 3 * 2 * 2 * 16),
        ({"num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 3}, 4, 3 * 2 * 1 * 16),
        ({"model_type": "youtu", "num_hidden_layers": 3}, 2, 3 * (512 + 64)),
        ({"model_type": "gemma3_text"}, 0, 0),  # of whose text most layers keep a window
    ],
)
def test_a_text_of_a_judge_takes_keys_and_values_of_each_layer(tmp_path, changes, gpus, numbers):
    config = {"model_type": "llama", **SIZES, "num_attention_heads": 4, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert least_cache(str(tmp_path), "bfloat16", 10, max(1, gpus)) == 10 * 2 * numbers


@pytest.mark.parametrize(
    ("changes", "rollout", "told"),
    [
        ({}, {"kvCacheGib": 0.05}, "takes 0.0581 GiB or more; at least 0.07,"),
        ({}, {"kvCacheGib": 0.05, "dtype": "auto"}, "takes 0.0581 GiB or more; at least 0.13,"),
        ({}, {"kvCacheGib": 0.06}, None),
        ({}, {"kvCacheGib": 0.05, "engineArguments": {"kv_cache_dtype": "fp8"}}, None),
        ({"model_type": "gemma3_text"}, {"kvCacheGib": 0.05}, None),
    ],
)
def test_a_cache_that_holds_no_row_is_refused(tmp_path, changes, rollout, told):
    config = {"model_type": "llama", **SIZES, "head_dim": 64, "num_key_value_heads": 3}
    config |= {"num_hidden_layers": 20, **changes}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    engine = {"engine": "vllm", "dtype": "bfloat16", "maxModelTokens": 4064, **rollout}
    job = config_of(tmp_path, model={"path": str(tmp_path / "model")}, rollout=engine)
    found = [str(problem) for problem in check_cache(job.spec)]
    assert len(found) == (told is not None)
    assert not told or f"kvCacheGib: got 0.05: one row of 4064 tokens {told}" in found[0]


def test_parameters_are_counted_by_the_files_and_an_embedding_once(tmp_path):
    model = save_model(tmp_path / "model")
    total = sum(weight.numel() for weight in model.model.parameters())
    assert count_parameters(config_of(tmp_path)) == {str(tmp_path / "model"): total}
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    # Nor are layers that predict further tokens, which lie behind the model's own.
    more = {
        "lm_head.weight": tensors["model.embed_tokens.weight"].clone(),
        "model.layers.1.eh_proj.weight": tensors["model.norm.weight"].clone(),
    }
    save_file({**tensors, **more}, file)
    assert count_parameters(config_of(tmp_path)) == {str(tmp_path / "model"): total}


def test_what_hears_is_not_counted_with_a_tower_that_learns(tmp_path):
    save_whole(tmp_path / "model", "gemma4_unified")
    folder = str(tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert any("embed_audio" in name for name in stored)
    seeing = ("model.vision_embedder.", "model.embed_vision.")
    numbers = sum(one.numel() for name, one in stored.items() if name.startswith(seeing))
    frozen = count_parameters(config_of(tmp_path))
    learning = config_of(tmp_path, model={"path": folder, "freezeVisionTower": False})
    assert count_parameters(learning) == {**frozen, TOWER: numbers}


def test_a_layer_that_predicts_further_tokens_is_counted_where_it_learns(tmp_path):
    """Without the copies of embedding and head that files have in it."""
    save_mtp_model(tmp_path / "model", "glm4_moe", **SIZES)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    copies = {f"model.layers.2.{name}.weight" for name in ("embed_tokens", "shared_head.head")}
    own = {name for name in stored if name.startswith("model.layers.2.")} - copies
    numbers = sum(stored[name].numel() for name in own)
    folder = str(tmp_path / "model")
    frozen = count_parameters(config_of(tmp_path))
    counts = count_parameters(config_of(tmp_path, model={"path": folder, "mtp": {}}))
    assert counts == {**frozen, MTP: numbers}
    learning = config_of(tmp_path, model={"path": folder, "mtp": {}})
    held = held_by_rank(learning, "actorRollout", counts)["policy"]
    assert held == held_by_rank(learning, "actorRollout", frozen)["policy"] + 16 * numbers


@pytest.mark.parametrize(
    ("limit", "expected"), [("max\n", 8 * 2**20), ("1048576\n", 2**20), (None, 8 * 2**20)]
)
def test_a_container_has_what_it_may_use(limit, expected, tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal:        8192 kB\nMemFree:  1 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(memory, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "MEMORY_LIMITS", (tmp_path / "memory.max",))
    assert machine_bytes() == expected
