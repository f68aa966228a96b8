"""Model families that can be trained: a table whose rows say how each differs from Llama.

Tests compare the packed forward pass of each with transformers'. Unknown families are refused: they
could differ without any error. A new one is a row here and a model in `support/family_models.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.family import (
    ATTENTION_BIASES,
    BIAS_MODULE,
    CORRECTION,
    EXPERT_BIAS,
    FIXED_ROPES,
    QUERIES,
    RMS_NORM,
    Biases,
    Family,
    FeedForward,
    MixtureOfExperts,
    Multimodal,
    Recurrence,
)
from ppojob_trainer.models.hybrid_layers import PATTERN
from ppojob_trainer.models.per_layer_sizes import count_in

_FEED_FORWARD: Final[Biases] = {"mlp_bias": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}
_EXPERTS_EVERYWHERE: Final[Mapping[str, tuple[Json, ...]]] = {
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1,),
}
_DELTA_NETWORK_SIZES: Final[Mapping[str, Json]] = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_OF_TRANSFORMERS: Final[Mapping[str, Json]] = {"architectures": ["TransformersForCausalLM"]}
"""Whose class vLLM takes from transformers without knowing it by name."""
_TOP_K: Final = ("num_experts_per_tok",)
_SCALED_TOP_K: Final = (*_TOP_K, "norm_topk_prob", "routed_scaling_factor")
_LAYER_NORM: Final = ("layer_norm_eps", "rope_theta")
_MULTIPLIERS_ALONE: Final = (
    *("rms_norm_eps", "embedding_multiplier", "residual_multiplier", "attention_multiplier"),
    "logits_scaling",
)
_MULTIPLIERS: Final = (*_MULTIPLIERS_ALONE, "rope_theta")
_DELTA_NETWORKS: Final = Recurrence("linear_attn", tuple(_DELTA_NETWORK_SIZES))
_LFM2: Final = Family(
    "LFM2, LFM2.5",
    defaults={
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
    supported={"conv_bias": (False,)},
    norms=("operator_norm", "ffn_norm"),
    qk_norm="each head",
    qk_norm_names=("q_layernorm", "k_layernorm"),
    attention_out="out_proj",
    recurrence=Recurrence("conv", ("conv_L_cache",), "convolution"),
    feed_forward=FeedForward({"feed_forward.w1": 1, "feed_forward.w3": 1}, "feed_forward.w2"),
    modules={"embedding_norm": "norm", "pos_emb": "rotary_emb"},
    file_names={".embedding_norm.": ".norm."},
    overridable=("norm_eps", "rope_theta"),
)
_INFINITY: Final[Json] = {"__float__": "Infinity"}
"""As transformers 5 writes it."""
_NO_STEP_LIMITS: Final[tuple[Json, ...]] = (None, [0.0, float("inf")], [0.0, _INFINITY])
_QWEN3_VL: Final = Family(
    "Qwen3-VL",
    defaults={"head_dim": 128, "num_key_value_heads": 32},
    ropes=(None, "default", "mrope"),
    biases=ATTENTION_BIASES,
    qk_norm="each head",
    is_multimodal=True,
)
_OLMO2: Final = Family(
    "OLMo 2",
    biases=ATTENTION_BIASES,
    norms=(),
    post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    qk_norm="all heads",
)
_CAP: Final = "final_logit_softcapping"
_GEMMA: Final = Family(
    "Gemma",
    defaults={"head_dim": 256, "num_key_value_heads": 16, "tie_word_embeddings": True},
    supported={"use_bidirectional_attention": (None, False)},
    biases=ATTENTION_BIASES,
    norm_type=("centred",),
)
_GEMMA2: Final = replace(
    _GEMMA,
    models="Gemma 2",
    defaults={**_GEMMA.defaults, "num_key_value_heads": 4},
    has_windows=True,
    norms=("input_layernorm", "pre_feedforward_layernorm"),
    post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    logit_cap=_CAP,
    overridable=(*RMS_NORM, "query_pre_attn_scalar", "attn_logit_softcapping", _CAP),
)
_GEMMA4: Final = Family(
    "Gemma 4 E2B, E4B, 26B-A4B and 31B (text)",
    defaults={
        "head_dim": 256,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
    },
    supported={"use_bidirectional_attention": (None, "vision")},
    has_windows=True,
    ropes=(None, "default", "proportional"),
    has_ropes_by_layer=True,
    biases=ATTENTION_BIASES,
    norms=_GEMMA2.norms,
    post_norms=_GEMMA2.post_norms,
    qk_norm="each head",
    feed_forward=FeedForward(
        {"mlp.gate_proj": 1, "mlp.up_proj": 1}, "mlp.down_proj", in_moe_layers=True
    ),
    frozen_scalars=("layer_scalar",),
    has_per_layer_sizes=True,
    mixture=MixtureOfExperts(
        block="",
        router="router",
        router_weight="proj.weight",
        is_stacked=True,
        is_out_first=True,
        enabled_by="enable_moe_block",
        norms=(
            "pre_feedforward_layernorm_2",
            *("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"),
        ),
        has_scales=True,
        overridable=("top_k_experts",),
    ),
    logit_cap=_CAP,
    overridable=("rms_norm_eps", _CAP),
)
_WITH_SHARED: Final = MixtureOfExperts(
    shared="shared_expert",
    shared_inner=("shared_expert_intermediate_size",),
    shared_gate="shared_expert_gate",
)
_CORRECTED: Final = MixtureOfExperts(
    shared="shared_experts",
    shared_inner=("moe_intermediate_size", "n_shared_experts"),
    dense_first="first_k_dense_replace",
    scoring="sigmoid",
    selection_bias=f"gate.{CORRECTION}",
    overridable=_SCALED_TOP_K,
)
_LATENT: Final[Mapping[str, Json]] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_DEEPSEEK3: Final = Family(
    "DeepSeek-V3, Moonlight",
    defaults={"first_k_dense_replace": 3, **_LATENT},
    supported={
        "topk_method": (None, "noaux_tc"),
        "scoring_func": (None, "sigmoid"),
        "rope_interleave": (True,),
    },
    has_mla=True,
    vllm_overrides={"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    mixture=_CORRECTED,
    overridable=("rope_theta",),  # the epsilon of latents is a constant in transformers
)
_QWEN2_VL: Final = Family(
    "Qwen2-VL",
    defaults={"num_key_value_heads": 8},
    ropes=(None, "default", "mrope"),
    always_biased=QUERIES,
    is_multimodal=True,
)
_GLM4: Final = Family(
    "GLM-4-0414, GLM-Z1",
    defaults={"head_dim": 128, "num_key_value_heads": 2, "attention_bias": True},
    biases={"attention_bias": QUERIES},
    fused=("gate_up_proj",),
    post_norms=("post_self_attn_layernorm", "post_mlp_layernorm"),
)
_GLM4_MOE: Final = Family(
    "GLM-4.5, 4.6",
    defaults={"num_key_value_heads": 8, "first_k_dense_replace": 1, "use_qk_norm": False},
    biases={"attention_bias": QUERIES},
    qk_norm="each head",
    qk_norm_key="use_qk_norm",
    mixture=_CORRECTED,
)
_QWEN3_5: Final = Family(
    "Qwen3.5 (text)",
    defaults={
        **{"head_dim": 256, "num_key_value_heads": 4, "full_attention_interval": 4},
        **_DELTA_NETWORK_SIZES,
    },
    supported={
        "hidden_act": ("silu",),
        "attn_output_gate": (None, True),
        "output_gate_type": (None, "silu", "swish"),
    },
    biases=ATTENTION_BIASES,
    norm_type=("centred",),
    qk_norm="each head",
    has_attention_gates=True,
    recurrence=_DELTA_NETWORKS,
)
_QWEN3_5_SEEING: Final = replace(
    _QWEN3_5, models="Qwen3.5", ropes=(None, "default", "mrope"), is_multimodal=True
)
_QWEN3_5_MOE: Final = replace(
    _QWEN3_5,
    models="Qwen3.5 MoE (text)",
    defaults={**_QWEN3_5.defaults, "num_key_value_heads": 2},
    supported={
        **_QWEN3_5.supported,
        **_EXPERTS_EVERYWHERE,
        "decoder_sparse_step": (1, None),
        "norm_topk_prob": (True, None),
    },
    mixture=replace(_WITH_SHARED, is_stacked=True, is_out_first=True, overridable=_TOP_K),
)
_GRANITE: Final = Family(
    "Granite 3",
    biases={**ATTENTION_BIASES, **_FEED_FORWARD},
    logit_divisor="logits_scaling",
    overridable=_MULTIPLIERS,
)
_GRANITE_SHARED: Final = FeedForward(
    {"shared_mlp.input_linear": 2},
    "shared_mlp.output_linear",
    inner="shared_intermediate_size",
    in_moe_layers=True,
)
_GRANITE_EXPERTS: Final = MixtureOfExperts(
    "block_sparse_moe",
    inner="intermediate_size",
    router="router",
    is_stacked=True,
    is_out_first=True,
    topk_before_softmax=True,
    returns_experts_first=True,
    overridable=_TOP_K,
)
_MAMBA_SIZES: Final[Mapping[str, Json]] = {
    **{"mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_d_head": "auto"},
    **{"mamba_d_state": 256, "mamba_expand": 2, "mamba_d_conv": 4},
}
"""transformers' defaults in Granite 4, Falcon-H1 and Bamba."""
_GRANITE_STATES: Final = Recurrence(
    "mamba",
    ("mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv"),
    "mamba",
)
_GRANITE_MOE: Final = Family(
    "Granite 3 MoE, PowerMoE",
    defaults={"num_local_experts": 8},
    biases=ATTENTION_BIASES,
    file_names={
        ".block_sparse_moe.input_linear.weight": ".block_sparse_moe.experts.gate_up_proj",
        ".block_sparse_moe.output_linear.weight": ".block_sparse_moe.experts.down_proj",
        ".block_sparse_moe.router.layer.": ".block_sparse_moe.router.",
    },
    mixture=_GRANITE_EXPERTS,
    logit_divisor="logits_scaling",
    overridable=_MULTIPLIERS,
)
_COHERE: Final = Family(
    "Command R, Aya 23, Aya Expanse",
    defaults={"tie_word_embeddings": True},
    supported={"hidden_act": ("silu",), "use_qk_norm": (False, None)},
    norms=("input_layernorm",),
    norm_type=("layer",),
    logit_multiplier="logit_scale",
    overridable=(*_LAYER_NORM, "logit_scale"),
)
_QWEN2: Final = Family(
    "Qwen2, Qwen2.5",
    defaults={
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    ropes=(*FIXED_ROPES, "dynamic"),
    always_biased=QUERIES,
)
_HUNYUAN: Final = Family(
    "Hunyuan of 0.5B, 1.8B, 4B and 7B",
    supported={"use_qk_norm": (None, True), "use_cla": (None, False)},
    ropes=(*FIXED_ROPES, "dynamic"),
    biases=ATTENTION_BIASES,
    qk_norm="each head",
    qk_norm_names=("query_layernorm", "key_layernorm"),
)
_FEED_FORWARD_BLOCK: Final = FeedForward(
    {"feed_forward.gate_proj": 1, "feed_forward.up_proj": 1}, "feed_forward.down_proj"
)
_BAMBA: Final = Family(
    "Bamba",
    defaults={"num_key_value_heads": 8, "position_embedding_type": "rope", **_MAMBA_SIZES},
    supported={
        "hidden_act": ("silu",),
        "mamba_conv_bias": (True,),
        "mamba_proj_bias": (False,),
        "time_step_limit": _NO_STEP_LIMITS,
    },
    norms=("input_layernorm", "pre_ff_layernorm"),
    recurrence=replace(_GRANITE_STATES, returns_tuples=True),
    feed_forward=_FEED_FORWARD_BLOCK,
    modules={"final_layernorm": "norm"},
    file_names={"model.final_layernorm.": "model.norm."},
)
_DENSE_WIDTH: Final = "prefix_dense_intermediate_size"
_UNGATED: Final = FeedForward({"mlp.up_proj": 1}, "mlp.down_proj")
_UNGATED_BIASES: Final[Biases] = {**ATTENTION_BIASES, "mlp_bias": ("mlp.up_proj", "mlp.down_proj")}
FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("Llama, SmolLM2", biases={**ATTENTION_BIASES, **_FEED_FORWARD}),
    "llama4_text": Family(
        "Llama 4 (text)",
        defaults={
            **{"head_dim": 128, "num_key_value_heads": 8, "interleave_moe_layer_step": 1},
            **{"num_local_experts": 16, "num_experts_per_tok": 1, "intermediate_size_mlp": 16_384},
        },
        supported={
            "num_experts_per_tok": (1,),
            "router_jitter_noise": (0.0,),
            # Folders made before transformers 4.52 have 4, which transformers 5 does not read.
            "attn_temperature_tuning": (True, False),
        },
        has_windows=True,  # chunks
        feed_forward=replace(_FEED_FORWARD_BLOCK, inner="intermediate_size_mlp"),
        mixture=MixtureOfExperts(
            "feed_forward",
            inner="intermediate_size",
            shared="shared_expert",
            shared_inner=("intermediate_size",),
            interval="interleave_moe_layer_step",
            router="router",
            is_stacked=True,
            scoring="sigmoid",
            weighs_inputs=True,
            overridable=(),
        ),
    ),
    "cwm": Family(
        "CWM",
        defaults={"head_dim": 128, "num_key_value_heads": 8},
        has_windows=True,
        biases=_FEED_FORWARD,
    ),
    "arcee": Family(
        "AFM-4.5B",
        supported={"hidden_act": ("relu2",)},
        biases=_UNGATED_BIASES,
        feed_forward=_UNGATED,
    ),
    "afmoe": Family(
        "Trinity Nano, Mini and Large",
        defaults={"head_dim": 128, "num_dense_layers": 1},
        supported={
            "score_func": (None, "sigmoid"),
            "route_norm": (None, True),
            "n_group": (None, 1),
        },
        has_windows=True,
        norms=("input_layernorm", "pre_mlp_layernorm"),
        post_norms=("post_attention_layernorm", "post_mlp_layernorm"),
        qk_norm="each head",
        attention_gate="gate_proj",
        vllm_overrides={"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
        mixture=MixtureOfExperts(
            shared="shared_experts",
            shared_inner=("moe_intermediate_size", "num_shared_experts"),
            dense_first="num_dense_layers",
            router="router",
            router_weight="gate.weight",
            scoring="sigmoid",
            selection_bias=EXPERT_BIAS,
            scale="route_scale",
            overridable=_TOP_K,
        ),
    ),
    "jais2": Family(
        "Jais 2",
        defaults={"attention_bias": True, "mlp_bias": True},
        supported={"hidden_act": ("relu2",)},
        biases=_UNGATED_BIASES,
        norm_type=("layer", "biased"),
        feed_forward=_UNGATED,
        overridable=_LAYER_NORM,
    ),
    "nemotron": Family(
        "Minitron, Nemotron-Mini, Nemotron-4",
        supported={"hidden_act": ("relu2",)},
        biases=_UNGATED_BIASES,
        norm_type=("layer", "centred", "biased"),
        drops_attention_kwargs=True,
        feed_forward=_UNGATED,
        overridable=("norm_eps", "rope_theta"),
    ),
    "qwen2": _QWEN2,
    "mimo": replace(
        _QWEN2, models="MiMo-7B", vllm_overrides={"architectures": ["Qwen2ForCausalLM"]}
    ),
    "qwen3": Family(
        "Qwen3",
        defaults={"head_dim": 128, "num_key_value_heads": 32},
        biases=ATTENTION_BIASES,
        qk_norm="each head",
    ),
    "qwen3_moe": Family(
        "Qwen3 MoE",
        defaults={"num_key_value_heads": 4, "decoder_sparse_step": 1},
        biases=ATTENTION_BIASES,
        qk_norm="each head",
        mixture=MixtureOfExperts(interval="decoder_sparse_step"),
    ),
    "laguna": Family(
        "Laguna XS.2, M.1",
        defaults={"head_dim": 128, "num_key_value_heads": 8, "first_k_dense_replace": 1},
        supported={
            "gating": (True, "per-head", "per-element"),
            "moe_apply_router_weight_on_input": (False,),
            "swa_attention_sink_enabled": (False, None),
            "swa_rope_parameters": (None,),
        },
        has_windows=True,
        has_ropes_by_layer=True,
        biases=ATTENTION_BIASES,
        qk_norm="each head",
        attention_gate="g_proj",
        heads_key="num_attention_heads_per_layer",
        file_names={
            f".mlp.experts.{CORRECTION}": f".mlp.gate.{CORRECTION}",
            ".mlp.shared_expert.": ".mlp.shared_experts.",
        },
        mixture=replace(
            _CORRECTED,
            shared_inner=("shared_expert_intermediate_size",),
            weight_epsilon=0.0,
            overridable=_TOP_K,
        ),
        overridable=("rms_norm_eps",),
    ),
    "mellum": Family(
        "Mellum 2",
        defaults={"head_dim": 128, "num_key_value_heads": 4},
        has_windows=True,
        has_ropes_by_layer=True,
        biases=ATTENTION_BIASES,
        qk_norm="each head",
        mixture=MixtureOfExperts(),
        overridable=("rms_norm_eps",),
    ),
    "qwen2_moe": Family(
        "Qwen1.5-MoE, Qwen2 MoE",
        defaults={"num_key_value_heads": 16, "decoder_sparse_step": 1},
        supported={"qkv_bias": (True,)},
        always_biased=QUERIES,
        mixture=replace(_WITH_SHARED, interval="decoder_sparse_step"),
    ),
    "mixtral": Family(
        "Mixtral",
        defaults={"num_key_value_heads": 8},
        supported={"sliding_window": (None,), "router_jitter_noise": (0.0,)},
        ropes=(None, "default"),
        mixture=MixtureOfExperts(
            "block_sparse_moe", ("w1", "w3", "w2"), "intermediate_size", overridable=_TOP_K
        ),
    ),
    "olmoe": Family(
        "OLMoE",
        supported={
            "clip_qkv": (None,),
            "norm_topk_prob": (False,),
            "rms_norm_eps": (1e-5,),  # which vLLM computes with
        },
        qk_norm="all heads",
        mixture=MixtureOfExperts(inner="intermediate_size", overridable=_TOP_K),
        overridable=("rope_theta",),
    ),
    "deepseek_v2": replace(
        _DEEPSEEK3,
        models="DeepSeek-V2-Lite",
        defaults={**_DEEPSEEK3.defaults, "first_k_dense_replace": 0},
        supported={
            "topk_method": ("greedy",),
            "n_group": (None, 1),
            "scoring_func": (None, "softmax"),
            "norm_topk_prob": (False,),
        },
        vllm_overrides={
            **{"topk_method": "greedy", "scoring_func": "softmax"},
            **{"n_group": 1, "topk_group": 1},
        },
        mixture=replace(
            _CORRECTED,
            scoring="softmax",
            selection_bias="",
            overridable=("num_experts_per_tok", "routed_scaling_factor"),
        ),
    ),
    "deepseek_v3": _DEEPSEEK3,
    "glm4_moe_lite": replace(
        _DEEPSEEK3,
        models="GLM-4.7-Flash",
        defaults={
            **_DEEPSEEK3.defaults,
            "first_k_dense_replace": 1,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
        },
        supported={**_DEEPSEEK3.supported, "first_k_dense_replace": (None, 1)},
        vllm_overrides={"first_k_dense_replace": 1},
    ),
    "mistral4": replace(
        _DEEPSEEK3,
        models="Mistral Small 4 (text)",
        defaults={**_LATENT, "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64},
        supported={"rope_interleave": (True,), "n_group": (None, 1)},
        ropes=(None, "default", "yarn"),
        caches_heads=True,
        vllm_overrides={
            "architectures": ["DeepseekV3ForCausalLM"],
            **{"topk_method": "greedy", "scoring_func": "softmax"},
            **{"n_group": 1, "topk_group": 1},
        },
        mixture=replace(
            _CORRECTED,
            scoring="softmax",
            selection_bias="",
            is_stacked=True,
            is_out_first=True,
            is_split_in_vllm=True,
        ),
    ),
    "youtu": replace(
        _DEEPSEEK3,
        models="Youtu-LLM",
        defaults={**_LATENT, "tie_word_embeddings": True},
        supported={"rope_interleave": (True,)},
        vllm_overrides={"architectures": ["TransformersForCausalLM"], "model_type": "deepseek_v3"},
        mixture=None,
        overridable=RMS_NORM,
    ),
    "minicpm3": replace(
        _DEEPSEEK3,
        models="MiniCPM3-4B",
        defaults={
            **{**_LATENT, "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64},
            **{"qk_rope_head_dim": 32, "tie_word_embeddings": True},
        },
        computed={
            "v_head_dim": lambda config: (
                count_in(config, "hidden_size") // max(1, count_in(config, "num_attention_heads"))
            )
        },
        supported={"hidden_act": ("silu",)},
        ropes=(*FIXED_ROPES, "longrope"),
        caches_heads=True,
        vllm_overrides={},
        mixture=None,
        logit_divisor="logits_scaling",
    ),
    "glm4_moe": _GLM4_MOE,
    "solar_open": replace(
        _GLM4_MOE,
        models="Solar Open",
        defaults={"head_dim": 128, "num_key_value_heads": 8},
        supported={"use_qk_norm": (None, False), "first_k_dense_replace": (None, 0)},
        qk_norm="none",
        qk_norm_key="",
        vllm_overrides={
            "architectures": ["Glm4MoeForCausalLM"],
            "use_qk_norm": False,
            "first_k_dense_replace": 0,
        },
        mixture=replace(_CORRECTED, dense_first=""),
    ),
    "dots1": replace(
        _GLM4_MOE,
        models="dots.llm1",
        defaults={"num_key_value_heads": 32, "first_k_dense_replace": 0},
        biases={},
        qk_norm_key="",
        vllm_overrides={"architectures": ["Glm4MoeForCausalLM"], "use_qk_norm": True},
    ),
    "exaone_moe": Family(
        "K-EXAONE",
        defaults={"num_key_value_heads": 32, "first_k_dense_replace": 1},
        supported={"sliding_windows": (None,)},
        has_windows=True,
        qk_norm="each head",
        file_names={f".mlp.{CORRECTION}": f".mlp.gate.{CORRECTION}"},
        mixture=replace(_CORRECTED, shared_inner=("moe_intermediate_size", "num_shared_experts")),
    ),
    "minimax_m2": Family(
        "MiniMax-M2",
        defaults={"head_dim": 128, "num_key_value_heads": 8},
        supported={
            "router_jitter_noise": (0.0,),
            "scoring_func": (None, "sigmoid"),
            "use_routing_bias": (None, True),
            "use_qk_norm": (None, True),
            "qk_norm_type": (None, "per_layer"),
        },
        qk_norm="all heads",
        vllm_overrides={"use_routing_bias": True, "scoring_func": "sigmoid"},
        mixture=MixtureOfExperts(
            "block_sparse_moe",
            ("w1", "w3", "w2"),
            "intermediate_size",
            scoring="sigmoid",
            selection_bias=CORRECTION,
            overridable=_TOP_K,
        ),
    ),
    "gpt_oss": Family(
        "gpt-oss",
        defaults={"head_dim": 64, "num_key_value_heads": 8, "attention_bias": True},
        supported={
            "attention_bias": (True,),
            "swiglu_alpha": (1.702,),
            "swiglu_limit": (7.0,),
            "rms_norm_eps": (1e-5,),
        },
        has_windows=True,
        alternates_windows=True,
        ropes=("yarn",),
        biases=ATTENTION_BIASES,
        has_sinks=True,
        mixture=MixtureOfExperts(
            inner="intermediate_size",
            router="router",
            is_stacked=True,
            is_clamped=True,
            overridable=_TOP_K,
        ),
        overridable=("rope_theta",),
    ),
    "mistral": Family(
        "Mistral",
        defaults={"num_key_value_heads": 8},
        supported={"layer_types": (None,)},
        has_windows=True,
    ),
    "ministral": Family(
        "Ministral 8B of 2024",
        defaults={"num_key_value_heads": 8},
        has_windows=True,
        vllm_overrides=_OF_TRANSFORMERS,
    ),
    "ministral3": Family(
        "Ministral 3 (text)",
        defaults={"num_key_value_heads": 8, "head_dim": 128},
        supported={"sliding_window": (None,), "layer_types": (None,)},
        ropes=("yarn",),
    ),
    "phi3": Family(
        "Phi-3, Phi-3.5, Phi-4",
        supported={"resid_pdrop": (0.0,), "layer_types": (None,)},
        has_windows=True,
        ropes=(None, "default", "longrope"),
        fused=("qkv_proj", "gate_up_proj"),
        head_counts=("config.num_attention_heads", "num_key_value_heads"),
    ),
    "phimoe": Family(
        "Phi-3.5-MoE",
        defaults={"num_key_value_heads": 8, "num_local_experts": 16},
        supported={
            "num_experts_per_tok": (2,),
            "router_jitter_noise": (0.01,),  # which vLLM computes with
            "sliding_window": (None, 131_072),  # longer than all rows
        },
        ropes=(None, "default", "longrope"),
        always_biased=(*QUERIES, "self_attn.o_proj"),
        norm_type=("layer", "biased"),
        has_head_bias=True,
        file_names={".block_sparse_moe.gate.": ".block_sparse_moe.router."},
        vllm_overrides={"architectures": ["PhiMoEForCausalLM"]},
        mixture=MixtureOfExperts(
            "block_sparse_moe",
            ("w1", "w3", "w2"),
            "intermediate_size",
            router="router",
            scoring="sparsemixer",
            overridable=(),
        ),
    ),
    "smollm3": Family(
        "SmolLM3",
        defaults={"num_key_value_heads": 4, "tie_word_embeddings": True},
        biases={**ATTENTION_BIASES, **_FEED_FORWARD},
    ),
    "olmo": Family(
        "OLMo",
        biases=ATTENTION_BIASES,
        norm_type=("layer", "unweighted"),
        overridable=("rope_theta",),
    ),
    "olmo2": _OLMO2,
    "olmo3": replace(
        _OLMO2,
        models="OLMo 3",
        has_windows=True,
        has_ropes_by_layer=True,
        overridable=("rms_norm_eps",),
    ),
    "flex_olmo": replace(
        _OLMO2,
        models="FlexOlmo",
        mixture=MixtureOfExperts(inner="intermediate_size", overridable=_TOP_K),
    ),
    "granite": _GRANITE,
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": replace(
        _GRANITE_MOE,
        models="Granite 3 MoE with a shared expert",
        defaults={"num_local_experts": 8, "shared_intermediate_size": 0},
        feed_forward=_GRANITE_SHARED,
    ),
    "granite_swa": replace(
        _GRANITE,
        models="Granite SWASH",
        defaults={"num_key_value_heads": 4, "tie_word_embeddings": True},
        has_windows=True,
        has_ropes_by_layer=True,
        has_sinks=True,
        overridable=_MULTIPLIERS_ALONE,
    ),
    "granitemoe_swa": replace(
        _GRANITE_MOE,
        models="Granite SWASH MoE",
        defaults={"num_local_experts": 8, "shared_intermediate_size": 0},
        has_windows=True,
        has_ropes_by_layer=True,
        has_sinks=True,
        feed_forward=_GRANITE_SHARED,
        file_names={},
        mixture=replace(_GRANITE_EXPERTS, returns_experts_first=False, may_share_none=True),
        overridable=_MULTIPLIERS_ALONE,
    ),
    "granitemoehybrid": Family(
        "Granite 4",
        defaults={
            "num_local_experts": 8,
            "shared_intermediate_size": 1024,
            **_MAMBA_SIZES,
        },
        supported={
            "mamba_n_groups": (1,),  # vLLM uses one norm for each
            "mamba_conv_bias": (True,),
            "mamba_proj_bias": (False,),
            "time_step_limit": _NO_STEP_LIMITS,
            "normalization_function": (None, "rmsnorm"),
        },
        recurrence=_GRANITE_STATES,
        feed_forward=_GRANITE_SHARED,
        file_names=_GRANITE_MOE.file_names,
        mixture=_GRANITE_EXPERTS,
        logit_divisor="logits_scaling",
        overridable=_MULTIPLIERS,
    ),
    "falcon_h1": replace(
        _BAMBA,
        models="Falcon-H1",
        defaults={"num_key_value_heads": 8, "mamba_d_ssm": 1024, **_MAMBA_SIZES},
        supported={
            **_BAMBA.supported,
            "mamba_rms_norm": (False,),
            "projectors_bias": (False,),
            "attn_rotary_emb": (None,),
        },
        recurrence=replace(_GRANITE_STATES, is_beside_attention=True, returns_tuples=True),
        logit_multiplier="lm_head_multiplier",
        overridable=(*RMS_NORM, "lm_head_multiplier"),
    ),
    "bamba": _BAMBA,
    "nemotron_h": Family(
        "Nemotron-H, Nemotron Nano 2 and 3, Nemotron 3 Super",
        defaults={
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 21_504,
            PATTERN: "ME*-",
            "n_groups": 8,
            "mamba_num_heads": 128,
            "ssm_state_size": 128,
            "mamba_head_dim": 64,
            "conv_kernel": 4,
        },
        supported={
            "mlp_hidden_act": ("relu2",),
            "mamba_hidden_act": ("silu",),
            "use_bias": (False,),
            "mamba_proj_bias": (False,),
            "use_conv_bias": (True,),
            "time_step_limit": _NO_STEP_LIMITS,
            "sliding_window": (None,),
            "hidden_dropout": (0.0,),
            "residual_in_fp32": (False,),
            "tie_word_embeddings": (False,),
            "n_shared_experts": (1,),
        },
        norms=("norm",),
        attention="mixer",
        has_one_block=True,
        recurrence=Recurrence(
            "mixer",
            ("n_groups", "mamba_num_heads", "ssm_state_size", "mamba_head_dim", "conv_kernel"),
            "mamba",
        ),
        feed_forward=FeedForward({"mixer.up_proj": 1}, "mixer.down_proj"),
        modules={"embeddings": "embed_tokens", "norm_f": "norm"},
        file_names={
            "backbone.embeddings.": "model.embed_tokens.",
            "backbone.norm_f.": "model.norm.",
            "backbone.": "model.",
        },
        mixture=MixtureOfExperts(
            "mixer",
            ("up_proj", "down_proj"),
            shared="shared_experts",
            shared_inner=("moe_shared_expert_intermediate_size",),
            scoring="sigmoid",
            selection_bias=f"gate.{CORRECTION}",
            latent="moe_latent_size",
            overridable=_SCALED_TOP_K,
        ),
        overridable=("layer_norm_epsilon",),
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": replace(
        _GEMMA2,
        models="Gemma 3 (text)",
        defaults={**_GEMMA2.defaults, "vocab_size": 262_208, "num_attention_heads": 8},
        has_ropes_by_layer=True,
        qk_norm="each head",
        overridable=("rms_norm_eps", "query_pre_attn_scalar", _CAP),
    ),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": replace(
        _GEMMA4,
        models="Gemma 4 12B (text)",
        defaults={**_GEMMA4.defaults, "hidden_size_per_layer_input": 0},
        supported={"use_bidirectional_attention": ("vision", None)},
        mixture=None,
        vllm_overrides={"architectures": ["Gemma4ForCausalLM"]},
    ),
    "vaultgemma": replace(_GEMMA2, models="VaultGemma", supported={}, post_norms=()),
    "glm": replace(_GLM4, models="GLM-4-9B (`-hf`), GLM-Edge", post_norms=()),
    "glm4": _GLM4,
    "seed_oss": Family(
        "Seed-OSS",
        defaults={"head_dim": 128, "num_key_value_heads": 8, "attention_bias": True},
        biases={
            "attention_bias": QUERIES,
            "attention_out_bias": ("self_attn.o_proj",),
            **_FEED_FORWARD,
        },
        overridable=(*RMS_NORM, "residual_dropout"),
    ),
    "exaone4": Family(
        "EXAONE 4",
        defaults={"num_key_value_heads": 32},
        has_windows=True,
        norms=(),
        post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm="each head",
    ),
    "apertus": Family(
        "Apertus",
        supported={"hidden_act": ("xielu",)},
        biases=ATTENTION_BIASES,
        norms=("attention_layernorm", "feedforward_layernorm"),
        qk_norm="each head",
        feed_forward=_UNGATED,
        trained_scalars=("mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n"),  # xIELU: arXiv:2411.13010
        frozen_scalars=("mlp.act_fn.beta", "mlp.act_fn.eps"),
        zero_dim_scalars=("mlp.act_fn.beta", "mlp.act_fn.eps"),
    ),
    "lfm2": _LFM2,
    "lfm2_moe": replace(
        _LFM2,
        models="LFM2 MoE",
        defaults={
            **{"num_key_value_heads": 8, "tie_word_embeddings": True},
            **{"conv_L_cache": 3, "num_dense_layers": 2},
        },
        supported={"conv_bias": (False,), "use_expert_bias": (True,)},
        mixture=MixtureOfExperts(
            "feed_forward",
            ("w1", "w3", "w2"),
            dense_first="num_dense_layers",
            scoring="sigmoid",
            weight_epsilon=1e-6,
            selection_bias=EXPERT_BIAS,
            overridable=_SCALED_TOP_K,
        ),
    ),
    "ernie4_5": Family(
        "ERNIE 4.5 dense",
        defaults={"head_dim": 128, "num_key_value_heads": 2, "tie_word_embeddings": True},
        supported={"use_bias": (False,)},
    ),
    "hunyuan_v1_dense": _HUNYUAN,
    "hy_v3": Family(
        "Hy3",
        defaults={"head_dim": 128, "num_key_value_heads": 8, "first_k_dense_replace": 1},
        supported={
            "qk_norm": (None, True),
            "route_norm": (None, True),
            "first_k_dense_replace": (None, 1),
        },
        qk_norm="each head",
        vllm_overrides={"qk_norm": True, "route_norm": True, "first_k_dense_replace": 1},
        file_names={
            ".mlp.router.gate.": ".mlp.gate.",
            f".mlp.{EXPERT_BIAS}": f".mlp.{CORRECTION}",
            ".mlp.shared_mlp.": ".mlp.shared_experts.",
        },
        mixture=replace(
            _CORRECTED,
            shared_inner=("moe_intermediate_size", "num_shared_experts"),
            selection_bias=CORRECTION,
            scale="router_scaling_factor",
            overridable=_TOP_K,
        ),
    ),
    "hunyuan_v1_moe": replace(
        _HUNYUAN,
        models="Hunyuan-A13B",
        biases=ATTENTION_BIASES,
        mixture=MixtureOfExperts(
            inner="intermediate_size",
            shared="shared_mlp",
            shared_inner=("intermediate_size",),
            router_weight="wg.weight",
            overridable=(),
        ),
    ),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        models="Command R7B, Command A",
        supported={"hidden_act": ("silu",)},
        has_windows=True,
    ),
    "cohere2_moe": replace(
        _COHERE,
        models="Command A+",
        defaults={"head_dim": 128, "tie_word_embeddings": True, "num_shared_experts": 0},
        computed={_DENSE_WIDTH: lambda config: config.get("intermediate_size")},
        supported={"expert_selection_fn": ("softmax", "sigmoid"), "norm_topk_prob": (True,)},
        has_windows=True,
        feed_forward=FeedForward(
            {"mlp.gate_proj": 1, "mlp.up_proj": 1}, "mlp.down_proj", _DENSE_WIDTH
        ),
        mixture=MixtureOfExperts(
            inner="intermediate_size",
            shared="shared_experts",
            shared_inner=("intermediate_size", "num_shared_experts"),
            may_share_none=True,
            dense_first="first_k_dense_replace",
            scoring_key="expert_selection_fn",
            topk_before_softmax=True,
            weight_epsilon=0.0,
            overridable=_TOP_K,
        ),
        # Its norms have an epsilon under either of two keys.
        overridable=("rope_theta", "logit_scale"),
    ),
    "hyperclovax": Family(
        "HyperCLOVA X SEED Think",
        supported={"use_post_norm": (True,)},
        biases={**ATTENTION_BIASES, **_FEED_FORWARD},
        post_norms=("post_norm1", "post_norm2"),
        logit_multiplier="logits_scaling",
        overridable=_MULTIPLIERS,
    ),
    "ernie4_5_moe": Family(
        "ERNIE 4.5 MoE",
        defaults={
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            **{"moe_layer_start_index": 1, "moe_layer_interval": 1},
        },
        supported={"use_bias": (False,)},
        mixture=MixtureOfExperts(
            shared="shared_experts",
            shared_inner=("moe_intermediate_size", "moe_num_shared_experts"),
            may_share_none=True,
            dense_first="moe_layer_start_index",
            interval="moe_layer_interval",
            selection_bias=f"{BIAS_MODULE}.{CORRECTION}",
            overridable=("moe_k",),
        ),
    ),
    "gpt_neox": Family(
        "Pythia, GPT-NeoX",
        defaults={"attention_bias": True},
        biases={"attention_bias": ("attention.query_key_value", "attention.dense")},
        always_biased=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        fused=("qkv_proj",),
        norm_type=("layer", "biased"),
        attention="attention",
        attention_in="query_key_value",
        attention_out="dense",
        feed_forward=FeedForward({"mlp.dense_h_to_4h": 1}, "mlp.dense_4h_to_h"),
        key_aliases={"num_key_value_heads": "num_attention_heads"},
        dropouts=("attention_dropout", "hidden_dropout"),
        whole_modules={"gpt_neox": "model"},
        modules={"embed_in": "embed_tokens", "final_layer_norm": "norm"},
        file_names={
            "gpt_neox.layers.": "model.layers.",
            "gpt_neox.embed_in.": "model.embed_tokens.",
            "gpt_neox.final_layer_norm.": "model.norm.",
            "embed_out.": "lm_head.",
        },
        overridable=("layer_norm_eps",),
    ),
    "gpt2": Family(
        "GPT-2, DistilGPT-2",
        defaults={"tie_word_embeddings": True, "max_position_embeddings": 1024},
        computed={"n_inner": lambda config: 4 * count_in(config, "hidden_size")},
        supported={
            "add_cross_attention": (False,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
            "reorder_and_upcast_attn": (False,),
        },
        always_biased=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        fused=("qkv_proj",),
        norms=("ln_1", "ln_2"),
        norm_type=("layer", "biased"),
        attention="attn",
        attention_in="c_attn",
        attention_out="c_proj",
        feed_forward=FeedForward({"mlp.c_fc": 1}, "mlp.c_proj", "n_inner"),
        key_aliases={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "num_key_value_heads": "num_attention_heads",
            "max_position_embeddings": "n_positions",
            "attention_dropout": "attn_pdrop",
        },
        dropouts=("attn_pdrop", "embd_pdrop", "resid_pdrop"),
        positions=("wpe", 0),
        is_transposed=True,
        whole_modules={"transformer": "model"},
        modules={"h": "layers", "wte": "embed_tokens", "ln_f": "norm"},
        file_names={
            "transformer.h.": "model.layers.",
            "transformer.wte.": "model.embed_tokens.",
            "transformer.wpe.": "model.wpe.",
            "transformer.ln_f.": "model.norm.",
        },
        head_counts=("split_size",),
        overridable=("layer_norm_epsilon",),
    ),
    "opt": Family(
        "OPT, except 350M",
        defaults={
            **{"max_position_embeddings": 2048, "ffn_dim": 3072, "tie_word_embeddings": True},
            "enable_bias": True,
        },
        supported={
            "do_layer_norm_before": (True,),
            "_remove_final_layer_norm": (False,),
            "layer_norm_elementwise_affine": (True,),
            "layerdrop": (0.0,),
        },
        biases={"enable_bias": (*QUERIES, "self_attn.out_proj", "fc1", "fc2")},
        norms=("self_attn_layer_norm", "final_layer_norm"),
        norm_type=("layer", "biased"),
        attention_out="out_proj",
        feed_forward=FeedForward({"fc1": 1}, "fc2"),
        key_aliases={"num_key_value_heads": "num_attention_heads", "intermediate_size": "ffn_dim"},
        dropouts=("attention_dropout", "dropout"),
        positions=("embed_positions", 2),
        inner_module="decoder",
        modules={"final_layer_norm": "norm"},
        file_names={
            "model.decoder.layers.": "model.layers.",
            "model.decoder.embed_tokens.": "model.embed_tokens.",
            "model.decoder.embed_positions.": "model.embed_positions.",
            "model.decoder.final_layer_norm.": "model.norm.",
        },
        head_counts=("num_heads",),
        overridable=(),
    ),
    "phi": Family(
        "Phi-1, Phi-1.5, Phi-2",
        supported={"qk_layernorm": (False,)},
        always_biased=(*QUERIES, "self_attn.dense", "mlp.fc1", "mlp.fc2"),
        norms=("input_layernorm",),
        norm_type=("layer", "biased"),
        has_head_bias=True,
        attention_out="dense",
        feed_forward=FeedForward({"mlp.fc1": 1}, "mlp.fc2"),
        dropouts=("attention_dropout", "resid_pdrop", "embd_pdrop"),
        modules={"final_layernorm": "norm"},
        file_names={"model.final_layernorm.": "model.norm."},
        overridable=_LAYER_NORM,
    ),
    "helium": Family(
        "Helium 1",
        defaults={"head_dim": 128, "num_key_value_heads": 20},
        biases={"attention_bias": QUERIES, **_FEED_FORWARD},
        vllm_overrides=_OF_TRANSFORMERS,
    ),
    "nanochat": Family(
        "nanochat",
        supported={"hidden_act": ("relu2",)},
        biases=ATTENTION_BIASES,
        norm_type=("unweighted",),
        norms_embeddings=True,
        feed_forward=FeedForward({"mlp.fc1": 1}, "mlp.fc2"),
        vllm_overrides=_OF_TRANSFORMERS,
        logit_cap=_CAP,
        overridable=(*RMS_NORM, _CAP),
    ),
    "starcoder2": Family(
        "StarCoder2",
        defaults={"num_key_value_heads": 2, "use_bias": True, "tie_word_embeddings": True},
        has_windows=True,
        biases={"use_bias": (*QUERIES, "self_attn.o_proj", "mlp.c_fc", "mlp.c_proj")},
        norm_type=("layer", "biased"),
        feed_forward=FeedForward({"mlp.c_fc": 1}, "mlp.c_proj"),
        dropouts=("attention_dropout", "residual_dropout", "embedding_dropout"),
        overridable=("norm_epsilon", "rope_theta"),
    ),
    "stablelm": Family(
        "StableLM 3B, StableLM 2, StableLM Zephyr",
        defaults={"num_key_value_heads": 32},
        supported={"qk_layernorm": (False,), "use_parallel_residual": (False,)},
        biases={"use_qkv_bias": QUERIES},
        norm_type=("layer", "biased"),
        drops_attention_kwargs=True,
        dropouts=("attention_dropout", "hidden_dropout"),
        head_counts=("num_heads", "num_key_value_heads"),
        overridable=_LAYER_NORM,
    ),
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": replace(_QWEN2_VL, models="Qwen2.5-VL"),
    "qwen2_5_omni_thinker": replace(
        _QWEN2_VL, models="Qwen2.5-Omni", defaults={"num_key_value_heads": 4}, language_module=""
    ),
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": replace(
        _QWEN3_VL,
        models="Qwen3-VL MoE",
        defaults={"num_key_value_heads": 16},
        supported=_EXPERTS_EVERYWHERE,
        mixture=MixtureOfExperts(is_stacked=True, overridable=_TOP_K),
    ),
    "qwen3_omni_moe_thinker": replace(
        _QWEN3_VL,
        models="Qwen3-Omni",
        defaults={"num_key_value_heads": 4},
        supported=_EXPERTS_EVERYWHERE,
        mixture=MixtureOfExperts(),
        language_module="",
    ),
    "glm4v": replace(
        _GLM4,
        models="GLM-4.1V, GLM-4.6V-Flash",
        defaults={"num_key_value_heads": 2},
        supported={"attention_bias": (True,)},
        ropes=(None, "default"),
        biases={},
        always_biased=QUERIES,
        is_multimodal=True,
    ),
    "glm_ocr": replace(
        _GLM4,
        models="GLM-OCR",
        defaults={"num_key_value_heads": 8},
        ropes=(None, "default"),
        biases={},
        is_multimodal=True,
    ),
    "glm4v_moe": replace(
        _GLM4_MOE,
        models="GLM-4.5V, GLM-4.6V",
        defaults={"num_key_value_heads": 8, "first_k_dense_replace": 1, "attention_bias": True},
        supported={"use_qk_norm": (False,)},
        ropes=(None, "default"),
        qk_norm="none",
        qk_norm_key="",
        is_multimodal=True,
    ),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": _QWEN3_5_SEEING,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_moe": replace(
        _QWEN3_5_MOE, models="Qwen3.5 MoE", ropes=_QWEN3_5_SEEING.ropes, is_multimodal=True
    ),
    "qwen3_next": replace(
        _QWEN3_5,
        models="Qwen3-Next",
        defaults={**_QWEN3_5.defaults, "num_key_value_heads": 2},
        supported={**_QWEN3_5.supported, **_EXPERTS_EVERYWHERE},
        fused=("in_proj_qkvz",),
        mixture=_WITH_SHARED,
    ),
}
"""By `model_type` of config.json."""

MULTIMODAL: Final[Mapping[str, Multimodal]] = {
    "idefics3": Multimodal("SmolVLM of 256M, 500M and 2.2B, Idefics3", "llama", "text_model"),
    "smolvlm": Multimodal("SmolVLM2 of 256M, 500M and 2.2B", "llama", "text_model"),
    "llama4": Multimodal("Llama 4 Scout and Maverick", "llama4_text", has_causal_module=True),
    "gemma3": Multimodal("Gemma 3 of 4B, 12B and 27B", "gemma3_text"),
    "gemma4": Multimodal("Gemma 4 E2B, E4B, 26B-A4B and 31B", "gemma4_text"),
    "gemma4_unified": Multimodal("Gemma 4 12B", "gemma4_unified_text"),
    "mistral3": Multimodal("Mistral Small 3.1 and on, Ministral 3", "mistral"),
    "qwen2_audio": Multimodal("Qwen2-Audio", "qwen2"),
    "lfm2_vl": Multimodal("LFM2-VL, LFM2.5-VL", "lfm2"),
    "lighton_ocr": Multimodal("LightOnOCR", "qwen3"),
    "aya_vision": Multimodal("Aya Vision", "cohere2"),
    "ovis2": Multimodal("Ovis2", "qwen2"),
    "llava": Multimodal("LLaVA 1.5, LLaVA-Interleave, Pixtral 12B", "llama"),
    "llava_next": Multimodal("LLaVA-NeXT", "llama"),
    "llava_onevision": Multimodal("LLaVA-OneVision", "qwen2"),
    "internvl": Multimodal("InternVL 3 and 3.5 as transformers has them (`-hf`, `-HF`)", "qwen2"),
}
"""Multimodal models whose language model, a section of config.json, is of one of `FAMILIES`.

By the `model_type` of the whole. `data.image_forms` says which of them take images.
"""

_OF_7B: Final[Mapping[str, Json]] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
SECTION_DEFAULTS: Final[Mapping[str, Mapping[str, Json]]] = {
    "llama": {**_OF_7B, "intermediate_size": 11_008},
    "mistral": {**_OF_7B, "intermediate_size": 14_336},
}
"""transformers' sizes for a language model's section of config.json, which LLaVA's leave out."""
