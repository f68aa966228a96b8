"""Model families that can be trained: a table whose rows say how each differs from Llama.

All code that depends on the family reads this table. Tests compare the packed forward pass of each
with transformers'. Another family could differ without any error (windows, multipliers, softcaps),
so unknown ones are refused by name. A new family is a row here, and a model in
`tests/support/family_models.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.layer_kinds import PATTERN

_QUERIES: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_Biases = Mapping[str, tuple[str, ...]]
_ATTENTION: Final[_Biases] = {"attention_bias": (*_QUERIES, "self_attn.o_proj")}
_FEED_FORWARD: Final[_Biases] = {
    "mlp_bias": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
}
_EXPERTS_EVERYWHERE: Final[Mapping[str, tuple[Json, ...]]] = {
    "hidden_act": ("silu",),
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1,),
}
_FIXED_ROPES: Final = (None, "default", "linear", "yarn", "llama3")
_DELTA_NETWORK_SIZES: Final[Mapping[str, Json]] = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
_TOP_K: Final = ("num_experts_per_tok",)
_SCALED_TOP_K: Final = (*_TOP_K, "norm_topk_prob", "routed_scaling_factor")
_RMS_NORM: Final = ("rms_norm_eps", "rope_theta")
_LAYER_NORM: Final = ("layer_norm_eps", "rope_theta")
_MULTIPLIERS: Final = (
    *_RMS_NORM,
    *("embedding_multiplier", "residual_multiplier", "attention_multiplier"),
)
CORRECTION: Final = "e_score_correction_bias"
"""A router's selection bias (e_score_correction_bias); float32 whatever the weights' dtype."""
EXPERT_BIAS: Final = "expert_bias"
"""LFM2's name of it."""
BIAS_MODULE: Final = "moe_statics"
"""ERNIE's, whose files have it as a matrix of one row."""


LANGUAGE_PART: Final = "language_model"
"""transformers' name of the language model within most multimodal models."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """MoE blocks of a family; the defaults are Qwen3's.

    Attributes:
        block: the name of a feed-forward block in files; empty where router and experts belong to
            the
            layer itself.
        matrices: of an expert, by their names in files: gate, up and down of a SwiGLU, or two of
            `down(relu(up x)²)`.
        inner: key of an expert's intermediate width.
        shared: the shared expert's name in a block, if there is one.
        shared_inner: keys whose product is the shared expert's intermediate width.
        may_share_none: whether the last of them may be 0, of models without a shared expert.
        shared_gate: the name of the layer that gates the shared expert, if there is one.
        dense_first: key of the number of first layers that are dense, of width `intermediate_size`.
        router: the router's name in a block.
        router_weight: the name in it of its matrix.
        is_stacked: whether files stack all experts in `gate_up_proj` (e, h, 2 i) and `down_proj`
            (e, i, h).
        is_out_first: whether those are (e, 2 i, h) and (e, h, i), as in transformers.
        is_clamped: whether routers and experts have biases, and experts compute
            `(up + 1) * gate * sigmoid(1.702 gate)` with gate at most 7 and up within -7 and 7,
            interleaved in a stack (gpt-oss: arXiv:2508.10925, section 2.3).
        scoring: function from router logits to scores.
        topk_before_softmax: whether routers apply the softmax to top-k logits only, and return the
            experts before weights and logits.
        selection_bias: the name in a block of the bias that is added to scores for top-k only
            and gets no gradient, if there is one (DeepSeek-V3: arXiv:2412.19437, section 2.1.2).
        scale: the router's attribute that holds the factor of the weights of chosen experts.
        weight_epsilon: epsilon of the sum by which routers normalize these weights.
        latent: key of the width that the input of experts is projected to, and their output from
            (Nemotron 3 Super); empty, or absent in config.json: none.
        enabled_by: key that says whether layers have experts; empty: they do.
        norms: norms that only layers with experts have.
        has_scales: whether routers normalize and scale their input, and each expert has an output
            scale (Gemma 4).
        overridable: as a family's.
    """

    block: str = "mlp"
    matrices: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    inner: str = "moe_intermediate_size"
    shared: str = ""
    shared_inner: tuple[str, ...] = ()
    may_share_none: bool = False
    shared_gate: str = ""
    dense_first: str = ""
    router: str = "gate"
    router_weight: str = "weight"
    is_stacked: bool = False
    is_out_first: bool = False
    is_clamped: bool = False
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    topk_before_softmax: bool = False
    selection_bias: str = ""
    scale: str = "routed_scaling_factor"
    weight_epsilon: float = 1e-20
    latent: str = ""
    enabled_by: str = ""
    norms: tuple[str, ...] = ()
    has_scales: bool = False
    overridable: tuple[str, ...] = ("num_experts_per_tok", "norm_topk_prob")

    @property
    def is_transposed(self) -> bool:
        """Whether files store expert stacks (in, out)."""
        return self.is_stacked and not self.is_out_first

    def within(self, name: str) -> str:
        """Return the name in a layer of something named in a block."""
        return f"{self.block}.{name}" if self.block else name


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Recurrent layers: a state of fixed size in place of a KV cache.

    Attributes:
        net: the name of such a mixer in a decoder layer.
        sizes: keys of config.json: heads of queries and keys, heads of values, widths of a key and
            of a value, convolution taps; short convolutions have the last one only.
        rule: the recurrence: gated delta network (arXiv:2412.06464), Mamba-2 (arXiv:2405.21060), or
            short convolution, whose state is its last inputs (LFM2: arXiv:2511.23404).
    """

    net: str
    sizes: tuple[str, ...]
    rule: Literal["delta", "mamba", "convolution"] = "delta"


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Dense feed-forward blocks of a family.

    Attributes:
        inner: key of the intermediate width.
        into: its up-projections by their names in a layer, with the multiples of that width.
        out: its down-projection.
        is_beside: whether MoE layers have one beside their experts.
    """

    inner: str
    into: Mapping[str, int]
    out: str
    is_beside: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """Differences of a `model_type` from Llama; the defaults of the fields are Llama's.

    Attributes:
        models: such models, for people.
        defaults: transformers' defaults for keys that config.json does not have.
        only: the supported values of keys; an absent key means the first.
        has_windows: whether layers may have a sliding window, in transformers and in vLLM.
        alternates_windows: whether every second layer has one, from the first on, as in vLLM.
        ropes: the supported RoPE types.
        has_ropes_by_layer: whether each layer type has RoPE settings of its own.
        biases: linear layers of a block that have biases where a key of config.json is true.
        always_biased: those that always have one.
        fused: fused linear layers: qkv, gate_up, and the two input projections of a gated delta
            network.
        norms: of a block, pre-norms.
        post_norms: of a block, post-norms.
        centred_norms: whether norms multiply by 1 + weight.
        has_layer_norms: whether they are LayerNorms (arXiv:1607.06450), without a bias.
        has_norm_biases: whether such norms, the final one too, have a bias.
        has_norm_weights: whether norms, the final one too, have a weight.
        has_head_bias: whether the output layer has one.
        qk_norm: QK-norm: over each head, over all heads, or none.
        qk_norm_names: the names of the QK-norm layers.
        qk_norm_key: key that switches QK-norm on; empty: always on.
        has_mla: whether attention is MLA (DeepSeek-V2: arXiv:2405.04434, section 2.1).
        has_sinks: whether each head has a learnt attention sink.
        attention: the name of attention in a layer.
        attention_out: the name in it of the output projection.
        attention_in: the name in it of the fused qkv projection, of models with such.
        counts: attributes of transformers' attention module that hold numbers of heads.
        drops_attention_kwargs: whether a layer's code drops the keyword arguments of the pass.
        has_one_block: whether a layer is one block: attention, recurrent, dense or MoE
            feed-forward.
        has_attention_gates: whether attention outputs are gated; q_proj projects the gates too
            (arXiv:2505.06708).
        attention_gate: the name in attention of the layer that projects them by itself, if it does.
        recurrence: of hybrids, their recurrent layers.
        feed_forward: of models whose dense blocks are not Llama's.
        trained_scalars: trained scalars of a layer, each a tensor of one element.
        frozen_scalars: scalars of a layer that files hold and nobody trains.
        zero_dim_scalars: those of them that are 0-dimensional in files.
        has_per_layer_sizes: whether layers have different sizes; see the module of
            `read_per_layer_sizes`.
        keys: usual keys of other models, and those of config.json for the same.
        dropouts: keys of dropouts that are off, whatever config.json says, except by the job.
        positions: the name of a learned position embedding, and its offset in rows.
        is_transposed: whether files store matrices (in, out), as transformers' Conv1D.
        inner: the module that has the layers, where it is nested in the base model.
        whole_modules: transformers' names of modules of a whole model, and the common ones.
        modules: the same of modules around the layers.
        file_names: parts of weight names in files, and their replacements here, where transformers
            names the modules otherwise.
        mixture: of MoE models.
        sees_pictures: whether a folder is a multimodal model, of which only the language model is
            trained by default; see `config_files` and `vision_language`.
        part: of those, transformers' name of the language model within the whole; empty where the
            whole is one, with towers beside its decoder.
        told_vllm: config values that vLLM needs and transformers assumes.
        logit_divisor: key of the divisor of logits, if any.
        logit_multiplier: key of the multiplier of logits, if any.
        logit_cap: key of the logit softcap, if any.
        overridable: keys of config.json that a job may override, beside those of dropouts, windows
            and logits: trainer and engines compute alike with every value.
    """

    models: str
    defaults: Mapping[str, Json] = field(default_factory=dict)
    only: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    has_windows: bool = False
    alternates_windows: bool = False
    ropes: tuple[str | None, ...] = _FIXED_ROPES
    has_ropes_by_layer: bool = False
    biases: _Biases = field(default_factory=lambda: _ATTENTION)
    always_biased: tuple[str, ...] = ()
    fused: tuple[Literal["qkv_proj", "gate_up_proj", "in_proj_qkvz"], ...] = ()
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    post_norms: tuple[str, ...] = ()
    centred_norms: bool = False
    has_layer_norms: bool = False
    has_norm_biases: bool = False
    has_norm_weights: bool = True
    has_head_bias: bool = False
    qk_norm: Literal["none", "each head", "all heads"] = "none"
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    qk_norm_key: str = ""
    has_mla: bool = False
    has_sinks: bool = False
    attention: str = "self_attn"
    attention_out: str = "o_proj"
    attention_in: str = "qkv_proj"
    counts: tuple[str, ...] = ()
    drops_attention_kwargs: bool = False
    has_one_block: bool = False
    has_attention_gates: bool = False
    attention_gate: str = ""
    recurrence: Recurrence | None = None
    feed_forward: FeedForward | None = None
    trained_scalars: tuple[str, ...] = ()
    frozen_scalars: tuple[str, ...] = ()
    zero_dim_scalars: tuple[str, ...] = ()
    has_per_layer_sizes: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    dropouts: tuple[str, ...] = ()
    positions: tuple[str, int] | None = None
    is_transposed: bool = False
    inner: str = ""
    whole_modules: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    file_names: Mapping[str, str] = field(default_factory=dict)
    mixture: Mixture | None = None
    sees_pictures: bool = False
    part: str = LANGUAGE_PART
    told_vllm: Mapping[str, Json] = field(default_factory=dict)
    logit_divisor: str = ""
    logit_multiplier: str = ""
    logit_cap: str = ""
    overridable: tuple[str, ...] = _RMS_NORM

    @property
    def plain_out(self) -> str:
        """The down-projection of a dense feed-forward block, by its name in a layer."""
        return self.feed_forward.out if self.feed_forward else "mlp.down_proj"


@dataclass(frozen=True, slots=True)
class Whole:
    """A multimodal model of which the language model is a part.

    Attributes:
        models: such models, for people.
        text: model type of the language model if config.json does not say it.
        part: transformers' name of the language model within the whole.
    """

    models: str
    text: str
    part: str = LANGUAGE_PART


_DELTA_NETWORKS: Final = Recurrence(
    "linear_attn",
    (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ),
)
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
    only={"conv_bias": (False,)},
    biases={},
    norms=("operator_norm", "ffn_norm"),
    qk_norm="each head",
    qk_norm_names=("q_layernorm", "k_layernorm"),
    attention_out="out_proj",
    recurrence=Recurrence("conv", ("conv_L_cache",), "convolution"),
    feed_forward=FeedForward(
        "intermediate_size", {"feed_forward.w1": 1, "feed_forward.w3": 1}, "feed_forward.w2"
    ),
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
    qk_norm="each head",
    sees_pictures=True,
)
_OLMO2: Final = Family(
    "OLMo 2",
    norms=(),
    post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    qk_norm="all heads",
)
_GEMMA: Final = Family(
    "Gemma",
    defaults={"head_dim": 256, "num_key_value_heads": 16, "tie_word_embeddings": True},
    only={"use_bidirectional_attention": (None, False)},
    centred_norms=True,
)
_GEMMA2: Final = replace(
    _GEMMA,
    models="Gemma 2",
    defaults={**_GEMMA.defaults, "num_key_value_heads": 4},
    has_windows=True,
    norms=("input_layernorm", "pre_feedforward_layernorm"),
    post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    logit_cap="final_logit_softcapping",
    overridable=(*_RMS_NORM, "query_pre_attn_scalar", "attn_logit_softcapping"),
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
    only={"use_bidirectional_attention": (None, "vision")},
    has_windows=True,
    ropes=(None, "default", "proportional"),
    has_ropes_by_layer=True,
    norms=_GEMMA2.norms,
    post_norms=_GEMMA2.post_norms,
    qk_norm="each head",
    feed_forward=FeedForward(
        "intermediate_size", {"mlp.gate_proj": 1, "mlp.up_proj": 1}, "mlp.down_proj", is_beside=True
    ),
    frozen_scalars=("layer_scalar",),
    has_per_layer_sizes=True,
    mixture=Mixture(
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
    logit_cap=_GEMMA2.logit_cap,
    overridable=("rms_norm_eps",),
)
_WITH_SHARED: Final = Mixture(
    shared="shared_expert",
    shared_inner=("shared_expert_intermediate_size",),
    shared_gate="shared_expert_gate",
)
_CORRECTED: Final = Mixture(
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
    only={
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "topk_method": (None, "noaux_tc"),
        "scoring_func": (None, "sigmoid"),
        "rope_interleave": (True,),
    },
    biases={},
    has_mla=True,
    told_vllm={"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    mixture=_CORRECTED,
    overridable=("rope_theta",),  # the epsilon of latents is a constant in transformers
)
_QWEN2_VL: Final = Family(
    "Qwen2-VL",
    defaults={"num_key_value_heads": 8},
    ropes=(None, "default", "mrope"),
    biases={},
    always_biased=_QUERIES,
    sees_pictures=True,
)
_GLM4: Final = Family(
    "GLM-4-0414, GLM-Z1",
    defaults={"head_dim": 128, "num_key_value_heads": 2, "attention_bias": True},
    biases={"attention_bias": _QUERIES},
    fused=("gate_up_proj",),
    post_norms=("post_self_attn_layernorm", "post_mlp_layernorm"),
)
_GLM4_MOE: Final = Family(
    "GLM-4.5, 4.6",
    defaults={"num_key_value_heads": 8, "first_k_dense_replace": 1, "use_qk_norm": False},
    only={"hidden_act": ("silu",)},
    biases={"attention_bias": _QUERIES},
    qk_norm="each head",
    qk_norm_key="use_qk_norm",
    mixture=_CORRECTED,
)
_QWEN3_5: Final = Family(
    "Qwen3.5 (text)",
    defaults={"head_dim": 256, "num_key_value_heads": 4, **_DELTA_NETWORK_SIZES},
    only={
        "hidden_act": ("silu",),
        "attn_output_gate": (None, True),
        "output_gate_type": (None, "silu", "swish"),
    },
    centred_norms=True,
    qk_norm="each head",
    has_attention_gates=True,
    recurrence=_DELTA_NETWORKS,
)
_QWEN3_5_SEEING: Final = replace(
    _QWEN3_5,
    models="Qwen3.5",
    ropes=(None, "default", "mrope"),
    sees_pictures=True,
)
_QWEN3_5_MOE: Final = replace(
    _QWEN3_5,
    models="Qwen3.5 MoE (text)",
    defaults={**_QWEN3_5.defaults, "num_key_value_heads": 2},
    only={
        **_QWEN3_5.only,
        **_EXPERTS_EVERYWHERE,
        "decoder_sparse_step": (1, None),
        "norm_topk_prob": (True, None),
    },
    mixture=replace(_WITH_SHARED, is_stacked=True, is_out_first=True, overridable=_TOP_K),
)
_GRANITE_SHARED: Final = FeedForward(
    "shared_intermediate_size",
    {"shared_mlp.input_linear": 2},
    "shared_mlp.output_linear",
    is_beside=True,
)
_GRANITE_MOE: Final = Family(
    "Granite 3 MoE, PowerMoE",
    defaults={"num_local_experts": 8},
    only={"hidden_act": ("silu",)},
    file_names={
        ".block_sparse_moe.input_linear.weight": ".block_sparse_moe.experts.gate_up_proj",
        ".block_sparse_moe.output_linear.weight": ".block_sparse_moe.experts.down_proj",
        ".block_sparse_moe.router.layer.": ".block_sparse_moe.router.",
    },
    mixture=Mixture(
        "block_sparse_moe",
        inner="intermediate_size",
        router="router",
        is_stacked=True,
        is_out_first=True,
        topk_before_softmax=True,
        overridable=_TOP_K,
    ),
    logit_divisor="logits_scaling",
    overridable=_MULTIPLIERS,
)
_COHERE: Final = Family(
    "Command R, Aya 23, Aya Expanse",
    defaults={"tie_word_embeddings": True},
    only={"hidden_act": ("silu",), "attention_bias": (False,), "use_qk_norm": (False, None)},
    biases={},
    norms=("input_layernorm",),
    has_layer_norms=True,
    logit_multiplier="logit_scale",
    overridable=_LAYER_NORM,
)
_QWEN2: Final = Family(
    "Qwen2, Qwen2.5",
    defaults={
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    ropes=(*_FIXED_ROPES, "dynamic"),
    biases={},
    always_biased=_QUERIES,
)
_HUNYUAN: Final = Family(
    "Hunyuan of 0.5B, 1.8B, 4B and 7B",
    only={"use_qk_norm": (None, True), "use_cla": (None, False)},
    ropes=(*_FIXED_ROPES, "dynamic"),
    qk_norm="each head",
    qk_norm_names=("query_layernorm", "key_layernorm"),
)
_UNGATED: Final = FeedForward("intermediate_size", {"mlp.up_proj": 1}, "mlp.down_proj")
_UNGATED_BIASES: Final[_Biases] = {**_ATTENTION, "mlp_bias": ("mlp.up_proj", "mlp.down_proj")}
FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("Llama, SmolLM2", biases={**_ATTENTION, **_FEED_FORWARD}),
    "cwm": Family(
        "CWM",
        defaults={"head_dim": 128, "num_key_value_heads": 8},
        has_windows=True,
        biases=_FEED_FORWARD,
    ),
    "arcee": Family(
        "AFM-4.5B",
        only={"hidden_act": ("relu2",)},
        biases=_UNGATED_BIASES,
        feed_forward=_UNGATED,
    ),
    "afmoe": Family(
        "Trinity Nano, Mini and Large",
        defaults={"head_dim": 128, "num_dense_layers": 1},
        only={
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "score_func": (None, "sigmoid"),
            "route_norm": (None, True),
            "n_group": (None, 1),
        },
        has_windows=True,
        biases={},
        norms=("input_layernorm", "pre_mlp_layernorm"),
        post_norms=("post_attention_layernorm", "post_mlp_layernorm"),
        qk_norm="each head",
        attention_gate="gate_proj",
        told_vllm={
            **{"score_func": "sigmoid", "route_norm": True},
            **{"n_group": 1, "topk_group": 1},
        },
        mixture=Mixture(
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
        only={"hidden_act": ("relu2",)},
        biases=_UNGATED_BIASES,
        has_layer_norms=True,
        has_norm_biases=True,
        feed_forward=_UNGATED,
        overridable=_LAYER_NORM,
    ),
    "nemotron": Family(
        "Minitron, Nemotron-Mini, Nemotron-4",
        only={"hidden_act": ("relu2",)},
        biases=_UNGATED_BIASES,
        centred_norms=True,
        has_layer_norms=True,
        has_norm_biases=True,
        drops_attention_kwargs=True,
        feed_forward=_UNGATED,
        overridable=("norm_eps", "rope_theta"),
    ),
    "qwen2": _QWEN2,
    "mimo": replace(
        _QWEN2,
        models="MiMo-7B",
        told_vllm={"architectures": ["Qwen2ForCausalLM"]},
    ),
    "qwen3": Family(
        "Qwen3",
        defaults={"head_dim": 128, "num_key_value_heads": 32},
        qk_norm="each head",
    ),
    "qwen3_moe": Family(
        "Qwen3 MoE",
        defaults={"num_key_value_heads": 4},
        only=_EXPERTS_EVERYWHERE,
        qk_norm="each head",
        mixture=Mixture(),
    ),
    "mellum": Family(
        "Mellum 2",
        defaults={"head_dim": 128, "num_key_value_heads": 4},
        only={"hidden_act": ("silu",)},
        has_windows=True,
        has_ropes_by_layer=True,
        qk_norm="each head",
        mixture=Mixture(),
        overridable=("rms_norm_eps",),
    ),
    "qwen2_moe": Family(
        "Qwen1.5-MoE, Qwen2 MoE",
        defaults={"num_key_value_heads": 16},
        only={**_EXPERTS_EVERYWHERE, "qkv_bias": (True,)},
        biases={},
        always_biased=_QUERIES,
        mixture=_WITH_SHARED,
    ),
    "mixtral": Family(
        "Mixtral",
        defaults={"num_key_value_heads": 8},
        only={"hidden_act": ("silu",), "sliding_window": (None,), "router_jitter_noise": (0.0,)},
        ropes=(None, "default"),
        biases={},
        mixture=Mixture(
            "block_sparse_moe", ("w1", "w3", "w2"), "intermediate_size", overridable=_TOP_K
        ),
    ),
    "olmoe": Family(
        "OLMoE",
        only={
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "clip_qkv": (None,),
            "norm_topk_prob": (False,),
            "rms_norm_eps": (1e-5,),  # which vLLM computes with
        },
        biases={},
        qk_norm="all heads",
        mixture=Mixture(inner="intermediate_size", overridable=_TOP_K),
        overridable=("rope_theta",),
    ),
    "deepseek_v2": replace(
        _DEEPSEEK3,
        models="DeepSeek-V2-Lite",
        defaults={**_DEEPSEEK3.defaults, "first_k_dense_replace": 0},
        only={
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "topk_method": ("greedy",),
            "n_group": (None, 1),
            "scoring_func": (None, "softmax"),
            "norm_topk_prob": (False,),
        },
        told_vllm={
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
        only={**_DEEPSEEK3.only, "first_k_dense_replace": (None, 1)},
        told_vllm={"first_k_dense_replace": 1},
    ),
    "youtu": replace(
        _DEEPSEEK3,
        models="Youtu-LLM",
        defaults={**_LATENT, "tie_word_embeddings": True},
        only={"attention_bias": (False,), "rope_interleave": (True,)},
        told_vllm={"architectures": ["TransformersForCausalLM"], "model_type": "deepseek_v3"},
        mixture=None,
        overridable=_RMS_NORM,
    ),
    "glm4_moe": _GLM4_MOE,
    "solar_open": replace(
        _GLM4_MOE,
        models="Solar Open",
        defaults={"head_dim": 128, "num_key_value_heads": 8},
        only={
            "hidden_act": ("silu",),
            "use_qk_norm": (None, False),
            "first_k_dense_replace": (None, 0),
        },
        qk_norm="none",
        qk_norm_key="",
        told_vllm={
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
        only={"hidden_act": ("silu",), "attention_bias": (False,)},
        biases={},
        qk_norm_key="",
        told_vllm={"architectures": ["Glm4MoeForCausalLM"], "use_qk_norm": True},
    ),
    "exaone_moe": Family(
        "K-EXAONE",
        defaults={"num_key_value_heads": 32, "first_k_dense_replace": 1},
        only={"hidden_act": ("silu",), "sliding_windows": (None,)},
        has_windows=True,
        biases={},
        qk_norm="each head",
        file_names={f".mlp.{CORRECTION}": f".mlp.gate.{CORRECTION}"},
        mixture=replace(_CORRECTED, shared_inner=("moe_intermediate_size", "num_shared_experts")),
    ),
    "minimax_m2": Family(
        "MiniMax-M2",
        defaults={"head_dim": 128, "num_key_value_heads": 8},
        only={
            "hidden_act": ("silu",),
            "router_jitter_noise": (0.0,),
            "scoring_func": (None, "sigmoid"),
            "use_routing_bias": (None, True),
            "use_qk_norm": (None, True),
            "qk_norm_type": (None, "per_layer"),
        },
        biases={},
        qk_norm="all heads",
        told_vllm={"use_routing_bias": True, "scoring_func": "sigmoid"},
        mixture=Mixture(
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
        only={
            "hidden_act": ("silu",),
            "attention_bias": (True,),
            "swiglu_alpha": (1.702,),
            "swiglu_limit": (7.0,),
            "rms_norm_eps": (1e-5,),
        },
        has_windows=True,
        alternates_windows=True,
        ropes=("yarn",),
        has_sinks=True,
        mixture=Mixture(
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
        only={"layer_types": (None,)},
        has_windows=True,
        biases={},
    ),
    "ministral": Family(
        "Ministral 8B of 2024",
        defaults={"num_key_value_heads": 8},
        has_windows=True,
        biases={},
        told_vllm={"architectures": ["TransformersForCausalLM"]},
    ),
    "ministral3": Family(
        "Ministral 3 (text)",
        defaults={"num_key_value_heads": 8, "head_dim": 128},
        only={"sliding_window": (None,), "layer_types": (None,)},
        ropes=("yarn",),
        biases={},
    ),
    "phi3": Family(
        "Phi-3, Phi-3.5, Phi-4",
        only={"resid_pdrop": (0.0,), "layer_types": (None,)},
        has_windows=True,
        ropes=(None, "default", "longrope"),
        biases={},
        fused=("qkv_proj", "gate_up_proj"),
        counts=("config.num_attention_heads", "num_key_value_heads"),
    ),
    "smollm3": Family(
        "SmolLM3",
        defaults={"num_key_value_heads": 4, "tie_word_embeddings": True},
        biases={**_ATTENTION, **_FEED_FORWARD},
    ),
    "olmo": Family(
        "OLMo",
        biases=_ATTENTION,
        has_layer_norms=True,
        has_norm_weights=False,
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
        only={"hidden_act": ("silu",)},
        mixture=Mixture(inner="intermediate_size", overridable=_TOP_K),
    ),
    "granite": Family(
        "Granite 3",
        biases={**_ATTENTION, **_FEED_FORWARD},
        logit_divisor="logits_scaling",
        overridable=_MULTIPLIERS,
    ),
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": replace(
        _GRANITE_MOE,
        models="Granite 3 MoE with a shared expert",
        defaults={"num_local_experts": 8, "shared_intermediate_size": 0},
        feed_forward=_GRANITE_SHARED,
    ),
    "granitemoehybrid": Family(
        "Granite 4",
        defaults={
            "num_local_experts": 8,
            "shared_intermediate_size": 1024,
            "mamba_n_groups": 1,
            "mamba_n_heads": 128,
            "mamba_d_state": 256,
            "mamba_d_head": "auto",
            "mamba_expand": 2,
            "mamba_d_conv": 4,
        },
        only={
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "mamba_n_groups": (1,),  # vLLM uses one norm for each
            "mamba_conv_bias": (True,),
            "mamba_proj_bias": (False,),
            "time_step_limit": _NO_STEP_LIMITS,
            "normalization_function": (None, "rmsnorm"),
        },
        biases={},
        recurrence=Recurrence(
            "mamba",
            (
                *("mamba_n_groups", "mamba_n_heads"),
                *("mamba_d_state", "mamba_d_head", "mamba_d_conv"),
            ),
            "mamba",
        ),
        feed_forward=_GRANITE_SHARED,
        file_names=_GRANITE_MOE.file_names,
        mixture=_GRANITE_MOE.mixture,
        logit_divisor="logits_scaling",
        overridable=_MULTIPLIERS,
    ),
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
        only={
            "mlp_hidden_act": ("relu2",),
            "mamba_hidden_act": ("silu",),
            "attention_bias": (False,),
            "mlp_bias": (False,),
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
        biases={},
        norms=("norm",),
        attention="mixer",
        has_one_block=True,
        recurrence=Recurrence(
            "mixer",
            (
                *("n_groups", "mamba_num_heads"),
                *("ssm_state_size", "mamba_head_dim", "conv_kernel"),
            ),
            "mamba",
        ),
        feed_forward=FeedForward("intermediate_size", {"mixer.up_proj": 1}, "mixer.down_proj"),
        modules={"embeddings": "embed_tokens", "norm_f": "norm"},
        file_names={
            "backbone.embeddings.": "model.embed_tokens.",
            "backbone.norm_f.": "model.norm.",
            "backbone.": "model.",
        },
        mixture=Mixture(
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
        overridable=("rms_norm_eps", "query_pre_attn_scalar"),
    ),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": replace(
        _GEMMA4,
        models="Gemma 4 12B (text)",
        defaults={**_GEMMA4.defaults, "hidden_size_per_layer_input": 0},
        only={"use_bidirectional_attention": ("vision", None)},
        mixture=None,
        told_vllm={"architectures": ["Gemma4ForCausalLM"]},
    ),
    "vaultgemma": replace(_GEMMA2, models="VaultGemma", only={}, post_norms=()),
    "glm": replace(_GLM4, models="GLM-4-9B (`-hf`), GLM-Edge", post_norms=()),
    "glm4": _GLM4,
    "seed_oss": Family(
        "Seed-OSS",
        defaults={"head_dim": 128, "num_key_value_heads": 8, "attention_bias": True},
        biases={
            "attention_bias": _QUERIES,
            "attention_out_bias": ("self_attn.o_proj",),
            **_FEED_FORWARD,
        },
        overridable=(*_RMS_NORM, "residual_dropout"),
    ),
    "exaone4": Family(
        "EXAONE 4",
        defaults={"num_key_value_heads": 32},
        has_windows=True,
        biases={},
        norms=(),
        post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm="each head",
    ),
    "apertus": Family(
        "Apertus",
        only={"hidden_act": ("xielu",)},
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
        only={"conv_bias": (False,), "use_expert_bias": (True,)},
        mixture=Mixture(
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
        only={"use_bias": (False,)},
        biases={},
    ),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": replace(
        _HUNYUAN,
        models="Hunyuan-A13B",
        only={**_HUNYUAN.only, "hidden_act": ("silu",)},
        biases=_ATTENTION,
        mixture=Mixture(
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
        only={"hidden_act": ("silu",), "attention_bias": (False,)},
        has_windows=True,
    ),
    "hyperclovax": Family(
        "HyperCLOVA X SEED Think",
        only={"use_post_norm": (True,)},
        biases={**_ATTENTION, **_FEED_FORWARD},
        post_norms=("post_norm1", "post_norm2"),
        logit_multiplier="logits_scaling",
        overridable=_MULTIPLIERS,
    ),
    "ernie4_5_moe": Family(
        "ERNIE 4.5 MoE",
        defaults={
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "moe_layer_start_index": 1,
        },
        only={"hidden_act": ("silu",), "use_bias": (False,), "moe_layer_interval": (1,)},
        biases={},
        mixture=Mixture(
            shared="shared_experts",
            shared_inner=("moe_intermediate_size", "moe_num_shared_experts"),
            may_share_none=True,
            dense_first="moe_layer_start_index",
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
        has_layer_norms=True,
        has_norm_biases=True,
        attention="attention",
        attention_in="query_key_value",
        attention_out="dense",
        feed_forward=FeedForward(
            "intermediate_size", {"mlp.dense_h_to_4h": 1}, "mlp.dense_4h_to_h"
        ),
        keys={"num_key_value_heads": "num_attention_heads"},
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
        only={
            "add_cross_attention": (False,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
            "reorder_and_upcast_attn": (False,),
        },
        biases={},
        always_biased=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        fused=("qkv_proj",),
        norms=("ln_1", "ln_2"),
        has_layer_norms=True,
        has_norm_biases=True,
        attention="attn",
        attention_in="c_attn",
        attention_out="c_proj",
        feed_forward=FeedForward("intermediate_size", {"mlp.c_fc": 1}, "mlp.c_proj"),
        keys={
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
        counts=("split_size",),
        overridable=("layer_norm_epsilon",),
    ),
    "opt": Family(
        "OPT, except 350M",
        defaults={
            **{"max_position_embeddings": 2048, "ffn_dim": 3072, "tie_word_embeddings": True},
            "enable_bias": True,
        },
        only={
            "do_layer_norm_before": (True,),
            "_remove_final_layer_norm": (False,),
            "layer_norm_elementwise_affine": (True,),
            "layerdrop": (0.0,),
        },
        biases={"enable_bias": (*_QUERIES, "self_attn.out_proj", "fc1", "fc2")},
        norms=("self_attn_layer_norm", "final_layer_norm"),
        has_layer_norms=True,
        has_norm_biases=True,
        attention_out="out_proj",
        feed_forward=FeedForward("intermediate_size", {"fc1": 1}, "fc2"),
        keys={"num_key_value_heads": "num_attention_heads", "intermediate_size": "ffn_dim"},
        dropouts=("attention_dropout", "dropout"),
        positions=("embed_positions", 2),
        inner="decoder",
        modules={"final_layer_norm": "norm"},
        file_names={
            "model.decoder.layers.": "model.layers.",
            "model.decoder.embed_tokens.": "model.embed_tokens.",
            "model.decoder.embed_positions.": "model.embed_positions.",
            "model.decoder.final_layer_norm.": "model.norm.",
        },
        counts=("num_heads",),
        overridable=(),
    ),
    "phi": Family(
        "Phi-1, Phi-1.5, Phi-2",
        only={"qk_layernorm": (False,)},
        biases={},
        always_biased=(*_QUERIES, "self_attn.dense", "mlp.fc1", "mlp.fc2"),
        norms=("input_layernorm",),
        has_layer_norms=True,
        has_norm_biases=True,
        has_head_bias=True,
        attention_out="dense",
        feed_forward=FeedForward("intermediate_size", {"mlp.fc1": 1}, "mlp.fc2"),
        dropouts=("attention_dropout", "resid_pdrop", "embd_pdrop"),
        modules={"final_layernorm": "norm"},
        file_names={"model.final_layernorm.": "model.norm."},
        overridable=_LAYER_NORM,
    ),
    "starcoder2": Family(
        "StarCoder2",
        defaults={"num_key_value_heads": 2, "use_bias": True, "tie_word_embeddings": True},
        has_windows=True,
        biases={
            "use_bias": (*_QUERIES, "self_attn.o_proj", "mlp.c_fc", "mlp.c_proj"),
        },
        has_layer_norms=True,
        has_norm_biases=True,
        feed_forward=FeedForward("intermediate_size", {"mlp.c_fc": 1}, "mlp.c_proj"),
        dropouts=("attention_dropout", "residual_dropout", "embedding_dropout"),
        overridable=("norm_epsilon", "rope_theta"),
    ),
    "stablelm": Family(
        "StableLM 3B, StableLM 2, StableLM Zephyr",
        defaults={"num_key_value_heads": 32},
        only={"qk_layernorm": (False,), "use_parallel_residual": (False,)},
        biases={"use_qkv_bias": _QUERIES},
        has_layer_norms=True,
        has_norm_biases=True,
        drops_attention_kwargs=True,
        dropouts=("attention_dropout", "hidden_dropout"),
        counts=("num_heads", "num_key_value_heads"),
        overridable=_LAYER_NORM,
    ),
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": replace(_QWEN2_VL, models="Qwen2.5-VL"),
    "qwen2_5_omni_thinker": replace(
        _QWEN2_VL, models="Qwen2.5-Omni", defaults={"num_key_value_heads": 4}, part=""
    ),
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": replace(
        _QWEN3_VL,
        models="Qwen3-VL MoE",
        defaults={"num_key_value_heads": 16},
        only=_EXPERTS_EVERYWHERE,
        mixture=Mixture(is_stacked=True, overridable=_TOP_K),
    ),
    "qwen3_omni_moe_thinker": replace(
        _QWEN3_VL,
        models="Qwen3-Omni",
        defaults={"num_key_value_heads": 4},
        only=_EXPERTS_EVERYWHERE,
        mixture=Mixture(),
        part="",
    ),
    "glm4v": replace(
        _GLM4,
        models="GLM-4.1V, GLM-4.6V-Flash",
        defaults={"num_key_value_heads": 2},
        only={"attention_bias": (True,)},
        ropes=(None, "default"),
        biases={},
        always_biased=_QUERIES,
        sees_pictures=True,
    ),
    "glm4v_moe": replace(
        _GLM4_MOE,
        models="GLM-4.5V, GLM-4.6V",
        defaults={"num_key_value_heads": 8, "first_k_dense_replace": 1, "attention_bias": True},
        only={**_GLM4_MOE.only, "use_qk_norm": (False,)},
        ropes=(None, "default"),
        qk_norm="none",
        qk_norm_key="",
        sees_pictures=True,
    ),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": _QWEN3_5_SEEING,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_moe": replace(
        _QWEN3_5_MOE,
        models="Qwen3.5 MoE",
        ropes=_QWEN3_5_SEEING.ropes,
        sees_pictures=True,
    ),
    "qwen3_next": replace(
        _QWEN3_5,
        models="Qwen3-Next",
        defaults={**_QWEN3_5.defaults, "num_key_value_heads": 2},
        only={**_QWEN3_5.only, **_EXPERTS_EVERYWHERE},
        fused=("in_proj_qkvz",),
        mixture=_WITH_SHARED,
    ),
}
"""By `model_type` of config.json."""

WHOLES: Final[Mapping[str, Whole]] = {
    "idefics3": Whole("SmolVLM of 256M, 500M and 2.2B, Idefics3", "llama", "text_model"),
    "smolvlm": Whole("SmolVLM2 of 256M, 500M and 2.2B", "llama", "text_model"),
    "gemma3": Whole("Gemma 3 of 4B, 12B and 27B", "gemma3_text"),
    "gemma4": Whole("Gemma 4 E2B, E4B, 26B-A4B and 31B", "gemma4_text"),
    "gemma4_unified": Whole("Gemma 4 12B", "gemma4_unified_text"),
    "mistral3": Whole("Mistral Small 3.1 and on, Ministral 3", "mistral"),
    "qwen2_audio": Whole("Qwen2-Audio", "qwen2"),
    "internvl": Whole("InternVL 3 and 3.5 as transformers has them (`-hf`, `-HF`)", "qwen2"),
}
"""Multimodal models whose language model, a section of config.json, is of one of `FAMILIES`.

By the `model_type` of the whole. `data.picture_forms` says which of them take images.
"""
