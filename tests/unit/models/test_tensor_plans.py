"""Which layers tensor ranks cut, against the plans of transformers, and which models fit them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_jobs
from family_models import FAMILY_MODELS, MIXTURE_MODELS
from mtp_models import place_of, save_mtp_model
from safetensors.torch import load_file, save_file
from tiny_models import CORRECTED, DELTA_NETWORKS, MIXTURE, SIZES, make_model
from transformers import (
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
)

from ppojob_api.problem import Problem, ReasonCode
from ppojob_api.run_config import resolve
from ppojob_cli.job_file import load_job
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.layout_checks import check_layouts
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.tensor_plans import (
    COLWISE,
    IN_EACH_HEAD,
    PARTIAL_SUMS,
    ROWWISE,
    STACKS,
    STATES_TO_COLWISE,
    STATES_TO_PARTIAL_SUMS,
    TRANSPOSED_STACKS,
    UNTRANSPOSED_STACKS,
    plan_of,
    styles_of,
)
from ppojob_trainer.models.transformers_modules import unify_modules
from ppojob_trainer.parallel.tensor_styles import BeforeColwise, StatesToColwise

EXPERTS = {"model_type": "qwen3_moe", **MIXTURE}
THEIRS = {
    "colwise": COLWISE,  # of torch's transposed matrices
    "colwise_gather_output": COLWISE,  # which is not gathered here
    "rowwise": ROWWISE,
    "rowwise_split_input": ROWWISE,
    "replicated_with_grad_allreduce": IN_EACH_HEAD,
}
OF_LATENTS = {
    "q_proj": COLWISE,
    "q_b_proj": COLWISE,
    "kv_b_proj": COLWISE,
    "o_proj": ROWWISE,
}
"""Which transformers leaves whole."""


DENSE = [name for name, one in FAMILIES.items() if not one.mixture or name == "gemma4_text"]
NO_PLAN = ("hunyuan_v1_dense", "gpt2", "opt", "stablelm", "lfm2", "nemotron", "falcon_h1")
"""Of transformers."""
MIXTURES = [name for name, one in FAMILIES.items() if one.mixture and one.mixture.block]


@pytest.mark.parametrize("family", [name for name in DENSE if name not in NO_PLAN])
def test_what_transformers_cuts_is_cut_alike(family: str) -> None:
    theirs = FAMILY_MODELS[family][0].config_class.base_model_tp_plan
    if theirs is None:  # of a language model that is a part of another
        theirs = FAMILY_MODELS[family][0].text_config.base_model_tp_plan
    # Stacks, what belongs to attention itself, and layers that all ranks compute here.
    others = (".experts", ".sinks", ".linear_attn")
    cut = {
        f"model.{name}": THEIRS[kind]
        for name, kind in theirs.items()
        if not any(other in name for other in others)
    }
    if FAMILIES[family].has_mla:
        cut |= {f"model.layers.*.self_attn.{name}": style for name, style in OF_LATENTS.items()}
    ours = {name: replace(style, shares={}) for name, style in plan_of(FAMILIES[family]).items()}
    assert {name: ours[name] for name in cut} == cut
    assert {name for name, style in ours.items() if style in THEIRS.values()} == {*cut, "lm_head"}


@pytest.mark.parametrize(
    ("model_class", "options"),
    [
        *(FAMILY_MODELS[family] for family in DENSE),
        MIXTURE_MODELS["gemma4_text"],
        (LlamaForSequenceClassification, {}),
        (LlamaForTokenClassification, {}),
    ],
)
def test_every_weight_has_a_style(model_class, options) -> None:
    model = make_model(model_class, **{"pad_token_id": 0, **options})
    unify_modules(model)
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)}
    styles = styles_of(model)
    assert owners <= styles.keys()
    others = [(name, styles[name]) for name in styles.keys() - owners]
    without = (StatesToColwise, BeforeColwise)  # such norms are OLMo's
    assert all(
        style.counts or style.layer in without or name == "model.norm" for name, style in others
    )


@pytest.mark.parametrize("family", MIXTURES)
def test_every_weight_of_a_mixture_has_a_style(family: str) -> None:
    kind, options = FAMILY_MODELS[family]
    model = make_model(kind, **{"num_hidden_layers": 2, **options})
    unify_modules(model)
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)}
    styles, mixture = styles_of(model), FAMILIES[family].mixture
    assert owners <= styles.keys()
    fitting = [STATES_TO_COLWISE, STATES_TO_PARTIAL_SUMS]  # where no norm is before a block
    fitting = fitting if not FAMILIES[family].norms else [PARTIAL_SUMS]
    assert all(styles[name] in fitting for name in styles.keys() - owners)
    stacks = [style for name, style in styles.items() if name.endswith(".experts")]
    gate = mixture.matrices[0]
    gates = [style for name, style in styles.items() if name.endswith(f".experts.5.{gate}")]
    assert [bool(stacks), bool(gates)] == [mixture.is_stacked, not mixture.is_stacked]
    assert all(one in (STACKS, TRANSPOSED_STACKS, UNTRANSPOSED_STACKS) for one in stacks)
    assert all(style == COLWISE for style in gates)


HEADS = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
CONVOLUTIONS = {"conv_L_cache": 3, "layer_types": ["conv"] * 2}
SHARED = {
    **{"num_experts": 6, "n_routed_experts": 6, "moe_intermediate_size": 16},
    **{"shared_expert_intermediate_size": 16, "n_shared_experts": 1},
}
"""Of mixtures that share an expert, by both names."""


def problems(
    folder: Path, configs: dict[str, dict[str, object]], **changes: object
) -> list[Problem]:
    """What is wrong with the layout of a job whose models have these configs."""
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    manifest = tiny_jobs.write_manifest(folder, folder, **changes)
    return list(check_layouts(resolve(load_job(manifest)).spec))


def out_of_range(found: list[Problem]) -> dict[str, str]:
    """Places of problems, and what is allowed there."""
    assert all(one.reason_code == ReasonCode.OUT_OF_RANGE for one in found)
    return {one.where: one.allowed for one in found}


@pytest.mark.parametrize(
    ("ranks", "changes", "allowed"),
    [
        (2, {}, None),
        (4, {}, None),  # two ranks a key head
        (4, {"model_type": "olmoe", "num_experts": 6}, "one of 1, 2"),  # for which vLLM has none
        (4, {"num_attention_heads": 2}, "one of 1, 2"),
        (4, {"num_attention_heads": 12, "num_key_value_heads": 3}, "one of 1, 3, 6, 12"),
        (4, {"intermediate_size": 18}, "one of 1, 2"),
        (4, {**EXPERTS, "moe_intermediate_size": 18}, "one of 1, 2"),
    ],
)
def test_ranks_of_an_engine_have_whole_query_heads(tmp_path: Path, ranks, changes, allowed) -> None:
    job = {
        "rollout": {"engine": "vllm", "parallelism": {"tensor": ranks}},
        "roles": {"actorRollout": {"ranksPerReplica": 4}},
        "algorithm": {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2},
    }
    found = out_of_range(problems(tmp_path, {"model": {**HEADS, **changes}}, **job))
    assert found == ({"spec.rollout.parallelism.tensor": allowed} if allowed else {})


@pytest.mark.parametrize(("experts", "allowed"), [(8, None), (6, "a divisor of 6")])
def test_ranks_of_an_engine_have_whole_experts(tmp_path: Path, experts: int, allowed) -> None:
    """However wide: these do not divide into four."""
    mixture = {**HEADS, **EXPERTS, "moe_intermediate_size": 18, "num_experts": experts}
    job = {
        "rollout": {"engine": "vllm", "parallelism": {"tensor": 4, "expert": 4}},
        "roles": {"actorRollout": {"ranksPerReplica": 4}},
        "algorithm": {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2},
    }
    found = out_of_range(problems(tmp_path, {"model": mixture}, **job))
    assert found == ({"spec.rollout.parallelism.expert": allowed} if allowed else {})


@pytest.mark.parametrize(
    ("engine", "family", "changes", "refused"),
    [
        ("vllm", "olmo2", {}, False),
        ("vllm", "phi", {"tie_word_embeddings": True}, True),
        ("huggingface", "phi", {"tie_word_embeddings": True}, False),
        ("vllm", "mistral", {}, False),
        ("vllm", "lfm2", {**CONVOLUTIONS, "tie_word_embeddings": True}, False),
        ("vllm", "lfm2", {**CONVOLUTIONS, "tie_word_embeddings": False}, True),
        ("huggingface", "lfm2", {**CONVOLUTIONS, "tie_word_embeddings": False}, False),
        ("vllm", "cohere2", {"tie_word_embeddings": False}, True),
    ],
)
def test_an_engine_has_the_family(tmp_path: Path, engine: str, family: str, changes, refused: bool):
    configs = {"model": {"model_type": family, **SIZES, **changes}}
    found = problems(tmp_path, configs, rollout={"engine": engine, "dtype": "float32"})
    assert [(one.where, one.reason_code) for one in found] == (
        [("spec.rollout.engine", ReasonCode.CONFLICT)] if refused else []
    )


@pytest.mark.parametrize(("family", "refused"), [("granitemoehybrid", True), ("llama", False)])
def test_an_engine_drafts_without_states(tmp_path: Path, family: str, refused: bool) -> None:
    config = MAMBA if family == "granitemoehybrid" else {"model_type": family, **SIZES}
    rollout = {"engine": "vllm", "dtype": "bfloat16", "drafts": {}}
    found = problems(tmp_path, {"model": config}, rollout=rollout)
    assert [(one.where, one.reason_code) for one in found] == (
        [("spec.rollout.drafts", ReasonCode.NOT_IN_THIS_VERSION)] if refused else []
    )


@pytest.mark.parametrize(
    ("family", "changes", "refused"),
    [
        ("lfm2", {**CONVOLUTIONS, "tie_word_embeddings": True}, False),
        ("lfm2", {**CONVOLUTIONS, "tie_word_embeddings": False}, True),
        ("olmoe", {"num_experts": 6, "tie_word_embeddings": True}, True),
        ("olmoe", {"num_experts": 6, "tie_word_embeddings": False}, False),
        ("qwen3_next", {**SHARED, "tie_word_embeddings": True}, True),
        ("qwen3_next", {**SHARED, "tie_word_embeddings": False}, False),
        ("glm4v_moe", {**SHARED, "tie_word_embeddings": True}, True),
        ("qwen2", {"tie_word_embeddings": True}, False),
        ("laguna", {**SHARED, "head_dim": 8}, True),  # the bias of whose routers vLLM drops
        ("mistral4", SHARED, True),
    ],
)
def test_a_judge_is_what_vllm_computes(tmp_path: Path, family: str, changes, refused: bool):
    judge = {"model_type": family, **SIZES, **changes}
    asked = {"rewards": [{"function": "judge"}], "judge": {"path": str(tmp_path / "judge")}}
    found = problems(tmp_path, {"model": SIZES, "judge": judge}, **asked)
    assert [(one.where, one.reason_code) for one in found] == (
        [("spec.judge.path", ReasonCode.CONFLICT)] if refused else []
    )


@pytest.mark.parametrize(
    ("family", "latent", "refused"),
    [("deepseek_v3", 512, False), ("deepseek_v3", 448, True), ("mistral4", 256, False)],
)
def test_an_engine_has_kernels_for_latents(tmp_path: Path, family: str, latent: int, refused: bool):
    widths = {"kv_lora_rank": latent, "n_routed_experts": 6, "n_shared_experts": 1}
    config = {**SIZES, **EXPERTS, **widths, "model_type": family}
    found = problems(tmp_path, {"model": config}, rollout={"engine": "vllm"})
    assert [(one.where, one.reason_code) for one in found] == (
        [("spec.rollout.engine", ReasonCode.CONFLICT)] if refused else []
    )


@pytest.mark.parametrize(("changes", "refused"), [({}, True), (EXPERTS, False)])
@pytest.mark.parametrize(
    ("asked", "frozen"),
    [
        ({"routerReplay": "recompute"}, {"freezeRouters": True}),
        ({"routerBalanceCoefficient": 0.01, "routerZCoefficient": 0.001}, {}),
    ],
)
def test_a_dense_model_has_no_routers(tmp_path: Path, changes, refused: bool, asked, frozen):
    grpo = {"type": "grpo", "promptsPerStep": 2, "samplesPerPrompt": 2, **asked}
    model = {"path": str(tmp_path / "model"), **frozen}
    told = problems(tmp_path, {"model": {**SIZES, **changes}}, algorithm=grpo, model=model)
    found = [(p.where, p.reason_code) for p in told]
    fields = [f"spec.algorithm.{name}" for name in asked] + [f"spec.model.{one}" for one in frozen]
    assert found == [(field, ReasonCode.NO_EFFECT) for field in fields if refused]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, True),
        ({"model_type": "qwen3_moe", **EXPERTS}, True),
        ({"model_type": "glm4_moe", **CORRECTED}, False),
    ],
)
def test_a_bias_that_moves_is_there(tmp_path: Path, changes, refused: bool) -> None:
    sizes = {"promptsPerStep": 2, "samplesPerPrompt": 2}
    algorithm = {"type": "grpo", **sizes, "routerBiasRate": 0.001}
    config = {"model_type": "llama", **SIZES, **changes}
    found = problems(tmp_path, {"model": config}, algorithm=algorithm)
    expected = [("spec.algorithm.routerBiasRate", ReasonCode.NO_EFFECT)]
    assert [(one.where, one.reason_code) for one in found] == expected * refused


@pytest.mark.parametrize(
    ("changes", "refused"), [({}, False), ({"model_type": "qwen3_moe", **EXPERTS}, True)]
)
def test_a_block_that_is_computed_in_tiles_is_there(tmp_path: Path, changes, refused: bool) -> None:
    config = {"model_type": "llama", **SIZES, **changes}
    found = problems(tmp_path, {"model": config}, training={"mlpTileTokens": 4096})
    expected = [("spec.training.mlpTileTokens", ReasonCode.NO_EFFECT)]
    assert [(one.where, one.reason_code) for one in found] == expected * refused


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"model_type": "glm4_moe", **CORRECTED, "num_nextn_predict_layers": 1}, False),
        ({"model_type": "glm4_moe", **CORRECTED, "num_nextn_predict_layers": 2}, True),
        ({"model_type": "qwen3_next", **EXPERTS, "mtp_num_hidden_layers": 1}, True),
    ],
)
def test_a_layer_that_predicts_further_tokens_is_there_and_known(tmp_path, changes, refused):
    model = {"path": str(tmp_path / "model"), "mtp": {}}
    told = problems(tmp_path, {"model": {**SIZES, **changes}}, model=model)
    found = [(p.where, p.reason_code) for p in told]
    assert found == [("spec.model.mtp", ReasonCode.NOT_IN_THIS_VERSION)] * refused


def test_a_layer_without_weights_is_not_trained(tmp_path: Path) -> None:
    """Of which config.json tells alone, as where somebody saved the model by transformers."""
    save_mtp_model(tmp_path / "model", "glm4_moe")
    file = tmp_path / "model" / "model.safetensors"
    layer = place_of("glm4_moe")
    kept = {name: one for name, one in load_file(file).items() if not name.startswith(layer)}
    save_file(kept, file, {"format": "pt"})
    model = {"path": str(tmp_path / "model"), "mtp": {}}
    manifest = tiny_jobs.write_manifest(tmp_path, tmp_path, model=model)
    (found,) = check_layouts(resolve(load_job(manifest)).spec)
    assert (found.where, found.reason_code) == ("spec.model.mtp", ModelReason.WEIGHTS_MISSING)


@pytest.mark.parametrize(
    ("ranks", "policy", "critic", "refused"),
    [
        (2, EXPERTS, {}, None),
        (4, EXPERTS, EXPERTS, ReasonCode.OUT_OF_RANGE),
        (2, {}, EXPERTS, None),
        (2, {}, {}, ReasonCode.NO_EFFECT),
    ],
)
def test_ranks_share_experts_where_there_are_some(tmp_path, ranks, policy, critic, refused):
    """Of one of the models that live in the same ranks, and as many of each."""
    roles = {"actorRollout": {"ranksPerReplica": 4, "parallelism": {"expert": ranks}}}
    models = {"model": {**SIZES, **policy}, "critic": {**SIZES, **critic}}
    ppo = {"type": "ppo", "promptsPerStep": 4, "samplesPerPrompt": 1}
    job = {"critic": {"path": str(tmp_path / "critic")}, "roles": roles, "algorithm": ppo}
    found = [(p.where, p.reason_code) for p in problems(tmp_path, models, **job)]
    place = "spec.roles.actorRollout.parallelism.expert"
    assert found == ([(place, refused)] if refused else [])


@pytest.mark.parametrize(("engine", "refused"), [("vllm", True), ("huggingface", False)])
@pytest.mark.parametrize(("sizes", "lora"), [(EXPERTS, {}), ({}, {"weightDecomposed": True})])
def test_vllm_has_no_adapters_beside_experts_and_none_with_lengths(
    tmp_path: Path, sizes, lora, engine: str, refused: bool
) -> None:
    model = {"path": str(tmp_path / "model"), "lora": {"rank": 2, **lora}}
    rollout = {"engine": engine, "adapters": "beside"}
    found = problems(tmp_path, {"model": {**SIZES, **sizes}}, model=model, rollout=rollout)
    refusal = ("spec.rollout.adapters", ReasonCode.NOT_IN_THIS_VERSION)
    assert [(one.where, one.reason_code) for one in found] == ([refusal] if refused else [])


@pytest.mark.parametrize(
    ("kind", "engine", "refused"),
    [("glm4", "vllm", True), ("glm4", "huggingface", False), ("llama", "vllm", False)],
)
def test_models_that_vllm_does_not_compute_in_float16(tmp_path, kind, engine, refused):
    rollout = {"engine": engine, "dtype": "float16"}
    found = problems(tmp_path, {"model": {**SIZES, "model_type": kind}}, rollout=rollout)
    refusal = ("spec.rollout.dtype", ReasonCode.CONFLICT)
    assert [(one.where, one.reason_code) for one in found] == ([refusal] if refused else [])


HYBRID = {"model_type": "qwen3_5_text", **SIZES, **DELTA_NETWORKS}


@pytest.mark.parametrize(
    ("rollout", "refused"),
    [
        ({"engine": "huggingface"}, {}),
        ({"engine": "vllm", "dtype": "bfloat16"}, {}),
        ({"engine": "vllm"}, {"spec.rollout.dtype": ReasonCode.CONFLICT}),
        (
            {"engine": "vllm", "dtype": "bfloat16", "adapters": "beside"},
            {"spec.rollout.adapters": ReasonCode.NOT_IN_THIS_VERSION},
        ),
    ],
)
def test_what_vllm_does_of_linear_attention(tmp_path: Path, rollout, refused) -> None:
    model = {"path": str(tmp_path / "model"), "lora": {"rank": 2}}
    found = problems(tmp_path, {"model": HYBRID}, model=model, rollout=rollout)
    assert {one.where: one.reason_code for one in found} == refused


MAMBA = {"model_type": "granitemoehybrid", **SIZES, **FAMILY_MODELS["granitemoehybrid"][1]}
UNGATED = {"model_type": "nemotron_h", **SIZES, **FAMILY_MODELS["nemotron_h"][1]}
PLAIN = {**UNGATED, "layers_block_type": ["linear_attention", "full_attention", "mlp"]}


@pytest.mark.parametrize(
    ("config", "dtype", "refused"),
    [
        (MAMBA, "float32", set()),
        (MAMBA, "float16", {"spec.rollout.dtype"}),
        (PLAIN, "bfloat16", set()),
        (UNGATED, "bfloat16", {"spec.rollout.engine"}),
    ],
)
def test_what_vllm_does_of_mamba_on_processors(tmp_path: Path, config, dtype, refused) -> None:
    rollout = {"engine": "vllm", "dtype": dtype}
    found = problems(tmp_path, {"model": config}, rollout=rollout)
    assert {one.where for one in found if one.reason_code == ReasonCode.CONFLICT} == refused
    assert len(found) == len(refused)


@pytest.mark.parametrize(("replay", "refused"), [("recompute", False), ("rollout", True)])
def test_vllm_tells_no_experts_beside_states(tmp_path: Path, replay, refused) -> None:
    sizes = {"promptsPerStep": 2, "samplesPerPrompt": 2}
    job = {
        "algorithm": {"type": "grpo", **sizes, "routerReplay": replay},
        "rollout": {"engine": "vllm"},
        "roles": {"actorRollout": {"gpusPerReplica": 1}},
    }
    found = [(one.where, one.reason_code) for one in problems(tmp_path, {"model": MAMBA}, **job)]
    refusal = ("spec.algorithm.routerReplay", ReasonCode.CONFLICT)
    assert found == ([refusal] if refused else [])


@pytest.mark.parametrize(
    ("model", "ranks", "most"),
    [(MAMBA, 4, None), (MAMBA, 8, 4), (HYBRID, 2, None), (HYBRID, 4, 2)],
)
def test_ranks_share_the_heads_of_layers_without_attention(tmp_path, model, ranks, most):
    """Mamba has eight in one group, linear attention two, beside four of attention."""
    pods = {"ranksPerReplica": ranks, "parallelism": {"sequence": ranks}}
    configs = {"model": {**model, "num_attention_heads": 4}}
    found = out_of_range(problems(tmp_path, configs, roles={"actorRollout": pods}))
    where = "spec.roles.actorRollout.parallelism.sequence"
    assert found == ({} if most is None else {where: f"a divisor of {most}"})


@pytest.mark.parametrize(
    ("ranks", "changes", "allowed"),
    [
        (2, {}, None),
        (4, {}, None),  # two ranks a key head
        (4, {"head_dim": 3}, "one of 1, 2"),  # which they cannot halve
        (4, {"num_attention_heads": 12, "num_key_value_heads": 3}, "one of 1, 3"),
        (2, {"num_attention_heads": 3, "num_key_value_heads": 3}, "one of 1, 3"),
        (2, {"intermediate_size": 23}, "one of 1"),
        (4, {"model_type": "phi3"}, None),
        (2, {**EXPERTS, "moe_intermediate_size": 24}, "one of 1"),  # of 8 features
    ],
)
def test_ranks_have_whole_heads(tmp_path: Path, ranks: int, changes: object, allowed) -> None:
    pods = {"ranksPerReplica": 4, "parallelism": {"tensor": ranks}, "colocateWith": "none"}
    ppo = {**tiny_jobs.PPO, "critic": {"path": str(tmp_path / "critic")}}
    configs = {"model": SIZES, "critic": {**HEADS, **changes}}
    found = out_of_range(problems(tmp_path, configs, **ppo, roles={"critic": pods}))
    assert found == ({"spec.roles.critic.parallelism.tensor": allowed} if allowed else {})


APART = {"model_type": "gemma4_text", **HEADS, "num_hidden_layers": 4, "num_key_value_heads": 4}
EXPERTS_BESIDE = {**MIXTURE, "enable_moe_block": True, "top_k_experts": 2}
JOINT = {"attention_k_eq_v": True, "num_global_key_value_heads": 2}
HEADS_OF_LAYERS = "num_attention_heads_per_layer"
OF_LAGUNA = {
    **{
        "model_type": "laguna",
        **MIXTURE,
        "moe_intermediate_size": 32,
        HEADS_OF_LAYERS: [4, 8, 4, 8],
    },
    **{"shared_expert_intermediate_size": 32, "head_dim": 8, "intermediate_size": 32},
}


@pytest.mark.parametrize(
    ("ranks", "changes", "allowed"),
    [
        ({"pipeline": 4}, {"hidden_size_per_layer_input": 0}, None),
        ({"pipeline": 2}, {"hidden_size_per_layer_input": 8}, "at most 1"),
        (
            {"pipeline": 2},
            {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 1},
            "at most 1",
        ),
        ({"tensor": 4}, {}, None),
        ({"tensor": 4}, JOINT, None),  # two ranks a head of the last layer
        ({"sequence": 4}, JOINT, None),
        ({"tensor": 2}, EXPERTS_BESIDE, None),
        ({"expert": 2}, EXPERTS_BESIDE, None),
        ({"pipeline": 2}, {"model_type": "nanochat"}, "at most 1"),
        ({"tensor": 4}, OF_LAGUNA, None),
        ({"sequence": 4}, {**OF_LAGUNA, HEADS_OF_LAYERS: [4, 6, 4, 6]}, "a divisor of 2"),
    ],
)
def test_ranks_of_layers_that_differ(tmp_path: Path, ranks, changes, allowed) -> None:
    pods = {"ranksPerReplica": 4, "parallelism": ranks}
    grpo = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2}
    configs = {"model": {**APART, **changes}}
    job = {"roles": {"actorRollout": pods}, "algorithm": grpo}
    found = out_of_range(problems(tmp_path, configs, **job))
    (where,) = (f"spec.roles.actorRollout.parallelism.{name}" for name in ranks)
    assert found == ({where: allowed} if allowed else {})
