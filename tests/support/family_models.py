"""A tiny model of each family that can be trained, by `model_type`: its class and further options.

Sizes are those of whoever makes it. What a family can have and its defaults have not is on; windows
are shorter than the rows of tests.
"""

from tiny_models import (
    CONVOLUTIONS,
    CORRECTED,
    DELTA_NETWORKS,
    HALF_ROTATED,
    INTERLEAVED,
    MIXTURE,
    PARTLY_ROTATED,
    SECTIONS,
)
from transformers import (
    AfmoeForCausalLM,
    ApertusForCausalLM,
    ArceeForCausalLM,
    Cohere2ForCausalLM,
    Cohere2MoeForCausalLM,
    CohereForCausalLM,
    CwmForCausalLM,
    DeepseekV2ForCausalLM,
    DeepseekV3ForCausalLM,
    Dots1ForCausalLM,
    Ernie4_5_MoeForCausalLM,
    Ernie4_5ForCausalLM,
    Exaone4ForCausalLM,
    ExaoneMoeForCausalLM,
    FalconH1ForCausalLM,
    FlexOlmoForCausalLM,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma4ForCausalLM,
    Gemma4UnifiedForCausalLM,
    GemmaForCausalLM,
    Glm4ForCausalLM,
    Glm4MoeForCausalLM,
    Glm4MoeLiteForCausalLM,
    GlmForCausalLM,
    GPT2LMHeadModel,
    GPTNeoXForCausalLM,
    GptOssForCausalLM,
    GraniteForCausalLM,
    GraniteMoeForCausalLM,
    GraniteMoeHybridForCausalLM,
    GraniteMoeSharedForCausalLM,
    GraniteMoeSWAForCausalLM,
    GraniteSWAForCausalLM,
    HeliumForCausalLM,
    HunYuanDenseV1ForCausalLM,
    HunYuanMoEV1ForCausalLM,
    HyperCLOVAXForCausalLM,
    HYV3ForCausalLM,
    Jais2ForCausalLM,
    LagunaForCausalLM,
    Lfm2ForCausalLM,
    Lfm2MoeForCausalLM,
    LlamaForCausalLM,
    MellumForCausalLM,
    MiniMaxM2ForCausalLM,
    Ministral3ForCausalLM,
    MinistralForCausalLM,
    Mistral4ForCausalLM,
    MistralForCausalLM,
    MixtralForCausalLM,
    NanoChatForCausalLM,
    NemotronForCausalLM,
    NemotronHForCausalLM,
    Olmo2ForCausalLM,
    Olmo3ForCausalLM,
    OlmoeForCausalLM,
    OlmoForCausalLM,
    OPTForCausalLM,
    Phi3ForCausalLM,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen2MoeForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
    Qwen3NextForCausalLM,
    SeedOssForCausalLM,
    SmolLM3ForCausalLM,
    SolarOpenForCausalLM,
    StableLmForCausalLM,
    Starcoder2ForCausalLM,
    VaultGemmaForCausalLM,
    YoutuForCausalLM,
)

from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.kinds import TOKENS
from ppojob_trainer.models.model_classes import LANGUAGE_MODELS, MiMoForCausalLM

WINDOW = 4
NO_DROPOUT = {"attention_dropout": 0.0, "residual_dropout": 0.0}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 12, "sliding_window": WINDOW}
GEMMA4 = {
    "head_dim": 8,
    "global_head_dim": 12,
    "sliding_window": WINDOW,
    "final_logit_softcapping": 3.0,
}
TOLD_LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": 128,
}
JOINT_KEYS = {"attention_k_eq_v": True, "num_key_value_heads": 4, "num_global_key_value_heads": 2}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.5,
}
OSS_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
SCALED_QUERIES = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.3,
}
LATENT = {
    "num_key_value_heads": None,
    "q_lora_rank": 12,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
SINKS = {
    **MULTIPLIERS,
    "sliding_window": WINDOW,
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "layer_rope_theta": [1e4, 5e2, 0],
}
HYBRID_MIXTURE = {
    **DELTA_NETWORKS,
    **MIXTURE,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
GRANITE4 = {
    **MULTIPLIERS,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "position_embedding_type": "rope",
    "num_local_experts": 6,
    "shared_intermediate_size": 40,
    "mamba_n_heads": 8,
    "mamba_d_state": 6,
}
FALCON = {
    "mamba_d_ssm": 48,
    "mamba_n_heads": 8,
    "mamba_d_state": 6,
    "mamba_n_groups": 2,
    "embedding_multiplier": 3.0,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.5,
    "attention_out_multiplier": 0.8,
    "ssm_multipliers": [0.9, 1.3, 0.6, 1.2, 0.8],
    "ssm_in_multiplier": 1.4,
    "ssm_out_multiplier": 0.6,
    "mlp_multipliers": [1.3, 0.7],
    "lm_head_multiplier": 0.5,
}
NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "moe"],
    "head_dim": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 6,
    "n_groups": 2,
    "ssm_state_size": 10,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 24,
    "moe_latent_size": 24,
    "routed_scaling_factor": 1.7,
    "time_step_min": 1e-9,  # a limit of transformers, which others have not
}
FAMILY_MODELS: dict[str, tuple[type[PreTrainedModel], dict[str, object]]] = {
    "llama": (LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "cwm": (
        CwmForCausalLM,
        {"head_dim": 8, "sliding_window": WINDOW, "rope_parameters": STRETCHED},
    ),
    "arcee": (ArceeForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "afmoe": (
        AfmoeForCausalLM,
        {
            **MIXTURE,
            **{"head_dim": 8, "sliding_window": WINDOW, "global_attn_every_n_layers": 2},
            **{"num_shared_experts": 2, "route_scale": 1.7, "mup_enabled": True},
        },
    ),
    "jais2": (Jais2ForCausalLM, {"head_dim": 8}),
    "nemotron": (NemotronForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (Qwen2ForCausalLM, {}),
    "mimo": (MiMoForCausalLM, {}),
    "qwen3": (Qwen3ForCausalLM, {"head_dim": 8, "attention_bias": True}),
    "qwen3_moe": (Qwen3MoeForCausalLM, MIXTURE),
    "laguna": (
        LagunaForCausalLM,
        {
            **MIXTURE,
            **{"head_dim": 8, "sliding_window": WINDOW, "num_hidden_layers": 3},
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "num_attention_heads_per_layer": [4, 8, 4],
            "shared_expert_intermediate_size": 24,
            "moe_routed_scaling_factor": 1.7,
        },
    ),
    "mellum": (
        MellumForCausalLM,
        {
            **MIXTURE,
            **{"head_dim": 8, "sliding_window": WINDOW, "num_hidden_layers": 3},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen2_moe": (Qwen2MoeForCausalLM, {**MIXTURE, "shared_expert_intermediate_size": 24}),
    "mixtral": (MixtralForCausalLM, {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "olmoe": (OlmoeForCausalLM, {"num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0}),
    "deepseek_v2": (DeepseekV2ForCausalLM, {**CORRECTED, **LATENT, "n_group": None}),
    "deepseek_v3": (DeepseekV3ForCausalLM, {**CORRECTED, **LATENT}),
    "glm4_moe_lite": (
        Glm4MoeLiteForCausalLM,
        {**CORRECTED, **LATENT, "num_attention_heads": 4, "num_key_value_heads": 4},
    ),
    "mistral4": (
        Mistral4ForCausalLM,
        {
            **{**CORRECTED, **LATENT, "n_group": 1, "topk_group": 1},
            "rope_parameters": {**SCALED_QUERIES, "rope_theta": 1e4},
        },
    ),
    "youtu": (
        YoutuForCausalLM,
        {**LATENT, "num_attention_heads": 4, "num_key_value_heads": 4},
    ),
    "glm4_moe": (Glm4MoeForCausalLM, {**CORRECTED, "use_qk_norm": True, "attention_bias": True}),
    "solar_open": (SolarOpenForCausalLM, {**CORRECTED, "head_dim": 8, "first_k_dense_replace": 0}),
    "dots1": (Dots1ForCausalLM, CORRECTED),
    "exaone_moe": (
        ExaoneMoeForCausalLM,
        {
            **CORRECTED,
            **{"num_experts": 6, "num_shared_experts": 2},
            **{"sliding_window": WINDOW, "sliding_window_pattern": 2},
        },
    ),
    "minimax_m2": (
        MiniMaxM2ForCausalLM,
        {"head_dim": 8, "rotary_dim": 4, "num_local_experts": 6, "num_experts_per_tok": 2},
    ),
    "gpt_oss": (
        GptOssForCausalLM,
        {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "rope_parameters": OSS_ROPE,
        },
    ),
    "mistral": (MistralForCausalLM, {"sliding_window": WINDOW}),
    "ministral": (
        MinistralForCausalLM,
        {
            **{"head_dim": 8, "sliding_window": WINDOW, "num_hidden_layers": 3},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "ministral3": (Ministral3ForCausalLM, {"head_dim": 12, "rope_parameters": SCALED_QUERIES}),
    "phi3": (Phi3ForCausalLM, {"sliding_window": WINDOW, "pad_token_id": 0}),
    "smollm3": (SmolLM3ForCausalLM, {"no_rope_layers": [0, 1, 0], "pad_token_id": 0}),
    "olmo": (OlmoForCausalLM, {"clip_qkv": 0.5, "attention_bias": True, "pad_token_id": 0}),
    "olmo2": (Olmo2ForCausalLM, {"attention_bias": True, "pad_token_id": 0}),
    "olmo3": (Olmo3ForCausalLM, {"sliding_window": WINDOW, "pad_token_id": 0}),
    "flex_olmo": (
        FlexOlmoForCausalLM,
        {"num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0},
    ),
    "granite": (GraniteForCausalLM, MULTIPLIERS),
    "granitemoe": (GraniteMoeForCausalLM, {**MULTIPLIERS, "num_local_experts": 6}),
    "granitemoeshared": (
        GraniteMoeSharedForCausalLM,
        {**MULTIPLIERS, "num_local_experts": 6, "shared_intermediate_size": 40},
    ),
    "granite_swa": (GraniteSWAForCausalLM, SINKS),
    "granitemoe_swa": (GraniteMoeSWAForCausalLM, {**SINKS, "num_local_experts": 6}),
    "granitemoehybrid": (GraniteMoeHybridForCausalLM, GRANITE4),
    "falcon_h1": (FalconH1ForCausalLM, FALCON),
    "nemotron_h": (NemotronHForCausalLM, NEMOTRON),
    "gemma": (GemmaForCausalLM, {"head_dim": 12}),
    "gemma2": (
        Gemma2ForCausalLM,
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3_text": (Gemma3ForCausalLM, {**GEMMA, "sliding_window_pattern": 2}),
    "gemma4_text": (Gemma4ForCausalLM, {**GEMMA4, **TOLD_LAYERS}),
    "gemma4_unified_text": (
        Gemma4UnifiedForCausalLM,
        {**GEMMA4, **JOINT_KEYS, "num_attention_heads": 4},
    ),
    "vaultgemma": (
        VaultGemmaForCausalLM,
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "glm": (GlmForCausalLM, {"head_dim": 8, "pad_token_id": 0}),
    "glm4": (Glm4ForCausalLM, {"head_dim": 8, "pad_token_id": 0}),
    "seed_oss": (
        SeedOssForCausalLM,
        {"head_dim": 12, "attention_out_bias": True, "mlp_bias": True, **NO_DROPOUT},
    ),
    "exaone4": (Exaone4ForCausalLM, {"sliding_window": WINDOW, "sliding_window_pattern": 2}),
    "apertus": (ApertusForCausalLM, {"pad_token_id": 0, "rope_parameters": STRETCHED}),
    "lfm2": (Lfm2ForCausalLM, {**CONVOLUTIONS, "block_multiple_of": 8}),
    "lfm2_moe": (Lfm2MoeForCausalLM, {**CONVOLUTIONS, **MIXTURE, "num_dense_layers": 1}),
    "ernie4_5": (Ernie4_5ForCausalLM, {"head_dim": 12}),
    "hunyuan_v1_dense": (
        HunYuanDenseV1ForCausalLM,
        {
            "head_dim": 8,
            "attention_bias": True,
            "rope_parameters": DYNAMIC,
        },
    ),
    "hy_v3": (
        HYV3ForCausalLM,
        {**MIXTURE, "head_dim": 8, "num_shared_experts": 2, "router_scaling_factor": 1.7},
    ),
    "hunyuan_v1_moe": (
        HunYuanMoEV1ForCausalLM,
        {"head_dim": 8, "rope_parameters": DYNAMIC, "num_experts": 6, "moe_topk": [2] * 3},
    ),
    "cohere": (CohereForCausalLM, {"logit_scale": 0.3}),
    "cohere2": (
        Cohere2ForCausalLM,
        {"sliding_window": WINDOW, "sliding_window_pattern": 2, "logit_scale": 0.3},
    ),
    "cohere2_moe": (
        Cohere2MoeForCausalLM,
        {
            **{"head_dim": 8, "sliding_window": WINDOW, "sliding_window_pattern": 2},
            **{"num_experts": 6, "num_shared_experts": 2, "first_k_dense_replace": 1},
            **{"expert_selection_fn": "sigmoid", "prefix_dense_intermediate_size": 40},
            "logit_scale": 0.3,
        },
    ),
    "hyperclovax": (HyperCLOVAXForCausalLM, MULTIPLIERS),
    "ernie4_5_moe": (
        Ernie4_5_MoeForCausalLM,
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "gpt_neox": (GPTNeoXForCausalLM, {}),
    "gpt2": (GPT2LMHeadModel, {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "opt": (OPTForCausalLM, {"dropout": 0.0, "pad_token_id": 0}),
    "phi": (PhiForCausalLM, {}),
    "helium": (HeliumForCausalLM, {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    "nanochat": (NanoChatForCausalLM, {"attention_bias": True, "pad_token_id": 0}),
    "starcoder2": (Starcoder2ForCausalLM, {"sliding_window": WINDOW}),
    "stablelm": (StableLmForCausalLM, {"use_qkv_bias": True}),
    "qwen2_vl": (LANGUAGE_MODELS["qwen2_vl"], {"rope_parameters": SECTIONS}),
    "qwen2_5_vl": (LANGUAGE_MODELS["qwen2_5_vl"], {"rope_parameters": SECTIONS}),
    "qwen2_5_omni_thinker": (
        LANGUAGE_MODELS["qwen2_5_omni_thinker"],
        {"rope_parameters": SECTIONS},
    ),
    "qwen3_vl": (LANGUAGE_MODELS["qwen3_vl"], {"rope_parameters": INTERLEAVED, "head_dim": 8}),
    "qwen3_vl_moe": (
        LANGUAGE_MODELS["qwen3_vl_moe"],
        {**MIXTURE, "moe_intermediate_size": 24, "rope_parameters": INTERLEAVED, "head_dim": 8},
    ),
    "qwen3_omni_moe_thinker": (
        LANGUAGE_MODELS["qwen3_omni_moe_thinker"],
        {**MIXTURE, "rope_parameters": INTERLEAVED, "head_dim": 8},
    ),
    "glm4v": (
        LANGUAGE_MODELS["glm4v"],
        {"num_attention_heads": 2, "rope_parameters": HALF_ROTATED},
    ),
    "glm_ocr": (LANGUAGE_MODELS["glm_ocr"], {"head_dim": 16, "rope_parameters": HALF_ROTATED}),
    "glm4v_moe": (
        LANGUAGE_MODELS["glm4v_moe"],
        {**CORRECTED, "head_dim": 16, "rope_parameters": HALF_ROTATED},
    ),
    "qwen3_5_text": (Qwen3_5ForCausalLM, DELTA_NETWORKS),
    "qwen3_5": (LANGUAGE_MODELS["qwen3_5"], {**DELTA_NETWORKS, "rope_parameters": PARTLY_ROTATED}),
    "qwen3_5_moe_text": (Qwen3_5MoeForCausalLM, HYBRID_MIXTURE),
    "qwen3_5_moe": (
        LANGUAGE_MODELS["qwen3_5_moe"],
        {**HYBRID_MIXTURE, "rope_parameters": PARTLY_ROTATED},
    ),
    "qwen3_next": (
        Qwen3NextForCausalLM,
        {**DELTA_NETWORKS, **MIXTURE, "shared_expert_intermediate_size": 24},
    ),
}
AS_OTHERS = (
    "cohere2_moe",
    "granite_swa",
    "granitemoe_swa",
    "helium",
    "hy_v3",
    "laguna",
    "nanochat",
)
"""Families with layers of others in another order: some of their tests are `long`."""
OTHER_HEADS = {("gpt2", TOKENS), ("gpt_neox", TOKENS)}
"""Whose class in transformers has a head of another name."""
MIXTURE_MODELS = {
    **{name: model for name, model in FAMILY_MODELS.items() if FAMILIES[name].mixture},
    "gemma4_text": (
        Gemma4ForCausalLM,
        {
            **GEMMA4,
            **JOINT_KEYS,
            **{"num_attention_heads": 4, "hidden_size_per_layer_input": 0},
            **{"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2},
            "moe_intermediate_size": 16,
        },
    ),
}
"""Those with experts, of families that have some without too."""


def is_half_in_vllm(family: str, device: str = "cpu") -> bool:
    """Whether vLLM computes a family in bfloat16 alone there."""
    form = FAMILIES[family]
    if device == "cuda" and form.has_mla:
        return True
    return form.recurrence is not None and form.recurrence.rule == "delta"
