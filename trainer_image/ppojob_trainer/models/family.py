"""What a row of the table of model families says: how a family differs from Llama."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ppojob_trainer.json_value import Json

QUERIES: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
Biases = Mapping[str, tuple[str, ...]]
"""Layers with a bias, by the key of config.json that says so."""
ATTENTION_BIASES: Final[Biases] = {"attention_bias": (*QUERIES, "self_attn.o_proj")}
FIXED_ROPES: Final = (None, "default", "linear", "yarn", "llama3")
RMS_NORM: Final = ("rms_norm_eps", "rope_theta")
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
            the layer itself.
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
    ropes: tuple[str | None, ...] = FIXED_ROPES
    has_ropes_by_layer: bool = False
    biases: Biases = field(default_factory=lambda: ATTENTION_BIASES)
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
    overridable: tuple[str, ...] = RMS_NORM

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
