"""Model architectures: sizes from config.json, and the names and shapes of all tensors."""

from collections.abc import Iterator, Mapping, Sequence
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
from ppojob_trainer.models.family import Family, Mixture
from ppojob_trainer.models.layer_kinds import ATTENTION, EXPERTS, PLAIN, layer_kinds
from ppojob_trainer.models.liquid import with_own_keys
from ppojob_trainer.models.mixtures import (
    STACKS,
    WIDTHS,
    expert_tensors,
    key_of_experts,
    latent_layers,
    latent_width,
    mixture_in,
    required_sizes,
    shared_layers,
)
from ppojob_trainer.models.per_layer_sizes import Attention, PerLayerSizes, read_per_layer_sizes
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.state_layers import (
    States,
    layers_with_states,
    with_head_of_states,
)

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
SAVED_WEIGHTS: Final = {"embed_tokens": EMBEDDING, "lm_head": HEAD}
"""Weights of the layers that may be trained whole beside adapters."""
NF4_BLOCK: Final = 64
"""Elements of a row that share a scale in NF4 (quantization block)."""

_LATENT: Final = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_REQUIRED: Final = {
    "vocab_size": WIDTHS,
    "hidden_size": WIDTHS,
    "num_hidden_layers": range(1, 10_001),
    "num_attention_heads": WIDTHS,
}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Latents:
    """Widths of multi-head latent attention (MLA).

    Attributes:
        query: of the query latent; 0 where queries are projected from the hidden states.
        key: of the latent of keys and values.
        plain: of a head's queries and keys, the part without RoPE.
        rotary: of the part with RoPE, which the keys of all heads share.
        value: of a head's values.
    """

    query: int
    key: int
    plain: int
    rotary: int
    value: int

    @property
    def cached(self) -> int:
        """Numbers per token in an engine's KV cache."""
        return self.key + self.rotary


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model by its config.json.

    Attributes:
        vocabulary: rows of the embedding.
        hidden: width of the residual stream.
        inner: intermediate width of a feed-forward block, or of each expert.
        key_heads: key and value heads (GQA).
        is_tied: whether the output layer is tied to the embedding.
        biased: linear layers of a block that have a bias.
        experts: experts of each MoE layer; 0 of dense models, of the same family too.
        shared: intermediate width of the shared expert; 0 where there is none.
        latent: width that experts compute in, if it is not `hidden`; else 0.
        dense_layers: dense layers of an MoE model, the first ones.
        plain: intermediate width of dense blocks in an MoE model; 0 where there are none.
        has_qk_norm: whether there is a QK-norm.
        kinds: block type of each layer, for models with one block per layer; else empty.
        latents: of MLA models.
        states: of models with recurrent layers.
        per_layer: of models whose layers have different sizes.
        positions: rows of the learned position embedding; 0 without one.
    """

    model_type: str
    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    is_tied: bool
    biased: frozenset[str]
    experts: int = 0
    shared: int = 0
    latent: int = 0
    dense_layers: int = 0
    plain: int = 0
    has_qk_norm: bool = False
    kinds: tuple[str, ...] = ()
    latents: Latents | None = None
    states: States | None = None
    per_layer: PerLayerSizes | None = None
    positions: int = 0

    @property
    def mixture(self) -> Mixture | None:
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

    def has_state(self, layer: int) -> bool:
        """Whether a layer is recurrent: a state in place of keys and values."""
        return self.states is not None and layer in self.states.layers

    def has_attention(self, layer: int) -> bool:
        """Whether a layer has attention."""
        return not self.has_state(layer) and (not self.kinds or self.kinds[layer] == ATTENTION)

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has MoE experts."""
        if self.kinds:
            return self.kinds[layer] == EXPERTS
        return self.experts > 0 and layer >= self.dense_layers

    def has_dense(self, layer: int) -> bool:
        """Whether a layer has a dense feed-forward block."""
        if self.kinds:
            return self.kinds[layer] == PLAIN
        own = FAMILIES[self.model_type].feed_forward
        return not self.has_experts(layer) or (own is not None and own.is_beside)

    def has_tiles(self, layer: int) -> bool:
        """Whether that block is a module, so it can be tiled over tokens."""
        return self.has_dense(layer) and "." in FAMILIES[self.model_type].plain_out

    def attention(self, layer: int) -> Attention:
        """Return the attention sizes of an attention layer."""
        if self.per_layer:
            return self.per_layer.attention[layer]
        return Attention(self.key_heads, self.head_size)

    @property
    def numbers_of_key_heads(self) -> list[int]:
        """The distinct numbers of key/value heads over all layers."""
        return sorted({self.attention(layer).key_heads for layer in range(self.layers)})


def read_sizes(config: Mapping[str, Json], path: Path) -> Sizes | list[Problem]:
    """Read the sizes of a model of `FAMILIES`, with transformers' defaults."""
    model_type = str(config["model_type"])
    family = FAMILIES[model_type]
    config = with_usual_keys({**family.defaults, **config})
    kinds = layer_kinds(config)
    if family.has_one_block and kinds is not None:
        config["num_hidden_layers"] = len(kinds)
    mixture, feed_forward = mixture_in(config), family.feed_forward
    own: tuple[str, ...] = _LATENT if family.has_mla else ()
    if kind := family.recurrence:
        own, config = kind.sizes, with_own_keys(with_head_of_states(config))
        kinds = layer_kinds(config)
    needed = _REQUIRED | required_sizes(config) | dict.fromkeys(own, WIDTHS)
    if family.positions:
        needed["max_position_embeddings"] = WIDTHS
    required = _read_counts(config, needed, path)
    if isinstance(required, list):
        return required
    heads, hidden = required["num_attention_heads"], required["hidden_size"]
    keys = mixture.shared_inner if mixture else ()
    dense_layers = _count(config.get(mixture.dense_first)) or 0 if mixture else 0
    key_heads = _count(config.get("num_key_value_heads")) or heads
    head_size = _count(config.get("head_dim")) or hidden // heads
    latents = None
    if family.has_mla:
        of_queries = _count(config.get("q_lora_rank")) or 0
        latents = Latents(of_queries, *(required[key] for key in _LATENT))
        key_heads, head_size = heads, latents.plain + latents.rotary
    plain = "intermediate_size" if feed_forward is None else feed_forward.inner
    has_dense = dense_layers > 0 or feed_forward is not None
    may_tie = True in family.only.get("tie_word_embeddings", (True,))
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
        experts=required[key_of_experts(config)] if mixture else 0,
        shared=prod(required[key] for key in keys) if keys else 0,
        latent=latent_width(mixture, config),
        dense_layers=dense_layers,
        plain=required[plain] if mixture and has_dense else 0,
        has_qk_norm=family.qk_norm != "none"
        and (not family.qk_norm_key or config.get(family.qk_norm_key) is True),
        kinds=tuple(kinds or ()) if family.has_one_block else (),
        latents=latents,
        states=_states(config, family, kinds, required),
        per_layer=read_per_layer_sizes(
            config, Attention(key_heads, head_size), required["num_hidden_layers"]
        )
        if family.has_per_layer_sizes
        else None,
        positions=required["max_position_embeddings"] + family.positions[1]
        if family.positions
        else 0,
    )


def _states(
    config: Mapping[str, Json],
    family: Family,
    kinds: Sequence[str] | None,
    counts: Mapping[str, int],
) -> States | None:
    """Return the sizes of recurrent layers; None of a model without any."""
    if family.recurrence is None:
        return None
    layers = layers_with_states(config, kinds, counts["num_hidden_layers"])
    return States.of(family.recurrence, layers, counts) if layers else None


def _biased(config: Mapping[str, Json], family: Family) -> frozenset[str]:
    """Return the modules of a layer that have a bias."""
    asked = (names for key, names in family.biases.items() if config.get(key) is True)
    return frozenset(family.always_biased).union(*asked)


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
    if family.has_norm_weights:
        yield f"{name}.weight", (width,)
    if family.has_norm_biases:
        yield f"{name}.bias", (width,)


def linear_layers(sizes: Sizes, layer: int) -> dict[str, Shape]:
    """Return a decoder layer's linear layers by name in it, with the shapes of their weights.

    Routers and routed experts are not included; the shared expert is.
    """
    found: dict[str, Shape] = {}
    if sizes.has_attention(layer):
        found = _attention(sizes, layer)
    elif sizes.states and sizes.has_state(layer):
        is_fused = "in_proj_qkvz" in FAMILIES[sizes.model_type].fused
        found = sizes.states.linear_layers(sizes.hidden, is_fused=is_fused)
    if (mixture := sizes.mixture) and sizes.has_experts(layer):
        found |= shared_layers(mixture, sizes.hidden, sizes.shared)
        found |= latent_layers(mixture, sizes.hidden, sizes.latent)
    if sizes.per_layer:
        found |= sizes.per_layer.linear_layers(sizes.hidden)
    if sizes.has_dense(layer):
        found |= _feed_forward(sizes, layer)
    return found


def _attention(sizes: Sizes, layer: int) -> dict[str, Shape]:
    if sizes.latents:
        return _latent_attention(sizes.latents, sizes.hidden, sizes.heads)
    family, hidden, own = FAMILIES[sizes.model_type], sizes.hidden, sizes.attention(layer)
    query, key, at = sizes.heads * own.head_size, own.key_heads * own.head_size, family.attention
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
        found[f"{at}.{family.attention_gate}"] = (query, hidden)
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


def _expert_tensors(mixture: Mixture, sizes: Sizes) -> Iterator[tuple[str, Shape]]:
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


def _latent_attention(latents: Latents, hidden: int, heads: int) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    query = heads * (latents.plain + latents.rotary)
    if latents.query:
        found["self_attn.q_a_proj"] = (latents.query, hidden)
        found["self_attn.q_b_proj"] = (query, latents.query)
    else:
        found["self_attn.q_proj"] = (query, hidden)
    found["self_attn.kv_a_proj_with_mqa"] = (latents.key + latents.rotary, hidden)
    found["self_attn.kv_b_proj"] = (heads * (latents.plain + latents.value), latents.key)
    return found | {"self_attn.o_proj": (hidden, heads * latents.value)}


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
    if sizes.states and sizes.has_state(layer):
        yield from sizes.states.tensors()


def _norms(sizes: Sizes, layer: int) -> Iterator[tuple[str, Shape]]:
    family, attention = FAMILIES[sizes.model_type], sizes.attention(layer)
    mixture = sizes.mixture if sizes.has_experts(layer) else None
    for norm in (*family.norms, *family.post_norms, *(mixture.norms if mixture else ())):
        yield from _norm(norm, family, sizes.hidden)
    if sizes.per_layer and sizes.per_layer.layer_embedding:
        yield "post_per_layer_input_norm.weight", (sizes.hidden,)
    if sizes.latents:
        yield "self_attn.kv_a_layernorm.weight", (sizes.latents.key,)
    if sizes.latents and sizes.latents.query:
        yield "self_attn.q_a_layernorm.weight", (sizes.latents.query,)
    if sizes.states and sizes.has_state(layer):
        yield from sizes.states.norms()
    elif sizes.has_qk_norm:
        each, size = family.qk_norm == "each head", attention.head_size
        of_queries, of_keys = family.qk_norm_names
        yield f"self_attn.{of_queries}.weight", (size * (1 if each else sizes.heads),)
        if attention.has_keys:
            yield f"self_attn.{of_keys}.weight", (size * (1 if each else attention.key_heads),)


def _count(value: Json) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value in WIDTHS
    return value if is_count and isinstance(value, int) else None


def saved_weights(lora: LoraSpec) -> set[str]:
    """Return the names of the weights that are trained whole beside adapters."""
    return {SAVED_WEIGHTS[name] for name in lora.modules_to_save or ()}


def adapter_shapes(sizes: Sizes, lora: LoraSpec) -> dict[str, Shape]:
    """Return adapter tensors by name: A (rank, in) and B (out, rank), or stacks, and magnitudes."""
    found: dict[str, Shape] = {}
    for layer in range(sizes.layers):
        adapted = {f"{name}.weight": shape for name, shape in linear_layers(sizes, layer).items()}
        if lora.experts and sizes.has_experts(layer):
            adapted |= expert_weights(sizes)
        for name, (*stack, rows, columns) in adapted.items():
            if lora.adapts(name.removesuffix(".weight")):
                weight = f"model.layers.{layer}.{name}"
                a, b = matrix_names(weight)
                found[a] = (*stack, lora.rank, columns)
                found[b] = (*stack, rows, lora.rank)
                if lora.weight_decomposed:
                    found[magnitude_name(weight)] = (rows,)
    return found


def nf4_bytes(rows: int, columns: int) -> int:
    """Return the bytes of a matrix in NF4: four bits an element, a four-byte scale a block."""
    return rows * -(-columns // NF4_BLOCK) * (NF4_BLOCK // 2 + 4)


def count_adapters(lora: LoraSpec | None, folder: str) -> int:
    """Count the trained elements beside frozen weights, those of whole layers among them.

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


def sizes_of(folder: str) -> Sizes | None:
    """Return the sizes by the config.json of a folder; None where it cannot be read."""
    path = Path(folder) / "config.json"
    config = read_config(path)
    if isinstance(config, Problem) or config.get("model_type") not in FAMILIES:
        return None
    sizes = read_sizes(config, path)
    return sizes if isinstance(sizes, Sizes) else None
