"""The sizes of a model, and the tensors that it consists of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from ppojob_api.problem import ABSENT, Problem, shown
from ppojob_api.v1alpha1.training import LoraSpec
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_files import read_config
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.layers_apart import (
    LAYER_SCALAR,
    Attention,
    LayersApart,
    read_layers_apart,
)
from ppojob_trainer.models.mixtures import (
    expert_tensors,
    key_of_experts,
    required_sizes,
    shared_layers,
)
from ppojob_trainer.models.problems import ModelReason

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"

_MAX_SIZE: Final = 2**31 - 1
_LATENT: Final = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_STATES: Final = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
_REQUIRED: Final = {
    "vocab_size": _MAX_SIZE,
    "hidden_size": _MAX_SIZE,
    "num_hidden_layers": 10_000,
    "num_attention_heads": _MAX_SIZE,
}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Latents:
    """Widths of latent attention.

    Attributes:
        query: of the vector that queries are made of; 0 where they are made of the states.
        key: of that of keys and values.
        plain: of a head's queries and keys, the part without positions.
        rotary: of the part with them, which the keys of all heads have in common.
        value: of a head's values.
    """

    query: int
    key: int
    plain: int
    rotary: int
    value: int

    @property
    def cached(self) -> int:
        """Numbers that engines keep of a token."""
        return self.key + self.rotary


@dataclass(frozen=True, slots=True)
class States:
    """Sizes of gated delta networks.

    Attributes:
        layers: those that have one in place of attention.
        key_heads: of queries and of keys.
        heads: of values, of which each has a state.
        key: of a head's queries and keys.
        value: of a head's values.
        taps: inputs of the convolution at a token.
    """

    layers: frozenset[int]
    key_heads: int
    heads: int
    key: int
    value: int
    taps: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What config.json says of a model's sizes.

    Attributes:
        vocabulary: rows of the embedding.
        hidden: width of the residual stream.
        inner: width within a feed-forward block, or within each expert of it.
        key_heads: key and value heads.
        is_tied: whether the embedding is the output layer too.
        biased: linear layers of a block that add a bias.
        experts: experts of each layer of a mixture; 0 of other models.
        shared: width within the expert that all tokens go to; 0 where there is none.
        plain_layers: layers without experts, the first ones of a mixture.
        plain: width within their blocks; 0 where there are none.
        has_head_norms: whether queries and keys are normalised.
        latents: of a model whose queries, keys and values are made of latent vectors.
        states: of a model with layers that keep states.
        apart: of a model whose layers differ from each other.
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
    plain_layers: int = 0
    plain: int = 0
    has_head_norms: bool = False
    latents: Latents | None = None
    states: States | None = None
    apart: LayersApart | None = None

    def attention(self, layer: int) -> Attention:
        """The attention of a layer that has one."""
        if self.apart:
            return self.apart.attention[layer]
        return Attention(self.key_heads, self.head_size)

    @property
    def numbers_of_key_heads(self) -> list[int]:
        """Those of all layers, each once."""
        return sorted({self.attention(layer).key_heads for layer in range(self.layers)})


def read_sizes(config: Mapping[str, Json], path: Path) -> Sizes | list[Problem]:
    """Read the sizes of a model of `FAMILIES`, as transformers fills them in."""
    model_type = str(config["model_type"])
    family = FAMILIES[model_type]
    problems = []
    config = {**family.defaults, **config}
    required: dict[str, int] = {}
    own = _LATENT if family.has_latents else _STATES if family.has_states else ()
    needed = _REQUIRED | required_sizes(config) | dict.fromkeys(own, _MAX_SIZE)
    for key, most in needed.items():
        value = _count(config.get(key))
        if value is None or value > most:
            got = ABSENT if config.get(key) is None else shown(config[key])
            why = "the model is built by it"
            allowed = f"an integer from 1 to {most}"
            problems.append(Problem(f"{path}:{key}", got, why, allowed, ModelReason.BAD_CONFIG))
            continue
        required[key] = value
    if problems:
        return problems
    heads, hidden = required["num_attention_heads"], required["hidden_size"]
    mixture = family.mixture
    keys = mixture.shared_inner if mixture else ()
    plain_layers = _count(config.get(mixture.dense_first)) or 0 if mixture else 0
    key_heads = _count(config.get("num_key_value_heads")) or heads
    head_size = _count(config.get("head_dim")) or hidden // heads
    latents = None
    if family.has_latents:
        of_queries = _count(config.get("q_lora_rank")) or 0
        latents = Latents(of_queries, *(required[key] for key in _LATENT))
        key_heads, head_size = heads, latents.plain + latents.rotary
    states = None
    if family.has_states:
        layers = _layers_with_states(config, required["num_hidden_layers"])
        states = States(layers, *(required[key] for key in _STATES))
    biased = {
        name for key, names in family.biases.items() if config.get(key) is True for name in names
    }
    return Sizes(
        model_type=model_type,
        vocabulary=required["vocab_size"],
        hidden=hidden,
        inner=required[mixture.inner if mixture else "intermediate_size"],
        layers=required["num_hidden_layers"],
        heads=heads,
        key_heads=key_heads,
        head_size=head_size,
        is_tied=config.get("tie_word_embeddings") is True,
        biased=frozenset(biased.union(family.always_biased)),
        experts=required[key_of_experts(config)] if mixture else 0,
        shared=prod(required[key] for key in keys) if keys else 0,
        plain_layers=plain_layers,
        plain=required["intermediate_size"] if plain_layers else 0,
        has_head_norms=family.head_norm != "none"
        and (not family.head_norm_key or config.get(family.head_norm_key) is True),
        latents=latents,
        states=states,
        apart=read_layers_apart(
            config, Attention(key_heads, head_size), required["num_hidden_layers"]
        )
        if family.has_layers_apart
        else None,
    )


def _layers_with_states(config: Mapping[str, Json], layers: int) -> frozenset[int]:
    """As config.json names them; where it does not, all but each so many-th, as transformers."""
    kinds, interval = config.get("layer_types"), _count(config["full_attention_interval"]) or 1
    if isinstance(kinds, list):
        return frozenset(n for n, kind in enumerate(kinds) if kind == "linear_attention")
    return frozenset(n for n in range(layers) if (n + 1) % interval)


def backbone_tensors(sizes: Sizes) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of all tensors of a model but those of its head."""
    yield EMBEDDING, (sizes.vocabulary, sizes.hidden)
    yield "model.norm.weight", (sizes.hidden,)
    if sizes.apart:
        yield from sizes.apart.of_model(sizes.hidden)
    for layer in range(sizes.layers):
        for name, shape in _of_a_layer(sizes, layer):
            yield f"model.layers.{layer}.{name}", shape


def linear_layers(sizes: Sizes, layer: int) -> dict[str, Shape]:
    """Linear layers of a decoder layer by their names in it, with the shapes of their weights.

    Neither routers are among them nor experts, but for one that all tokens go to.
    """
    hidden, own = sizes.hidden, sizes.attention(layer)
    query, key = sizes.heads * own.head_size, own.key_heads * own.head_size
    family = FAMILIES[sizes.model_type]
    attention: dict[str, Shape] = {
        "self_attn.q_proj": (2 * query if family.has_gates else query, hidden)
    }
    if own.has_keys:
        attention["self_attn.k_proj"] = (key, hidden)
    if own.has_keys and own.has_values:
        attention["self_attn.v_proj"] = (key, hidden)
    if "qkv_proj" in family.fused:
        attention = {"self_attn.qkv_proj": (query + 2 * key, hidden)}
    attention["self_attn.o_proj"] = (hidden, query)
    if sizes.latents:
        attention = _latent_attention(sizes.latents, hidden, sizes.heads)
    if sizes.states and layer in sizes.states.layers:
        attention = _delta_network(sizes.states, hidden, is_fused="in_proj_qkvz" in family.fused)
    if family.mixture and layer >= sizes.plain_layers:
        return attention | shared_layers(family.mixture, hidden, sizes.shared)
    inner = sizes.plain if family.mixture else sizes.inner
    if sizes.apart:
        attention |= sizes.apart.linear_layers(hidden)
        inner = inner if own.has_keys else sizes.apart.inner_of_sharing
    feed: dict[str, Shape] = {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    if "gate_up_proj" in family.fused:
        feed = {"mlp.gate_up_proj": (2 * inner, hidden)}
    return attention | feed | {"mlp.down_proj": (hidden, inner)}


def expert_layers(sizes: Sizes) -> dict[str, Shape]:
    """Matrices of the experts of a decoder layer by their names in it, where each has its own."""
    mixture = FAMILIES[sizes.model_type].mixture
    if mixture is None or mixture.is_stacked:
        return {}
    tensors = expert_tensors(mixture, sizes.experts, hidden=sizes.hidden, inner=sizes.inner)
    return {name.removesuffix(".weight"): shape for name, shape in tensors if ".experts." in name}


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


def _delta_network(states: States, hidden: int, *, is_fused: bool) -> dict[str, Shape]:
    key, value = states.key_heads * states.key, states.heads * states.value
    parts = {"qkv": 2 * key + value, "z": value, "b": states.heads, "a": states.heads}
    if is_fused:
        parts = {"qkvz": 2 * (key + value), "ba": 2 * states.heads}
    found: dict[str, Shape] = {
        f"linear_attn.in_proj_{name}": (rows, hidden) for name, rows in parts.items()
    }
    return found | {"linear_attn.out_proj": (hidden, value)}


def _of_a_layer(sizes: Sizes, layer: int) -> Iterator[tuple[str, Shape]]:
    family = FAMILIES[sizes.model_type]
    yield from _norms(sizes, layer)
    for name, shape in linear_layers(sizes, layer).items():
        yield f"{name}.weight", shape
        if name in sizes.biased:
            yield f"{name}.bias", shape[:1]
    if family.has_sinks:
        yield "self_attn.sinks", (sizes.heads,)
    if sizes.apart:
        yield LAYER_SCALAR, (1,)
    if (mixture := family.mixture) and layer >= sizes.plain_layers:
        widths = {"hidden": sizes.hidden, "inner": sizes.inner}
        yield from expert_tensors(mixture, sizes.experts, **widths)
    if (states := sizes.states) and layer in states.layers:
        channels = 2 * states.key_heads * states.key + states.heads * states.value
        yield "linear_attn.conv1d.weight", (channels, 1, states.taps)
        yield from ((f"linear_attn.{name}", (states.heads,)) for name in ("A_log", "dt_bias"))


def _norms(sizes: Sizes, layer: int) -> Iterator[tuple[str, Shape]]:
    family, attention = FAMILIES[sizes.model_type], sizes.attention(layer)
    for norm in (*family.norms, *family.late_norms):
        yield f"{norm}.weight", (sizes.hidden,)
    if sizes.apart and sizes.apart.told:
        yield "post_per_layer_input_norm.weight", (sizes.hidden,)
    if sizes.latents:
        yield "self_attn.kv_a_layernorm.weight", (sizes.latents.key,)
    if sizes.latents and sizes.latents.query:
        yield "self_attn.q_a_layernorm.weight", (sizes.latents.query,)
    if sizes.states and layer in sizes.states.layers:
        yield "linear_attn.norm.weight", (sizes.states.value,)
    elif sizes.has_head_norms:
        each, size = family.head_norm == "each head", attention.head_size
        of_queries, of_keys = family.head_norms
        yield f"self_attn.{of_queries}.weight", (size * (1 if each else sizes.heads),)
        if attention.has_keys:
            yield f"self_attn.{of_keys}.weight", (size * (1 if each else attention.key_heads),)


def _count(value: Json) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_SIZE
    return value if is_count and isinstance(value, int) else None


def adapter_shapes(sizes: Sizes, lora: LoraSpec) -> dict[str, Shape]:
    """Matrices of adapters by name: `<layer>.lora_a` (rank, in), `<layer>.lora_b` (out, rank)."""
    found: dict[str, Shape] = {}
    for layer in range(sizes.layers):
        adapted = linear_layers(sizes, layer)
        if lora.experts and layer >= sizes.plain_layers:
            adapted |= expert_layers(sizes)
        for name, (rows, columns) in adapted.items():
            if lora.adapts(name):
                at = f"model.layers.{layer}.{name}"
                found[f"{at}.lora_a"] = (lora.rank, columns)
                found[f"{at}.lora_b"] = (rows, lora.rank)
    return found


def count_adapters(lora: LoraSpec | None, folder: str) -> int:
    """Numbers in all adapters of a model; 0 without, or where its config.json cannot be read."""
    if lora is None or (sizes := sizes_of(folder)) is None:
        return 0
    return sum(map(prod, adapter_shapes(sizes, lora).values()))


def sizes_of(folder: str) -> Sizes | None:
    """What the config.json of a folder says; None where it cannot be read."""
    path = Path(folder) / "config.json"
    config = read_config(path)
    if isinstance(config, Problem) or config.get("model_type") not in FAMILIES:
        return None
    sizes = read_sizes(config, path)
    return sizes if isinstance(sizes, Sizes) else None
