"""The sizes of a model, the tensors that it consists of, and which ranks can share them."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod
from pathlib import Path
from typing import Final

from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.suggestions import NEAR
from ppojob_api.topology import model_pods
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.training import ALL_LINEAR, LoraSpec
from ppojob_api.well_known import RoleName
from ppojob_trainer.data.pictures import PictureForm
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
    ALIGNED,
    expert_tensors,
    key_of_experts,
    required_sizes,
    shared_layers,
)
from ppojob_trainer.models.problems import ModelReason

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"

NO_FLOAT16_IN_VLLM: Final = frozenset({"gemma2", "gemma3_text", "glm4"})
"""Types of models that vLLM does not compute in float16, for their numbers become too large."""

VLLM_LATENT: Final = 576
"""What a token's latents are for vLLM's kernels: DeepSeek-V3's 512 and 64."""

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


def check_layouts(spec: PPOJobSpec) -> Iterator[Problem]:
    """Models that cannot be dealt to ranks as their layout says; nothing of a folder that is wrong.

    Ranks have whole heads and layers. They need not have equally many tokens of the vocabulary.
    """
    yield from _check_engines(spec)
    yield from _check_routers(spec)
    yield from _check_tower(spec)
    pods = model_pods(spec.roles)
    references = spec.reference_paths if spec.algorithm.has_reference else ()
    folders: list[tuple[RoleName, str | None]] = [
        ("actorRollout", spec.model.path),
        *(("reference", folder) for folder in references),
        *(("critic", folder) for folder in spec.critic_paths),
        ("rewardModel", spec.reward_model.path if spec.reward_model else None),
    ]
    # A role without pods of its own lives in those of the policy.
    hosted = {(role if role in pods else "actorRollout", folder) for role, folder in folders}
    for host, pod in pods.items():
        own = {sizes_of(folder) for where, folder in hosted if where == host and folder}
        yield from _check_experts(host, pod.parallelism.expert, own)
    for host, folder in sorted((host, folder) for host, folder in hosted if folder):
        layout, sizes = pods[host].parallelism, sizes_of(folder)
        if sizes is None:
            continue
        heads, keys = sizes.heads, sizes.numbers_of_key_heads
        most = gcd(heads, *keys, sizes.inner, sizes.shared, sizes.plain)
        why = (
            f"so many ranks share {heads} query heads, {' or '.join(map(str, keys))} key heads and "
            f"{sizes.inner} inner features of {folder}"
        )
        if uncut := FAMILIES[sizes.model_type].uncut:
            why, most = f"{uncut} in {folder}, a model of {sizes.model_type}", 1
        if sizes.experts:
            most = gcd(most, sizes.inner // ALIGNED)
        if most % layout.tensor:
            yield Problem(
                f"spec.roles.{host}.parallelism.tensor",
                shown(layout.tensor),
                why,
                f"a divisor of {most}",
                ReasonCode.OUT_OF_RANGE,
            )
        else:
            heads //= layout.tensor
        if sizes.states:
            heads = gcd(heads, sizes.states.key_heads)
        if heads % layout.sequence:
            of_states = " and those of its linear attention" if sizes.states else ""
            yield Problem(
                f"spec.roles.{host}.parallelism.sequence",
                shown(layout.sequence),
                f"the query heads of {folder}{of_states} are dealt to so many ranks",
                f"a divisor of {heads}",
                ReasonCode.OUT_OF_RANGE,
            )
        yield from _check_pipeline(host, layout.pipeline, folder, sizes)


def _check_pipeline(host: RoleName, stages: int, folder: str, sizes: Sizes) -> Iterator[Problem]:
    """Layers that cannot be dealt to so many stages, which hand on states and nothing else."""
    why, most = f"each of so many ranks has a layer of {folder} at least", sizes.layers
    if sizes.apart and sizes.apart.shares_keys:
        why, most = f"layers of {folder} attend to keys of layers before them", 1
    elif sizes.apart and sizes.apart.told:
        why, most = f"each layer of {folder} is told of a token by an embedding of its own", 1
    if most < stages:
        where = f"spec.roles.{host}.parallelism.pipeline"
        yield Problem(where, shown(stages), why, f"at most {most}", ReasonCode.OUT_OF_RANGE)


def _check_experts(host: RoleName, ranks: int, models: set[Sizes | None]) -> Iterator[Problem]:
    """Experts that cannot be dealt to so many ranks, of models that live in the same pods."""
    where = f"spec.roles.{host}.parallelism.expert"
    counts = {0 if sizes is None else sizes.experts for sizes in models}
    if ranks > 1 and not any(counts) and None not in models:
        why = "no model of these pods has experts"
        yield Problem(where, shown(ranks), why, "remove it", ReasonCode.NO_EFFECT)
    elif (most := gcd(*counts)) % ranks:
        why = "so many ranks share the experts of each layer"
        yield Problem(where, shown(ranks), why, f"a divisor of {most}", ReasonCode.OUT_OF_RANGE)


def _check_routers(spec: PPOJobSpec) -> Iterator[Problem]:
    """Settings of routers, of a model that has none."""
    sizes, replay = sizes_of(spec.model.path), spec.algorithm.router_replay
    if sizes is None:
        return
    mixture = FAMILIES[sizes.model_type].mixture
    if mixture is not None:
        if mixture.correction and spec.algorithm.has_router_losses:
            yield Problem(
                "spec.algorithm",
                "losses of routers",
                f"those of {sizes.model_type} choose experts by a bias too: not in this version",
                "neither routerBalanceCoefficient nor routerZCoefficient",
                ReasonCode.NOT_IN_THIS_VERSION,
            )
        return
    why, allowed = f"a model of {sizes.model_type} has no routers", "remove it"
    if replay != "none":
        where = "spec.algorithm.routerReplay"
        yield Problem(where, shown(replay), why, allowed, ReasonCode.NO_EFFECT)
    for where, weight in (
        ("spec.algorithm.routerBalanceCoefficient", spec.algorithm.router_balance_coefficient),
        ("spec.algorithm.routerZCoefficient", spec.algorithm.router_z_coefficient),
    ):
        if weight:
            yield Problem(where, shown(weight), why, allowed, ReasonCode.NO_EFFECT)
    if spec.model.freeze_routers:
        where = "spec.model.freezeRouters"
        yield Problem(where, shown(True), why, allowed, ReasonCode.NO_EFFECT)


def _check_tower(spec: PPOJobSpec) -> Iterator[Problem]:
    """What is said of a tower and of pictures, of a model that is never shown one."""
    folder, sizes = spec.model.path, sizes_of(spec.model.path)
    said = {
        "spec.model.freezeVisionTower": None if spec.model.freeze_vision_tower else False,
        "spec.data.maxPicturePixels": spec.data.max_picture_pixels,
        "spec.data.minPicturePixels": spec.data.min_picture_pixels,
    }
    if sizes is None:
        return
    why = f"a model of {sizes.model_type} sees no pictures"
    if FAMILIES[sizes.model_type].sees_pictures:
        if PictureForm.read(Path(folder)) is not None:
            return
        why = f"{folder} has no processor of pictures, so it is shown none"
    for where, value in said.items():
        if value is not None:
            yield Problem(where, shown(value), why, "remove it", ReasonCode.NO_EFFECT)


def _check_engines(spec: PPOJobSpec) -> Iterator[Problem]:
    """Models that an engine has not, and what it does not compute of them."""
    tensor, sizes = spec.rollout.parallelism.tensor, sizes_of(spec.model.path)
    if sizes is None or spec.algorithm.given:
        return
    if spec.rollout.engine == "vllm" and not FAMILIES[sizes.model_type].is_in_vllm:
        yield Problem(
            "spec.rollout.engine",
            shown(spec.rollout.engine),
            f"vLLM has no model of {sizes.model_type} of its own, and would change transformers' "
            "for the trainer too",
            "huggingface",
            ReasonCode.CONFLICT,
        )
    if spec.rollout.engine == "vllm" and sizes.latents and sizes.latents.cached != VLLM_LATENT:
        yield Problem(
            "spec.rollout.engine",
            shown(spec.rollout.engine),
            f"vLLM has no kernel for latents of {sizes.latents.cached} numbers a token",
            f"huggingface, or a model with {VLLM_LATENT} of them (kv_lora_rank + qk_rope_head_dim)",
            ReasonCode.CONFLICT,
        )
    own_kind = "of a mixture of experts" if sizes.experts else "of linear attention"
    own_kind = "of layers that differ" if sizes.apart else own_kind
    has_own_kind = sizes.experts or sizes.states or sizes.apart
    if spec.rollout.engine == "vllm" and has_own_kind and spec.adapters_of_engines is not None:
        yield Problem(
            "spec.rollout.adapters",
            shown(spec.rollout.adapters),
            f"adapters beside the weights {own_kind} in vLLM: not in this version",
            "merged, or engine: huggingface",
            ReasonCode.NOT_IN_THIS_VERSION,
        )
    is_half = spec.rollout.engine == "vllm" and spec.rollout.dtype == "float16"
    if is_half and sizes.model_type in NO_FLOAT16_IN_VLLM:
        yield Problem(
            "spec.rollout.dtype",
            shown(spec.rollout.dtype),
            f"numbers of {sizes.model_type} become too large for it, and vLLM does not take it",
            "bfloat16 or float32",
            ReasonCode.CONFLICT,
        )
    is_on_cpu = (spec.roles.rollout or spec.roles.actor_rollout).gpus_per_replica == 0
    if (
        spec.rollout.engine == "vllm"
        and sizes.states
        and is_on_cpu
        and spec.rollout.dtype != "bfloat16"
    ):
        yield Problem(
            "spec.rollout.dtype",
            shown(spec.rollout.dtype),
            f"vLLM computes linear attention of {sizes.model_type} in one type on processors",
            "bfloat16, or engine: huggingface",
            ReasonCode.CONFLICT,
        )
    if tensor > 1:
        yield from _check_engine_ranks(spec, sizes)


def _check_engine_ranks(spec: PPOJobSpec, sizes: Sizes) -> Iterator[Problem]:
    """Heads and features that the ranks of an engine cannot share; of key heads each has one."""
    tensor = spec.rollout.parallelism.tensor
    most, keys = (
        gcd(sizes.heads, sizes.inner, sizes.shared, sizes.plain),
        sizes.numbers_of_key_heads,
    )
    if sizes.states:
        most = gcd(most, sizes.states.key_heads)
    fitting = [
        n
        for n in range(1, most + 1)
        if most % n == 0 and not any(own % n and n % own for own in keys)
    ]
    if tensor not in fitting:
        yield Problem(
            "spec.rollout.parallelism.tensor",
            shown(tensor),
            f"so many ranks share {sizes.heads} query heads, {' or '.join(map(str, keys))} key "
            f"heads and {sizes.inner} "
            f"inner features of {spec.model.path}",
            f"one of {', '.join(map(str, fitting))}",
            ReasonCode.OUT_OF_RANGE,
        )


def check_targets(lora: LoraSpec, folder: str, where: str) -> Iterator[Problem]:
    """Targets that no layer of a model is called; nothing where its folder is wrong.

    `where` is the section of the adapters.
    """
    if (sizes := sizes_of(folder)) is None:
        return
    names = {
        name.rpartition(".")[2]
        for layer in range(sizes.layers)
        for name in linear_layers(sizes, layer)
    }
    if lora.experts:
        yield from _check_expert_adapters(lora, sizes, where)
        names |= {name.rpartition(".")[2] for name in expert_layers(sizes)}
    for index, target in enumerate(lora.target_modules or ()):
        if target not in names | {ALL_LINEAR}:
            near = difflib.get_close_matches(target, names, n=1, cutoff=NEAR)
            meant = f", did you mean {near[0]}" if near else ""
            mixture = FAMILIES[sizes.model_type].mixture
            is_expert = mixture is not None and target in mixture.matrices
            yield Problem(
                f"{where}.targetModules[{index}]",
                shown(target),
                "experts of a mixture take none without experts: true"
                if is_expert
                else f"no linear layer of the model is called so{meant}",
                f"{', '.join(sorted(names))}; without the field all of them",
                ReasonCode.NOT_ONE_OF,
            )


def _check_expert_adapters(lora: LoraSpec, sizes: Sizes, where: str) -> Iterator[Problem]:
    """What keeps experts from having adapters."""
    mixture, matrices = FAMILIES[sizes.model_type].mixture, expert_layers(sizes)
    if mixture is not None and mixture.is_stacked:
        why = f"experts of {sizes.model_type} lie in one tensor: not in this version"
        reason = ReasonCode.NOT_IN_THIS_VERSION
        yield Problem(f"{where}.experts", shown(True), why, "remove it", reason)
    elif not any(map(lora.adapts, matrices)):
        why = f"no target is a matrix of an expert of {sizes.model_type}"
        reason = ReasonCode.NO_EFFECT
        yield Problem(f"{where}.experts", shown(True), why, "remove it", reason)
    if lora.rank % ALIGNED:
        why, allowed = "experts are multiplied in groups", f"a multiple of {ALIGNED}"
        yield Problem(f"{where}.rank", shown(lora.rank), why, allowed, ReasonCode.OUT_OF_RANGE)
    if lora.dropout:
        why, reason = "of experts: not in this version", ReasonCode.NOT_IN_THIS_VERSION
        yield Problem(f"{where}.dropout", shown(lora.dropout), why, "0, or no experts", reason)


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
