"""Model architectures: sizes from config.json, and the names and shapes of all tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from ppojob_api.problem import ABSENT, Problem, shown
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.policy_loss import Loss
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.adapter_names import magnitude_name, matrix_names
from ppojob_trainer.models.config_files import read_config, with_usual_keys
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.family import Family, MixtureOfExperts
from ppojob_trainer.models.hybrid_layers import (
    ATTENTION,
    DENSE,
    EXPERTS,
    RecurrenceSizes,
    layer_types,
    recurrent_numbers,
    with_common_keys,
)
from ppojob_trainer.models.mixtures import (
    STACKS,
    WIDTHS,
    dense_layers,
    expert_tensors,
    experts_key,
    layers_beside_experts,
    mixture_in,
    required_sizes,
)
from ppojob_trainer.models.per_layer_sizes import (
    Attention,
    PerLayerSizes,
    count_in,
    read_head_counts,
    read_per_layer_sizes,
)
from ppojob_trainer.models.problems import ModelReason

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
SAVED_WEIGHTS: Final = {"embed_tokens": EMBEDDING, "lm_head": HEAD}
"""Weights of the layers that may be trained whole, in addition to adapters."""
NF4_BLOCK: Final = 64
"""Elements of a row that share a scale in NF4 (quantization block)."""

_MLA_KEYS: Final = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_REQUIRED: Final = {
    "vocab_size": WIDTHS,
    "hidden_size": WIDTHS,
    "num_hidden_layers": range(1, 10_001),
    "num_attention_heads": WIDTHS,
}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MlaSizes:
    """Widths of multi-head latent attention (MLA)."""

    query: int  # of the query latent; 0 where queries are projected from the hidden states
    key: int  # of the latent of keys and values
    plain: int  # of a head's queries and keys, the part without RoPE
    rotary: int  # of the part with RoPE, which the keys of all heads share
    value: int  # of a head's values

    @property
    def cached(self) -> int:
        """Numbers per token in an engine's KV cache."""
        return self.key + self.rotary


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model by its config.json."""

    model_type: str
    vocabulary: int  # rows of the embedding
    hidden: int  # width of the residual stream
    inner: int  # intermediate width of a feed-forward block, or of each expert
    layers: int
    heads: int
    key_heads: int  # key and value heads (GQA)
    head_size: int
    is_tied: bool  # whether the output layer is tied to the embedding
    biased: frozenset[str]  # linear layers of a block that have a bias
    experts: int = 0  # of each MoE layer; 0 of dense models, of the same family too
    shared: int = 0  # intermediate width of the shared expert; 0 without one
    latent: int = 0  # width that experts read and write, if it is not `hidden`; else 0
    dense_layers: frozenset[int] = frozenset()  # numbers of the dense layers of an MoE model
    plain: int = 0  # intermediate width of dense blocks in an MoE model; 0 without any
    has_qk_norm: bool = False
    types: tuple[str, ...] = ()  # of models with one block per layer: its type in each layer
    mla: MlaSizes | None = None
    recurrence: RecurrenceSizes | None = None
    per_layer: PerLayerSizes | None = None  # of models whose layers have different sizes
    gates_heads: bool = False  # whether each head has one gate; of Laguna
    positions: int = 0  # rows of the learned position embedding; 0 without one

    @property
    def mixture(self) -> MixtureOfExperts | None:
        """The family's description of MoE blocks, if it has any."""
        return FAMILIES[self.model_type].mixture if self.experts else None

    @property
    def takes_nf4(self) -> bool:
        """Whether matrices may be quantized to NF4 beneath adapters."""
        return self.mixture is None and not self.transposed_dims

    @property
    def transposed_dims(self) -> int:
        """Dimensions of weights stored (in, out): 2 or 3 for stacks; 0 if none is."""
        if FAMILIES[self.model_type].is_transposed:
            return 2
        return 3 if self.mixture and self.mixture.is_transposed else 0

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer is recurrent: a state in place of keys and values."""
        return self.recurrence is not None and layer in self.recurrence.layers

    def has_attention(self, layer: int) -> bool:
        """Whether a layer has attention."""
        if self.recurrence and layer in self.recurrence.layers:
            return self.recurrence.kind.is_beside_attention
        return not self.types or self.types[layer] == ATTENTION

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has MoE experts."""
        if self.types:
            return self.types[layer] == EXPERTS
        return self.experts > 0 and layer not in self.dense_layers

    def has_dense(self, layer: int) -> bool:
        """Whether a layer has a dense feed-forward block."""
        if self.types:
            return self.types[layer] == DENSE
        own = FAMILIES[self.model_type].feed_forward
        return not self.has_experts(layer) or (
            own is not None and own.in_moe_layers and self.plain > 0
        )

    def has_tiles(self, layer: int) -> bool:
        """Whether that block is a module, so it can be tiled over tokens."""
        return self.has_dense(layer) and "." in FAMILIES[self.model_type].dense_out

    def attention(self, layer: int) -> Attention:
        """Return the attention sizes of an attention layer."""
        if self.per_layer:
            return self.per_layer.attention[layer]
        return Attention(self.heads, self.key_heads, self.head_size)

    @property
    def numbers_of_heads(self) -> list[int]:
        """The distinct numbers of query heads over all layers."""
        return sorted({self.attention(layer).heads for layer in range(self.layers)})

    @property
    def numbers_of_key_heads(self) -> list[int]:
        """The distinct numbers of key/value heads over all layers."""
        return sorted({self.attention(layer).key_heads for layer in range(self.layers)})


def read_sizes(config: Mapping[str, Json], path: Path) -> Sizes | list[Problem]:
    """Read the sizes of a model of `FAMILIES`, with transformers' defaults."""
    model_type = str(config["model_type"])
    family = FAMILIES[model_type]
    config = with_usual_keys({**family.defaults, **with_usual_keys(config)})
    types = layer_types(config)
    if family.has_one_block and types is not None:
        config["num_hidden_layers"] = len(types)
    mixture, feed_forward = mixture_in(config), family.feed_forward
    own: tuple[str, ...] = _MLA_KEYS if family.has_mla else ()
    if recurrence := family.recurrence:
        own, config = recurrence.sizes, with_common_keys(config)
        types = layer_types(config)
    needed = _REQUIRED | required_sizes(config) | dict.fromkeys(own, WIDTHS)
    if family.positions:
        needed["max_position_embeddings"] = WIDTHS
    required = _read_counts(config, needed, path)
    if isinstance(required, list):
        return required
    heads, hidden = required["num_attention_heads"], required["hidden_size"]
    shared_keys = mixture.shared_inner if mixture else ()
    dense = dense_layers(config, mixture) if mixture else frozenset[int]()
    key_heads = count_in(config, "num_key_value_heads") or heads
    head_size = count_in(config, "head_dim") or hidden // heads
    mla = None
    if family.has_mla:
        query = count_in(config, "q_lora_rank")
        mla = MlaSizes(query, *(required[key] for key in _MLA_KEYS))
        key_heads, head_size = heads, mla.plain + mla.rotary
    recurrent = frozenset[int]()
    if recurrence:
        recurrent = recurrent_numbers(config, types, required["num_hidden_layers"])
    plain = "intermediate_size" if feed_forward is None else feed_forward.inner
    has_dense = bool(dense) or feed_forward is not None
    may_tie = True in family.supported.get("tie_word_embeddings", (True,))
    return Sizes(
        model_type=model_type,
        vocabulary=required["vocab_size"],
        hidden=hidden,
        inner=required[mixture.inner if mixture else plain],
        layers=required["num_hidden_layers"],
        heads=heads,
        key_heads=key_heads,
        head_size=head_size,
        is_tied=may_tie and config.get("tie_word_embeddings") is True,
        biased=_biased(config, family),
        experts=required[experts_key(config)] if mixture else 0,
        shared=prod(required[key] for key in shared_keys) if shared_keys else 0,
        latent=count_in(config, mixture.latent) if mixture else 0,
        dense_layers=dense,
        plain=required[plain] if mixture and has_dense else 0,
        has_qk_norm=family.qk_norm != "none"
        and (not family.qk_norm_key or config.get(family.qk_norm_key) is True),
        types=tuple(types or ()) if family.has_one_block else (),
        mla=mla,
        recurrence=RecurrenceSizes.of(recurrence, recurrent, required)
        if recurrence and recurrent
        else None,
        per_layer=_per_layer(config, family, Attention(heads, key_heads, head_size)),
        gates_heads=config.get("gating", True) != "per-element",
        positions=required["max_position_embeddings"] + family.positions[1]
        if family.positions
        else 0,
    )


def _per_layer(
    config: Mapping[str, Json], family: Family, usual: Attention
) -> PerLayerSizes | None:
    """Return the sizes of each layer, of families whose layers differ."""
    layers = count_in(config, "num_hidden_layers")
    if family.heads_key:
        return read_head_counts(config.get(family.heads_key), usual, layers)
    return read_per_layer_sizes(config, usual, layers) if family.has_per_layer_sizes else None


def _biased(config: Mapping[str, Json], family: Family) -> frozenset[str]:
    enabled = (names for key, names in family.biases.items() if config.get(key) is True)
    return frozenset(family.always_biased).union(*enabled)


def _read_counts(
    config: Mapping[str, Json], needed: Mapping[str, range], path: Path
) -> dict[str, int] | list[Problem]:
    """Return the numbers at the keys, checked against the ranges, or a problem."""
    found, problems = {}, []
    for key, fitting in needed.items():
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value not in fitting:
            got = ABSENT if value is None else shown(value)
            why = "it defines the shape of the model"
            allowed = f"an integer from {fitting.start} to {fitting.stop - 1}"
            problems.append(Problem(f"{path}:{key}", got, why, allowed, ModelReason.BAD_CONFIG))
            continue
        found[key] = value
    return problems or found


def backbone_tensors(sizes: Sizes) -> Iterator[tuple[str, Shape]]:
    """Return names and shapes of all tensors of a model but its head's."""
    yield EMBEDDING, (sizes.vocabulary, sizes.hidden)
    family = FAMILIES[sizes.model_type]
    yield from _norm("model.norm", family, sizes.hidden)
    if family.positions:
        yield f"model.{family.positions[0]}.weight", (sizes.positions, sizes.hidden)
    if sizes.per_layer:
        yield from sizes.per_layer.of_model(sizes.hidden)
    for layer in range(sizes.layers):
        for name, shape in _of_a_layer(sizes, layer):
            yield f"model.layers.{layer}.{name}", shape


def _norm(name: str, family: Family, width: int) -> Iterator[tuple[str, Shape]]:
    if "unweighted" not in family.norm_type:
        yield f"{name}.weight", (width,)
    if "biased" in family.norm_type:
        yield f"{name}.bias", (width,)


def linear_layers(sizes: Sizes, layer: int) -> dict[str, Shape]:
    """Return a decoder layer's linear layers by name in it, with the shapes of their weights.

    Routers and routed experts are not included; the shared expert is.
    """
    found: dict[str, Shape] = {}
    if sizes.has_attention(layer):
        found = _attention(sizes, layer)
    if sizes.recurrence and sizes.is_recurrent(layer):
        is_fused = "in_proj_qkvz" in FAMILIES[sizes.model_type].fused
        found |= sizes.recurrence.linear_layers(sizes.hidden, is_fused=is_fused)
    if (mixture := sizes.mixture) and sizes.has_experts(layer):
        widths = {"hidden": sizes.hidden, "inner": sizes.shared, "latent": sizes.latent}
        found |= layers_beside_experts(mixture, **widths)
    if sizes.per_layer:
        found |= sizes.per_layer.linear_layers(sizes.hidden)
    if sizes.has_dense(layer):
        found |= _feed_forward(sizes, layer)
    return found


def _attention(sizes: Sizes, layer: int) -> dict[str, Shape]:
    if sizes.mla:
        return _mla(sizes.mla, sizes.hidden, sizes.heads)
    family, hidden, own = FAMILIES[sizes.model_type], sizes.hidden, sizes.attention(layer)
    query, key, at = own.heads * own.head_size, own.key_heads * own.head_size, family.attention
    found: dict[str, Shape] = {
        f"{at}.q_proj": (2 * query if family.has_attention_gates else query, hidden)
    }
    if own.has_keys:
        found[f"{at}.k_proj"] = (key, hidden)
    if own.has_keys and own.has_values:
        found[f"{at}.v_proj"] = (key, hidden)
    if "qkv_proj" in family.fused:
        found = {f"{at}.{family.attention_in}": (query + 2 * key, hidden)}
    if family.attention_gate:
        gates = own.heads if family.heads_key and sizes.gates_heads else query
        found[f"{at}.{family.attention_gate}"] = (gates, hidden)
    return found | {f"{at}.{family.attention_out}": (hidden, query)}


def _feed_forward(sizes: Sizes, layer: int) -> dict[str, Shape]:
    family, hidden = FAMILIES[sizes.model_type], sizes.hidden
    inner = sizes.plain if sizes.mixture else sizes.inner
    if sizes.per_layer and not sizes.attention(layer).has_keys:
        inner = sizes.per_layer.inner_of_sharing
    if own := family.feed_forward:
        found: dict[str, Shape] = {name: (n * inner, hidden) for name, n in own.into.items()}
        return found | {own.out: (hidden, inner)}
    found = {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    if "gate_up_proj" in family.fused:
        found = {"mlp.gate_up_proj": (2 * inner, hidden)}
    return found | {"mlp.down_proj": (hidden, inner)}


def _expert_tensors(mixture: MixtureOfExperts, sizes: Sizes) -> Iterator[tuple[str, Shape]]:
    widths = {"hidden": sizes.hidden, "inner": sizes.inner, "latent": sizes.latent}
    return expert_tensors(mixture, sizes.experts, **widths)


def expert_weights(sizes: Sizes) -> dict[str, Shape]:
    """Return the expert weights of a decoder layer by name in it, as (out, in) or stacks."""
    mixture = sizes.mixture
    if mixture is None:
        return {}
    tensors = _expert_tensors(mixture, sizes)
    if not mixture.is_stacked:
        return {name: shape for name, shape in tensors if ".experts." in name}
    found = {name: shape for name, shape in tensors if name.endswith(STACKS)}
    if not mixture.is_transposed:
        return found
    return {name: (experts, out, into) for name, (experts, into, out) in found.items()}


def _mla(mla: MlaSizes, hidden: int, heads: int) -> dict[str, Shape]:
    query = heads * (mla.plain + mla.rotary)
    found: dict[str, Shape] = {"q_proj": (query, hidden)}
    if mla.query:
        found = {"q_a_proj": (mla.query, hidden), "q_b_proj": (query, mla.query)}
    found["kv_a_proj_with_mqa"] = (mla.key + mla.rotary, hidden)
    found["kv_b_proj"] = (heads * (mla.plain + mla.value), mla.key)
    found["o_proj"] = (hidden, heads * mla.value)
    return {f"self_attn.{name}": shape for name, shape in found.items()}


def _of_a_layer(sizes: Sizes, layer: int) -> Iterator[tuple[str, Shape]]:
    family = FAMILIES[sizes.model_type]
    yield from _norms(sizes, layer)
    for name, shape in linear_layers(sizes, layer).items():
        yield f"{name}.weight", shape[::-1] if family.is_transposed else shape
        if name in sizes.biased:
            yield f"{name}.bias", shape[:1]
    if family.has_sinks:
        yield "self_attn.sinks", (sizes.heads,)
    yield from ((name, (1,)) for name in (*family.trained_scalars, *family.frozen_scalars))
    if (mixture := sizes.mixture) and sizes.has_experts(layer):
        yield from _expert_tensors(mixture, sizes)
    if sizes.recurrence and sizes.is_recurrent(layer):
        yield from sizes.recurrence.tensors()


def _norms(sizes: Sizes, layer: int) -> Iterator[tuple[str, Shape]]:
    family, attention = FAMILIES[sizes.model_type], sizes.attention(layer)
    mixture = sizes.mixture if sizes.has_experts(layer) else None
    for norm in (*family.norms, *family.post_norms, *(mixture.norms if mixture else ())):
        yield from _norm(norm, family, sizes.hidden)
    if sizes.per_layer and sizes.per_layer.layer_embedding:
        yield "post_per_layer_input_norm.weight", (sizes.hidden,)
    if sizes.mla:
        yield "self_attn.kv_a_layernorm.weight", (sizes.mla.key,)
    if sizes.mla and sizes.mla.query:
        yield "self_attn.q_a_layernorm.weight", (sizes.mla.query,)
    if sizes.recurrence and sizes.is_recurrent(layer):
        yield from sizes.recurrence.norms()
    elif sizes.has_qk_norm:
        each, size = family.qk_norm == "each head", attention.head_size
        of_queries, of_keys = family.qk_norm_names
        yield f"self_attn.{of_queries}.weight", (size * (1 if each else sizes.heads),)
        if attention.has_keys:
            yield f"self_attn.{of_keys}.weight", (size * (1 if each else attention.key_heads),)


def saved_weights(lora: LoraSpec) -> set[str]:
    """Return the names of the weights that are trained whole, in addition to adapters."""
    return {SAVED_WEIGHTS[name] for name in lora.modules_to_save or ()}


def adapter_shapes(sizes: Sizes, lora: LoraSpec) -> dict[str, Shape]:
    """Return adapter tensors by name: A (rows, in) and B (out, rows), or stacks, and magnitudes."""
    found: dict[str, Shape] = {}
    for layer in range(sizes.layers):
        adapted = {f"{name}.weight": shape for name, shape in linear_layers(sizes, layer).items()}
        if lora.experts and sizes.has_experts(layer):
            adapted |= expert_weights(sizes)
        for name, (*stack, rows, columns) in adapted.items():
            if lora.adapts(name.removesuffix(".weight")):
                weight = f"model.layers.{layer}.{name}"
                a, b = matrix_names(weight)
                found[a] = (*stack, lora.rows, columns)
                found[b] = (*stack, rows, lora.rows)
                if lora.weight_decomposed:
                    found[magnitude_name(weight)] = (rows,)
    return found


def nf4_bytes(rows: int, columns: int) -> int:
    """Return the bytes of a matrix in NF4: four bits an element, a four-byte scale a block."""
    return rows * -(-columns // NF4_BLOCK) * (NF4_BLOCK // 2 + 4)


def count_adapters(lora: LoraSpec | None, folder: str) -> int:
    """Count the trained elements of adapters and of layers that are trained whole.

    0 without adapters, or if config.json cannot be read.
    """
    if lora is None or (sizes := sizes_of(folder)) is None:
        return 0
    whole = len(saved_weights(lora)) * sizes.vocabulary * sizes.hidden
    return whole + sum(map(prod, adapter_shapes(sizes, lora).values()))


def count_log_partition(loss: Loss, folder: str) -> int:
    """Count the parameters of the log Z network; 0 for a loss without one; see `count_adapters`."""
    if not loss.learns_log_z or (sizes := sizes_of(folder)) is None:
        return 0
    layer, norm = sizes.hidden * (sizes.hidden + 1), 2 * sizes.hidden
    return 2 * (layer + norm) + sizes.hidden + 1


def sizes_by(config: Mapping[str, Json]) -> Sizes:
    """Return the sizes by a configuration that has been checked."""
    sizes = read_sizes(config, Path("config.json"))
    assert isinstance(sizes, Sizes), f"{sizes}"
    return sizes


def sizes_of(folder: str) -> Sizes | None:
    """Return the sizes by the config.json of a folder; None where it cannot be read."""
    path = Path(folder) / "config.json"
    config = read_config(path)
    if isinstance(config, Problem) or config.get("model_type") not in FAMILIES:
        return None
    sizes = read_sizes(config, path)
    return sizes if isinstance(sizes, Sizes) else None
