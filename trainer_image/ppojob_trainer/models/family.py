"""Fields of a row in the table of model families: how a family differs from Llama."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ppojob_trainer.json_value import Json

QUERIES: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
Biases = Mapping[str, tuple[str, ...]]
"""Layers with a bias, by the key of config.json that switches it on."""
ATTENTION_BIASES: Final[Biases] = {"attention_bias": (*QUERIES, "self_attn.o_proj")}
FIXED_ROPES: Final = (None, "default", "linear", "yarn", "llama3")
RMS_NORM: Final = ("rms_norm_eps", "rope_theta")
CORRECTION: Final = "e_score_correction_bias"
"""A router's selection bias; float32 whatever the dtype of the weights."""
EXPERT_BIAS: Final = "expert_bias"
"""LFM2's name of it."""
BIAS_MODULE: Final = "moe_statics"
"""ERNIE's module of it, in whose files it is a matrix of one row."""

LANGUAGE_MODULE: Final = "language_model"
"""transformers' name of the language model within most multimodal models."""


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """MoE blocks of a family; the defaults are Qwen3's."""

    # Name of the feed-forward block in files; empty if router and experts belong to the layer.
    block: str = "mlp"
    # Of an expert: gate, up and down of a SwiGLU, or two of `down(relu(up x)²)`.
    matrices: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    inner: str = "moe_intermediate_size"  # key of an expert's intermediate width
    shared: str = ""  # the shared expert's name in the block, if there is one
    shared_inner: tuple[str, ...] = ()  # keys whose product is its intermediate width
    # Whether the last of them, or without any the dense block's, may be 0: no shared expert.
    may_share_none: bool = False
    shared_gate: str = ""  # the layer that gates the shared expert, if there is one
    dense_first: str = ""  # key of the number of first layers, dense, of `intermediate_size`
    interval: str = ""  # key of n: of n layers the last has experts, the others are dense
    router: str = "gate"
    router_weight: str = "weight"  # the router's matrix, by its name in it
    # Whether files stack the experts: `gate_up_proj` (e, h, 2 i) and `down_proj` (e, i, h),
    is_stacked: bool = False
    is_out_first: bool = False  # or (e, 2 i, h) and (e, h, i), as in transformers.
    is_split_in_vllm: bool = False  # whether vLLM's class reads no such stacks
    # Whether routers and experts have biases, and experts compute
    # `(up + 1) * gate * sigmoid(1.702 gate)` with gate at most 7 and up within -7 and 7,
    # interleaved in a stack (gpt-oss: arXiv:2508.10925, section 2.3).
    is_clamped: bool = False
    # From router logits to scores; SparseMixer is of Phi-3.5-MoE (arXiv:2409.12136).
    scoring: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    scoring_key: str = ""  # key of config.json that says which, if it is not always the same
    topk_before_softmax: bool = False  # whether the softmax is that of top-k logits only
    returns_experts_first: bool = False  # whether routers return experts, weights and logits
    # Bias added to scores for top-k only, without gradient (DeepSeek-V3: arXiv:2412.19437, 2.1.2).
    selection_bias: str = ""
    scale: str = "routed_scaling_factor"  # router attribute: factor of the experts' weights
    weight_epsilon: float = 1e-20  # of the sum by which routers normalize these weights
    # Whether the weight of a token's only expert scales its input, not its output (Llama 4).
    weighs_inputs: bool = False
    # Key of the width that experts read and write (Nemotron 3 Super); empty or absent: hidden.
    latent: str = ""
    enabled_by: str = ""  # key that says whether layers have experts; empty: they do
    norms: tuple[str, ...] = ()  # that only layers with experts have
    # Whether routers normalize and scale their input, and experts have an output scale (Gemma 4).
    has_scales: bool = False
    overridable: tuple[str, ...] = ("num_experts_per_tok", "norm_topk_prob")  # as a family's

    @property
    def is_transposed(self) -> bool:
        """Whether files store expert stacks (in, out)."""
        return self.is_stacked and not self.is_out_first

    def within(self, name: str) -> str:
        """Return the name in a layer of something named in a block."""
        return f"{self.block}.{name}" if self.block else name


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Recurrent layers: a state of fixed size in place of a KV cache."""

    mixer: str  # its name in a decoder layer
    # Keys of config.json: heads of queries and keys, heads of values, widths of a key and of a
    # value, convolution taps; short convolutions have the last one only.
    sizes: tuple[str, ...]
    # Gated delta network (arXiv:2412.06464), Mamba-2 (arXiv:2405.21060), or short convolution,
    # whose state is its last inputs (LFM2: arXiv:2511.23404).
    rule: Literal["delta", "mamba", "convolution"] = "delta"
    # Whether such layers also have attention, with the same input (Falcon-H1: arXiv:2507.22448);
    # these have no norm of outputs.
    is_beside_attention: bool = False
    returns_tuples: bool = False  # whether decoder layers do


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Dense feed-forward blocks of a family."""

    into: Mapping[str, int]  # up-projections by name in a layer, and their multiples of the width
    out: str  # down-projection
    inner: str = "intermediate_size"  # key of the intermediate width
    in_moe_layers: bool = False  # whether MoE layers have one in addition to their experts


@dataclass(frozen=True, slots=True)
class Family:
    """Differences of a `model_type` from Llama without biases, by the defaults of the fields."""

    models: str  # names of such models, for people
    # transformers' defaults for keys that config.json does not have.
    defaults: Mapping[str, Json] = field(default_factory=dict)
    # Keys that are made of others where config.json has none, or null.
    computed: Mapping[str, Callable[[Mapping[str, Json]], Json]] = field(default_factory=dict)
    # The supported values of keys; an absent key means the first.
    supported: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    has_windows: bool = False  # whether layers may have a sliding window
    alternates_windows: bool = False  # whether every second layer has one, as in vLLM
    ropes: tuple[str | None, ...] = FIXED_ROPES  # the supported RoPE types
    has_ropes_by_layer: bool = False  # whether each layer type has its own RoPE settings
    # Linear layers that have biases where a key of config.json is true, and those that always do.
    biases: Biases = field(default_factory=dict)
    always_biased: tuple[str, ...] = ()
    # Fused linear layers; the last one is of gated delta networks.
    fused: tuple[Literal["qkv_proj", "gate_up_proj", "in_proj_qkvz"], ...] = ()
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")  # pre-norms
    post_norms: tuple[str, ...] = ()
    # How all norms differ from RMSNorm: LayerNorm (arXiv:1607.06450), multiplied by 1 + weight,
    # with a bias, without a weight.
    norm_type: tuple[Literal["layer", "centred", "biased", "unweighted"], ...] = ()
    has_head_bias: bool = False  # of the output layer
    qk_norm: Literal["none", "each head", "all heads"] = "none"
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    qk_norm_key: str = ""  # key that switches QK-norm on; empty: always on
    has_mla: bool = False  # attention is MLA (DeepSeek-V2: arXiv:2405.04434, section 2.1)
    caches_heads: bool = False  # whether vLLM caches keys and values of MLA, not the latents
    has_sinks: bool = False  # each head has a learned attention sink
    attention: str = "self_attn"  # attention's name in a layer
    attention_out: str = "o_proj"  # the output projection's name in it
    attention_in: str = "qkv_proj"  # the fused qkv projection's name in it
    # Attributes of transformers' attention module that hold numbers of heads.
    head_counts: tuple[str, ...] = ()
    drops_attention_kwargs: bool = False  # a layer's code drops the keyword arguments of the pass
    # Whether a layer is one block: attention, recurrent, dense or MoE feed-forward.
    has_one_block: bool = False
    # Whether attention outputs are gated; q_proj projects the gates too (arXiv:2505.06708).
    has_attention_gates: bool = False
    attention_gate: str = ""  # or a layer in attention projects them: its name
    recurrence: Recurrence | None = None  # of hybrids
    feed_forward: FeedForward | None = None  # of models whose dense blocks are not Llama's
    trained_scalars: tuple[str, ...] = ()  # of a layer, each a tensor of one element
    frozen_scalars: tuple[str, ...] = ()  # in files, never trained
    zero_dim_scalars: tuple[str, ...] = ()  # those of them that are 0-dimensional in files
    has_per_layer_sizes: bool = False  # see `read_per_layer_sizes`
    heads_key: str = ""  # key of the list of query heads of each layer
    # Common keys of config.json, and this family's for the same.
    key_aliases: Mapping[str, str] = field(default_factory=dict)
    dropouts: tuple[str, ...] = ()  # keys of dropouts, off unless the job overrides them
    positions: tuple[str, int] | None = None  # a learned position embedding; its offset in rows
    is_transposed: bool = False  # whether files store matrices (in, out), as transformers' Conv1D
    inner_module: str = ""  # the module that has the layers, where it is nested in the base model
    # transformers' names of modules of the whole model and of the base model, and the common ones.
    whole_modules: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    norms_embeddings: bool = False  # whether the final norm is also applied to embeddings
    # Parts of weight names in files, and their replacements here, where the two differ.
    file_names: Mapping[str, str] = field(default_factory=dict)
    mixture: MixtureOfExperts | None = None  # of MoE models
    # Whether a folder is a multimodal model, of which by default only the language model is
    # trained; see `config_files` and `model_classes`.
    is_multimodal: bool = False
    # transformers' name of the language model in it; empty if towers are added to the model itself.
    language_module: str = LANGUAGE_MODULE
    # Values of config.json that vLLM needs and transformers assumes.
    vllm_overrides: Mapping[str, Json] = field(default_factory=dict)
    logit_divisor: str = ""  # key of the divisor of logits, if any
    logit_multiplier: str = ""
    logit_cap: str = ""  # of the logit softcap
    # Keys of config.json that a job may override, in addition to those of dropouts and windows:
    # trainer and engines compute alike with every value.
    overridable: tuple[str, ...] = RMS_NORM

    @property
    def dense_out(self) -> str:
        """The down-projection of a dense feed-forward block, by its name in a layer."""
        return self.feed_forward.out if self.feed_forward else "mlp.down_proj"


@dataclass(frozen=True, slots=True)
class Multimodal:
    """A multimodal model whose language model is of a family of its own."""

    models: str  # names of such models, for people
    text: str  # model type of the language model if config.json does not say it
    language_module: str = LANGUAGE_MODULE  # transformers' name of the language model in it
    has_causal_module: bool = False  # whether that has the output layer too
