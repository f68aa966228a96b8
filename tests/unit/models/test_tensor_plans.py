import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from family_models import FAMILY_MODELS, MIXTURE_MODELS
from mtp_models import place_of, save_mtp_model
from safetensors.torch import load_file, save_file
from tiny_models import CORRECTED, DELTA_NETWORKS, MIXTURE, SIZES, make_model
from transformers import LlamaForSequenceClassification, LlamaForTokenClassification

from ppojob_api.problem import Problem, ReasonCode
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.layout_checks import check_layouts
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.tensor_plans import (
    BEFORE_COLWISE,
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

EXPERTS = {"model_type": "qwen3_moe", **MIXTURE}
THEIRS = {
    "colwise": COLWISE,  # of torch's transposed matrices
    "colwise_gather_output": COLWISE,  # which is not gathered here
    "rowwise": ROWWISE,
    "rowwise_split_input": ROWWISE,
    "replicated_with_grad_allreduce": IN_EACH_HEAD,
}
OF_LATENTS = {"q_proj": COLWISE, "q_b_proj": COLWISE, "kv_b_proj": COLWISE, "o_proj": ROWWISE}
"""Which transformers leaves whole."""


DENSE = [name for name, one in FAMILIES.items() if not one.mixture or name == "gemma4_text"]
NO_PLAN = ("hunyuan_v1_dense", "gpt2", "opt", "stablelm", "lfm2", "nemotron", "falcon_h1", "bamba")
"""Of transformers."""
MIXTURES = [name for name, one in FAMILIES.items() if one.mixture and one.mixture.block]


@pytest.mark.parametrize("family", [name for name in DENSE if name not in NO_PLAN])
def test_what_transformers_cuts_is_cut_alike(family: str) -> None:
    theirs = FAMILY_MODELS[family][0].config_class.base_model_tp_plan
    if theirs is None:  # of a language model that is a part of another
        theirs = FAMILY_MODELS[family][0].text_config.base_model_tp_plan
    # Stacks, what belongs to attention itself, and layers that all ranks compute here.
    others = (".experts", ".sinks", ".linear_attn", ".kv_a_proj_with_mqa")
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
    without = (STATES_TO_COLWISE, BEFORE_COLWISE)  # such norms are OLMo's
    assert all(style.counts or style in without or name == "model.norm" for name, style in others)


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
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
SHARED = {
    **{"num_experts": 6, "n_routed_experts": 6, "moe_intermediate_size": 16},
    **{"shared_expert_intermediate_size": 16, "n_shared_experts": 1},
}
"""Of mixtures that share an expert, by both names."""
WIDE_EXPERTS = {**HEADS, **EXPERTS, "moe_intermediate_size": 18}
HYBRID = {"model_type": "qwen3_5_text", **SIZES, **DELTA_NETWORKS}
MAMBA = {"model_type": "granitemoehybrid", **SIZES, **FAMILY_MODELS["granitemoehybrid"][1]}
UNGATED = {"model_type": "nemotron_h", **SIZES, **FAMILY_MODELS["nemotron_h"][1]}
PLAIN = {**UNGATED, "layers_block_type": ["linear_attention", "full_attention", "mlp"]}
LATENTS = {**SIZES, **EXPERTS, "n_routed_experts": 6, "n_shared_experts": 1}
OF_GLM = {**SIZES, "model_type": "glm4_moe", **CORRECTED}
APART = {"model_type": "gemma4_text", **HEADS, "num_hidden_layers": 4, "num_key_value_heads": 4}
TOLD_NOTHING = {**APART, "hidden_size_per_layer_input": 0}
EXPERTS_BESIDE = {**APART, **MIXTURE, "enable_moe_block": True, "top_k_experts": 2}
JOINT = {**APART, "attention_k_eq_v": True, "num_global_key_value_heads": 2}
HEADS_OF_LAYERS = "num_attention_heads_per_layer"
OF_LAGUNA = {
    **{**APART, **MIXTURE, "model_type": "laguna", "moe_intermediate_size": 32},
    **{"shared_expert_intermediate_size": 32, "head_dim": 8, "intermediate_size": 32},
    HEADS_OF_LAYERS: [4, 8, 4, 8],
}
GRPO = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2}
MODEL = {"path": "FOLDER/model"}
VLLM = {"engine": "vllm"}
WITH_CRITIC = {**tiny_jobs.PPO, "critic": {"path": "FOLDER/critic"}}
WITH_JUDGE = {"rewards": [{"function": "judge"}], "judge": {"path": "FOLDER/judge"}}

Told = str | ReasonCode | None
"""What is allowed where a value is out of range; else the reason; None where nothing is wrong."""
CONFLICT, NO_EFFECT = ReasonCode.CONFLICT, ReasonCode.NO_EFFECT
LATER = ReasonCode.NOT_IN_THIS_VERSION


def of_engine(**parallelism: int) -> dict[str, object]:
    rollout = {**VLLM, "parallelism": parallelism}
    return {"rollout": rollout, "roles": {"actorRollout": {"ranksPerReplica": 4}}}


def of_ranks(**parallelism: int) -> dict[str, object]:
    return {"actorRollout": {"ranksPerReplica": 4, "parallelism": parallelism}}


# By what is looked at: the config of the model, or of several, the job, and the place of a mistake.
LAYOUTS: dict[str, list[tuple[dict[str, Any], dict[str, Any], str, Told]]] = {
    "query heads of an engine's ranks": [
        (
            {**HEADS, **changes},
            {**of_engine(tensor=ranks), "algorithm": GRPO},
            "rollout.parallelism.tensor",
            allowed,
        )
        for ranks, changes, allowed in (
            (2, {}, None),
            (4, {}, None),  # two ranks a key head
            (4, {"model_type": "olmoe", "num_experts": 6}, "one of 1, 2"),  # vLLM has none for it
            (4, {"num_attention_heads": 2}, "one of 1, 2"),
            (4, {"num_attention_heads": 12, "num_key_value_heads": 3}, "one of 1, 3, 6, 12"),
            (4, {"intermediate_size": 18}, "one of 1, 2"),
            (4, WIDE_EXPERTS, "one of 1, 2"),
        )
    ],
    "experts of an engine's ranks, however wide": [
        (
            {**WIDE_EXPERTS, "num_experts": experts},
            {**of_engine(tensor=4, expert=4), "algorithm": GRPO},
            "rollout.parallelism.expert",
            allowed,
        )
        for experts, allowed in ((8, None), (6, "a divisor of 6"))
    ],
    "families of an engine": [
        (
            {"model_type": family, **SIZES, **changes},
            {"rollout": {"engine": engine, "dtype": "float32"}},
            "rollout.engine",
            told,
        )
        for engine, family, changes, told in (
            ("vllm", "olmo2", {}, None),
            ("vllm", "phi", TIED, CONFLICT),
            ("huggingface", "phi", TIED, None),
            ("vllm", "mistral", {}, None),
            ("vllm", "bamba", {"mamba_n_heads": 8}, CONFLICT),
            ("huggingface", "bamba", {"mamba_n_heads": 8}, None),
            ("vllm", "lfm2", {**CONVOLUTIONS, **TIED}, None),
            ("vllm", "lfm2", {**CONVOLUTIONS, **UNTIED}, CONFLICT),
            ("huggingface", "lfm2", {**CONVOLUTIONS, **UNTIED}, None),
            ("vllm", "cohere2", UNTIED, CONFLICT),
        )
    ],
    "drafts beside states": [
        (config, {"rollout": {**VLLM, "dtype": "bfloat16", "drafts": {}}}, "rollout.drafts", told)
        for config, told in ((MAMBA, LATER), (SIZES, None))
    ],
    "judges of vLLM": [
        ({"model": SIZES, "judge": {**SIZES, **judge}}, WITH_JUDGE, "judge.path", told)
        for judge, told in (
            ({"model_type": "lfm2", **CONVOLUTIONS, **TIED}, None),
            ({"model_type": "lfm2", **CONVOLUTIONS, **UNTIED}, CONFLICT),
            ({"model_type": "olmoe", "num_experts": 6, **TIED}, CONFLICT),
            ({"model_type": "olmoe", "num_experts": 6, **UNTIED}, None),
            ({"model_type": "qwen3_next", **SHARED, **TIED}, CONFLICT),
            ({"model_type": "qwen3_next", **SHARED, **UNTIED}, None),
            ({"model_type": "glm4v_moe", **SHARED}, CONFLICT),  # imports what is not installed
            ({"model_type": "gemma3", "text_config": {**SIZES, "head_dim": 8}}, CONFLICT),
            ({"model_type": "gemma3_text", "head_dim": 8}, None),
            ({"model_type": "qwen2", **TIED}, None),
            ({"model_type": "laguna", **SHARED, "head_dim": 8}, CONFLICT),  # a bias is dropped
            ({"model_type": "mistral4", **SHARED}, CONFLICT),
            ({"model_type": "bamba", "mamba_n_heads": 8}, CONFLICT),
        )
    ],
    "kernels for latents": [
        (
            {**LATENTS, "model_type": family, "kv_lora_rank": latent},
            {"rollout": VLLM},
            "rollout.engine",
            told,
        )
        for family, latent, told in (
            ("deepseek_v3", 512, None),
            ("deepseek_v3", 448, CONFLICT),
            ("mistral4", 256, None),
        )
    ],
    "a bias of routers that moves": [
        (config, {"algorithm": {**GRPO, "routerBiasRate": 0.001}}, "algorithm.routerBiasRate", told)
        for config, told in ((SIZES, NO_EFFECT), ({**SIZES, **EXPERTS}, NO_EFFECT), (OF_GLM, None))
    ],
    "blocks in tiles": [
        (config, {"training": {"mlpTileTokens": 4096}}, "training.mlpTileTokens", told)
        for config, told in ((SIZES, None), ({**SIZES, **EXPERTS}, NO_EFFECT))
    ],
    "a layer that predicts further tokens": [
        (config, {"model": {**MODEL, "mtp": {}}}, "model.mtp", told)
        for config, told in (
            ({**OF_GLM, "num_nextn_predict_layers": 1}, None),
            ({**OF_GLM, "num_nextn_predict_layers": 2}, LATER),
            ({**SIZES, **EXPERTS, "model_type": "qwen3_next", "mtp_num_hidden_layers": 1}, LATER),
        )
    ],
    "experts that ranks share, of one of the models that live there": [
        (
            {"model": {**SIZES, **policy}, "critic": {**SIZES, **critic}},
            {
                "critic": {"path": "FOLDER/critic"},
                "roles": of_ranks(expert=ranks),
                "algorithm": {**GRPO, "type": "ppo", "samplesPerPrompt": 1},
            },
            "roles.actorRollout.parallelism.expert",
            told,
        )
        for ranks, policy, critic, told in (
            (2, EXPERTS, {}, None),
            (4, EXPERTS, EXPERTS, ReasonCode.OUT_OF_RANGE),
            (2, {}, EXPERTS, None),
            (2, {}, {}, NO_EFFECT),
        )
    ],
    "adapters beside weights": [
        (
            {**SIZES, **config},
            {
                "model": {**MODEL, "lora": {"rank": 2, **lora}},
                "rollout": {"engine": engine, "adapters": "beside"},
            },
            "rollout.adapters",
            told,
        )
        for config, lora in ((EXPERTS, {}), ({}, {"weightDecomposed": True}))
        for engine, told in (("vllm", LATER), ("huggingface", None))
    ],
    "float16": [
        (
            {**SIZES, "model_type": family},
            {"rollout": {"engine": engine, "dtype": "float16"}},
            "rollout.dtype",
            told,
        )
        for family, engine, told in (
            ("glm4", "vllm", CONFLICT),
            ("glm4", "huggingface", None),
            ("llama", "vllm", None),
        )
    ],
    "linear attention": [
        (HYBRID, {"model": {**MODEL, "lora": {"rank": 2}}, "rollout": rollout}, where, told)
        for rollout, where, told in (
            ({"engine": "huggingface"}, "", None),
            ({**VLLM, "dtype": "bfloat16"}, "", None),
            (VLLM, "rollout.dtype", CONFLICT),
            ({**VLLM, "dtype": "bfloat16", "adapters": "beside"}, "rollout.adapters", LATER),
        )
    ],
    "Mamba on processors": [
        (config, {"rollout": {**VLLM, "dtype": dtype}}, where, told)
        for config, dtype, where, told in (
            (MAMBA, "float32", "", None),
            (MAMBA, "float16", "rollout.dtype", CONFLICT),
            (PLAIN, "bfloat16", "", None),
            (UNGATED, "bfloat16", "rollout.engine", CONFLICT),
        )
    ],
    "experts that an engine tells beside states": [
        (
            MAMBA,
            {
                "algorithm": {**GRPO, "promptsPerStep": 2, "routerReplay": replay},
                "rollout": VLLM,
                "roles": {"actorRollout": {"gpusPerReplica": 1}},
            },
            "algorithm.routerReplay",
            told,
        )
        for replay, told in (("recompute", None), ("rollout", CONFLICT))
    ],
    # Mamba has eight in one group, linear attention two, beside four of attention.
    "heads of layers without attention": [
        (
            {**config, "num_attention_heads": 4},
            {
                "roles": {
                    "actorRollout": {"ranksPerReplica": ranks, "parallelism": {"sequence": ranks}}
                }
            },
            "roles.actorRollout.parallelism.sequence",
            allowed,
        )
        for config, ranks, allowed in (
            (MAMBA, 4, None),
            (MAMBA, 8, "a divisor of 4"),
            (HYBRID, 2, None),
            (HYBRID, 4, "a divisor of 2"),
        )
    ],
    "heads of a critic's ranks": [
        (
            {"model": SIZES, "critic": {**HEADS, **changes}},
            {
                **WITH_CRITIC,
                "roles": {
                    "critic": {**of_ranks(tensor=ranks)["actorRollout"], "colocateWith": "none"}
                },
            },
            "roles.critic.parallelism.tensor",
            allowed,
        )
        for ranks, changes, allowed in (
            (2, {}, None),
            (4, {}, None),  # two ranks a key head
            (4, {"head_dim": 3}, "one of 1, 2"),  # which they cannot halve
            (4, {"num_attention_heads": 12, "num_key_value_heads": 3}, "one of 1, 3"),
            (2, {"num_attention_heads": 3, "num_key_value_heads": 3}, "one of 1, 3"),
            (2, {"intermediate_size": 23}, "one of 1"),
            (4, {"model_type": "phi3"}, None),
            (2, {**EXPERTS, "moe_intermediate_size": 24}, "one of 1"),  # of 8 features
        )
    ],
    "layers that differ": [
        (
            config,
            {"roles": of_ranks(**{name: ranks}), "algorithm": GRPO},
            f"roles.actorRollout.parallelism.{name}",
            allowed,
        )
        for name, ranks, config, allowed in (
            ("pipeline", 4, TOLD_NOTHING, None),
            ("pipeline", 2, {**APART, "hidden_size_per_layer_input": 8}, "at most 1"),
            ("pipeline", 2, {**TOLD_NOTHING, "num_kv_shared_layers": 1}, "at most 1"),
            ("tensor", 4, APART, None),
            ("tensor", 4, JOINT, None),  # two ranks a head of the last layer
            ("sequence", 4, JOINT, None),
            ("tensor", 2, EXPERTS_BESIDE, None),
            ("expert", 2, EXPERTS_BESIDE, None),
            ("pipeline", 2, {**APART, "model_type": "nanochat"}, "at most 1"),
            ("tensor", 4, OF_LAGUNA, None),
            ("sequence", 4, {**OF_LAGUNA, HEADS_OF_LAYERS: [4, 6, 4, 6]}, "a divisor of 2"),
        )
    ],
}


def problems(
    folder: Path, configs: dict[str, dict[str, object]], **changes: object
) -> list[Problem]:
    """What is wrong with the layout of a job whose models have these configs."""
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    changes = json.loads(json.dumps(changes).replace("FOLDER", str(folder)))
    return list(check_layouts(tiny_jobs.config_of(folder, **changes).spec))


@pytest.mark.parametrize(
    ("configs", "job", "where", "told"),
    [
        pytest.param(*case, id=f"{name}-{number}")
        for name, cases in LAYOUTS.items()
        for number, case in enumerate(cases)
    ],
)
def test_what_does_not_fit_a_model_is_refused(tmp_path: Path, configs, job, where, told) -> None:
    configs = configs if "model" in configs else {"model": configs}
    found = [(f.where, f.reason_code, f.allowed) for f in problems(tmp_path, configs, **job)]
    if told is None:
        assert found == []
        return
    ((place, reason, allowed),) = found
    is_reason = isinstance(told, ReasonCode)
    assert (place, reason) == (f"spec.{where}", told if is_reason else ReasonCode.OUT_OF_RANGE)
    assert is_reason or allowed == told


@pytest.mark.parametrize(("changes", "refused"), [({}, True), (EXPERTS, False)])
@pytest.mark.parametrize(
    ("asked", "frozen"),
    [
        ({"routerReplay": "recompute"}, {"freezeRouters": True}),
        ({"routerBalanceCoefficient": 0.01, "routerZCoefficient": 0.001}, {}),
    ],
)
def test_a_dense_model_has_no_routers(tmp_path: Path, changes, refused: bool, asked, frozen):
    job = {"algorithm": {**GRPO, "promptsPerStep": 2, **asked}, "model": {**MODEL, **frozen}}
    told = problems(tmp_path, {"model": {**SIZES, **changes}}, **job)
    found = [(p.where, p.reason_code) for p in told]
    fields = [f"spec.algorithm.{name}" for name in asked] + [f"spec.model.{one}" for one in frozen]
    assert found == [(field, NO_EFFECT) for field in fields if refused]


def test_a_layer_without_weights_is_not_trained(tmp_path: Path) -> None:
    """Of which config.json tells alone, as where somebody saved the model by transformers."""
    save_mtp_model(tmp_path / "model", "glm4_moe")
    file = tmp_path / "model" / "model.safetensors"
    layer = place_of("glm4_moe")
    kept = {name: one for name, one in load_file(file).items() if not name.startswith(layer)}
    save_file(kept, file, {"format": "pt"})
    model = {"path": str(tmp_path / "model"), "mtp": {}}
    (found,) = check_layouts(tiny_jobs.config_of(tmp_path, model=model).spec)
    assert (found.where, found.reason_code) == ("spec.model.mtp", ModelReason.WEIGHTS_MISSING)
