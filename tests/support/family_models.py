"""A tiny model of each family that can be trained, by `model_type`: its class and further options.

Sizes are those of whoever makes it. What a family can have and its defaults have not is on; windows
are shorter than the rows of tests.
"""

import transformers
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
from transformers import Mistral4ForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

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
OPTIONS: dict[str, dict[str, object]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "llama4_text": {
        **{"head_dim": 8, "num_local_experts": 6, "intermediate_size_mlp": 40},
        **{"interleave_moe_layer_step": 2, "no_rope_layer_interval": 2},
        **{"attention_chunk_size": WINDOW, "floor_scale": 3, "attn_scale": 0.5},
    },
    "cwm": {"head_dim": 8, "sliding_window": WINDOW, "rope_parameters": STRETCHED},
    "arcee": {"attention_bias": True, "mlp_bias": True},
    "afmoe": {
        **MIXTURE,
        **{"head_dim": 8, "sliding_window": WINDOW, "global_attn_every_n_layers": 2},
        **{"num_shared_experts": 2, "route_scale": 1.7, "mup_enabled": True},
    },
    "jais2": {"head_dim": 8},
    "nemotron": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "mimo": {},
    "qwen3": {"head_dim": 8, "attention_bias": True},
    "qwen3_moe": MIXTURE,
    "laguna": {
        **MIXTURE,
        **{"head_dim": 8, "sliding_window": WINDOW, "num_hidden_layers": 3},
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "num_attention_heads_per_layer": [4, 8, 4],
        "shared_expert_intermediate_size": 24,
        "moe_routed_scaling_factor": 1.7,
    },
    "mellum": {
        **MIXTURE,
        **{"head_dim": 8, "sliding_window": WINDOW, "num_hidden_layers": 3},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 24},
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0},
    "deepseek_v2": {**CORRECTED, **LATENT, "n_group": None},
    "deepseek_v3": {**CORRECTED, **LATENT},
    "glm4_moe_lite": {**CORRECTED, **LATENT, "num_attention_heads": 4, "num_key_value_heads": 4},
    "mistral4": {
        **{**CORRECTED, **LATENT, "n_group": 1, "topk_group": 1},
        "rope_parameters": {**SCALED_QUERIES, "rope_theta": 1e4},
    },
    "youtu": {**LATENT, "num_attention_heads": 4, "num_key_value_heads": 4},
    "minicpm3": {
        **{**LATENT, "num_attention_heads": 4, "num_key_value_heads": 4, "v_head_dim": 6},
        **{"scale_emb": 3, "scale_depth": 1.2, "dim_model_base": 8},
    },
    "glm4_moe": {**CORRECTED, "use_qk_norm": True, "attention_bias": True},
    "solar_open": {**CORRECTED, "head_dim": 8, "first_k_dense_replace": 0},
    "dots1": CORRECTED,
    "exaone_moe": {
        **CORRECTED,
        **{"num_experts": 6, "num_shared_experts": 2},
        **{"sliding_window": WINDOW, "sliding_window_pattern": 2},
    },
    "minimax_m2": {
        "head_dim": 8,
        "rotary_dim": 4,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
    },
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": WINDOW,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "rope_parameters": OSS_ROPE,
    },
    "mistral": {"sliding_window": WINDOW},
    "ministral": {
        **{"head_dim": 8, "sliding_window": WINDOW, "num_hidden_layers": 3},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "ministral3": {"head_dim": 12, "rope_parameters": SCALED_QUERIES},
    "phi3": {"sliding_window": WINDOW, "pad_token_id": 0},
    "phimoe": {
        **{"num_local_experts": 6, "attention_bias": True, "lm_head_bias": True},
        **{"input_jitter_noise": 0.01, "pad_token_id": 0},
    },
    "smollm3": {"no_rope_layers": [0, 1, 0], "pad_token_id": 0},
    "olmo": {"clip_qkv": 0.5, "attention_bias": True, "pad_token_id": 0},
    "olmo2": {"attention_bias": True, "pad_token_id": 0},
    "olmo3": {"sliding_window": WINDOW, "pad_token_id": 0},
    "flex_olmo": {"num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0},
    "granite": MULTIPLIERS,
    "granitemoe": {**MULTIPLIERS, "num_local_experts": 6},
    "granitemoeshared": {**MULTIPLIERS, "num_local_experts": 6, "shared_intermediate_size": 40},
    "granite_swa": SINKS,
    "granitemoe_swa": {**SINKS, "num_local_experts": 6},
    "granitemoehybrid": GRANITE4,
    "falcon_h1": FALCON,
    "bamba": {
        **{"num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_groups": 2},
        **{"mamba_n_heads": 8, "mamba_d_state": 6},
    },
    "nemotron_h": NEMOTRON,
    "gemma": {"head_dim": 12},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {**GEMMA, "sliding_window_pattern": 2},
    "gemma4_text": {**GEMMA4, **TOLD_LAYERS},
    "gemma4_unified_text": {**GEMMA4, **JOINT_KEYS, "num_attention_heads": 4},
    "vaultgemma": {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "glm": {"head_dim": 8, "pad_token_id": 0},
    "glm4": {"head_dim": 8, "pad_token_id": 0},
    "seed_oss": {"head_dim": 12, "attention_out_bias": True, "mlp_bias": True, **NO_DROPOUT},
    "exaone4": {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "apertus": {"pad_token_id": 0, "rope_parameters": STRETCHED},
    "lfm2": {**CONVOLUTIONS, "block_multiple_of": 8},
    "lfm2_moe": {**CONVOLUTIONS, **MIXTURE, "num_dense_layers": 1},
    "ernie4_5": {"head_dim": 12},
    "hunyuan_v1_dense": {"head_dim": 8, "attention_bias": True, "rope_parameters": DYNAMIC},
    "hy_v3": {**MIXTURE, "head_dim": 8, "num_shared_experts": 2, "router_scaling_factor": 1.7},
    "hunyuan_v1_moe": {
        "head_dim": 8,
        "rope_parameters": DYNAMIC,
        "num_experts": 6,
        "moe_topk": [2] * 3,
    },
    "cohere": {"logit_scale": 0.3},
    "cohere2": {"sliding_window": WINDOW, "sliding_window_pattern": 2, "logit_scale": 0.3},
    "cohere2_moe": {
        **{"head_dim": 8, "sliding_window": WINDOW, "sliding_window_pattern": 2},
        **{"num_experts": 6, "num_shared_experts": 2, "first_k_dense_replace": 1},
        **{"expert_selection_fn": "sigmoid", "prefix_dense_intermediate_size": 40},
        "logit_scale": 0.3,
    },
    "hyperclovax": MULTIPLIERS,
    "ernie4_5_moe": {
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_num_shared_experts": 2,
        "moe_intermediate_size": 16,
    },
    "gpt_neox": {},
    "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "opt": {"dropout": 0.0, "pad_token_id": 0},
    "phi": {},
    "helium": {"head_dim": 8, "attention_bias": True, "mlp_bias": True},
    "nanochat": {"attention_bias": True, "pad_token_id": 0},
    "starcoder2": {"sliding_window": WINDOW},
    "stablelm": {"use_qkv_bias": True},
    "qwen2_vl": {"rope_parameters": SECTIONS},
    "qwen2_5_vl": {"rope_parameters": SECTIONS},
    "qwen2_5_omni_thinker": {"rope_parameters": SECTIONS},
    "qwen3_vl": {"rope_parameters": INTERLEAVED, "head_dim": 8},
    "qwen3_vl_moe": {
        **MIXTURE,
        "moe_intermediate_size": 24,
        "rope_parameters": INTERLEAVED,
        "head_dim": 8,
    },
    "qwen3_omni_moe_thinker": {**MIXTURE, "rope_parameters": INTERLEAVED, "head_dim": 8},
    "glm4v": {"num_attention_heads": 2, "rope_parameters": HALF_ROTATED},
    "glm_ocr": {"head_dim": 16, "rope_parameters": HALF_ROTATED},
    "glm4v_moe": {**CORRECTED, "head_dim": 16, "rope_parameters": HALF_ROTATED},
    "qwen3_5_text": DELTA_NETWORKS,
    "qwen3_5": {**DELTA_NETWORKS, "rope_parameters": PARTLY_ROTATED},
    "qwen3_5_moe_text": HYBRID_MIXTURE,
    "qwen3_5_moe": {**HYBRID_MIXTURE, "rope_parameters": PARTLY_ROTATED},
    "qwen3_next": {**DELTA_NETWORKS, **MIXTURE, "shared_expert_intermediate_size": 24},
}
_CLASSES = {**LANGUAGE_MODELS, "mimo": MiMoForCausalLM, "mistral4": Mistral4ForCausalLM}
"""Of families of which transformers has none by their name, or one of a larger model."""
FAMILY_MODELS: dict[str, tuple[type[PreTrainedModel], dict[str, object]]] = {
    family: (
        _CLASSES.get(family) or getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]),
        options,
    )
    for family, options in OPTIONS.items()
}
AS_OTHERS = (
    "bamba",
    "cohere2_moe",
    "granite_swa",
    "granitemoe_swa",
    "helium",
    "hy_v3",
    "laguna",
    "minicpm3",
    "nanochat",
    "phimoe",
)
"""Families with layers of others in another order: some of their tests are `long`."""
OTHER_HEADS = {("gpt2", TOKENS), ("gpt_neox", TOKENS)}
"""Whose class in transformers has a head of another name."""
MIXTURE_MODELS = {
    **{name: model for name, model in FAMILY_MODELS.items() if FAMILIES[name].mixture},
    "gemma4_text": (
        FAMILY_MODELS["gemma4_text"][0],
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
