"""Checks of parallel layout, engine and adapters against the job's models."""

import difflib
from collections.abc import Iterator
from math import gcd
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.suggestions import NEAR
from ppojob_api.topology import model_pods
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.model import ALL_LINEAR, FROM_BASE, LoraSpec
from ppojob_api.well_known import RoleName
from ppojob_trainer.data.media.image_form import ImageForm, ResizableImageForm, audio_form_of
from ppojob_trainer.data.media.image_forms import is_drawn_causally, read_form, why_no_media
from ppojob_trainer.models.adapter_names import LAYERS
from ppojob_trainer.models.architectures import (
    EMBEDDING,
    HEAD,
    Sizes,
    expert_weights,
    linear_layers,
    saved_weights,
    sizes_of,
)
from ppojob_trainer.models.config_files import file_name, layers_name_in, read_config
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.kinds import JUDGE
from ppojob_trainer.models.mixtures import ALIGNED
from ppojob_trainer.models.mtp_forms import MTP_FORMS, is_mtp_weight, mtp_layer_count
from ppojob_trainer.models.per_layer_sizes import count_in
from ppojob_trainer.models.problems import ModelReason, read_object
from ppojob_trainer.models.weight_files import read_weights

NO_FLOAT16_IN_VLLM: Final = frozenset({"gemma2", "gemma3_text", "glm4", "glm4v", "glm_ocr"})
"""Model types that vLLM does not run in float16, whose range their activations exceed."""

DEALT_KEY_HEADS: Final = frozenset({"gpt_oss", "olmoe"})
"""Model types whose key heads vLLM cannot replicate over the ranks of an engine."""

PLAIN_IN_VLLM: Final = frozenset({"gpt2", "minicpm3", "stablelm", "youtu"})
"""Model types whose vLLM class supports no LoRA, or ignores some adapters."""

OWN_HEADS: Final = frozenset(
    {
        *("afmoe", "deepseek_v2", "deepseek_v3", "dots1", "glm4_moe", "glm4_moe_lite"),
        *("mistral4", "solar_open", "gpt_oss", "minimax_m2", "olmoe", "qwen3_next"),
    }
)
"""Model types to which vLLM gives a separate output layer even if it is tied.

Engines are sent one; a server would use uninitialized weights.
"""

ALWAYS_TIED: Final = frozenset({"cohere", "cohere2", "cohere2_moe", "gemma2", "lfm2", "lfm2_moe"})
"""Model types whose output layer vLLM always ties, whatever config.json says."""

NOT_IN_VLLM: Final = frozenset({"bamba"})
"""Model types that vLLM has no class for."""

_OF_TORCHVISION: Final = (
    *("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker", "qwen3_vl", "qwen3_vl_moe"),
    *("qwen3_omni_moe_thinker", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe"),
    *("glm4v", "glm4v_moe", "glm_ocr", "llama4", "gemma3", "gemma4", "gemma4_unified", "mistral3"),
    *("lfm2_vl", "lighton_ocr", "llava", "llava_next", "llava_onevision", "internvl", "smolvlm"),
)
"""Model types of folders for which vLLM's own classes import torchvision; engines have others."""

NOT_SERVED: Final = {
    **dict.fromkeys((*NOT_IN_VLLM, "aya_vision", "ovis2"), "has no class for it"),
    **dict.fromkeys(_OF_TORCHVISION, "imports torchvision for it, which is not installed"),
    "laguna": "does not read the bias of its routers",
    "mistral4": "has no kernel for its latents",
    "phimoe": "does not add the bias of its output layer",
}
"""Model types of folders, or of the language model in one, that a server of vLLM does not compute,
and why; engines do, as they are told.
"""

_TIES: Final = "ties the output layer to the embedding, which this model does not"

VLLM_LATENT: Final = 576
"""MLA latent sizes that vLLM's kernels support: DeepSeek-V3's 512 and 64."""


def check_layouts(spec: PPOJobSpec) -> Iterator[Problem]:
    """Report models that cannot be sharded as their layout says; folders with other problems pass.

    Ranks get whole heads and layers. The vocabulary need not divide evenly.
    """
    yield from _check_engines(spec)
    yield from _check_judge(spec)
    yield from _check_routers(spec)
    yield from _check_mtp(spec)
    yield from _check_tiles(spec)
    yield from _check_tower(spec)
    pods = model_pods(spec.roles)
    references = spec.reference_paths if spec.algorithm.has_reference else ()
    folders: list[tuple[RoleName, str | None]] = [
        ("actorRollout", spec.model.path),
        *(("reference", folder) for folder in references),
        *(("critic", folder) for folder in spec.critic_paths),
        ("rewardModel", spec.reward_model.path if spec.reward_model else None),
    ]
    # A role without its own pods shares those of the policy.
    hosted = {(role if role in pods else "actorRollout", folder) for role, folder in folders}
    for host, pod in pods.items():
        own = {sizes_of(folder) for where, folder in hosted if where == host and folder}
        where = f"spec.roles.{host}.parallelism.expert"
        yield from _check_experts(where, pod.parallelism.expert, own)
    for host, folder in sorted((host, folder) for host, folder in hosted if folder):
        layout, sizes = pods[host].parallelism, sizes_of(folder)
        if sizes is None:
            continue
        heads, tensor = gcd(*sizes.numbers_of_heads), layout.tensor
        attention = map(sizes.attention, range(sizes.layers))
        keys = (own.key_heads * own.head_size for own in attention)  # a shared head has parts
        most = gcd(heads, *keys, sizes.inner, sizes.shared, sizes.plain)
        if sizes.experts:
            most = gcd(most, sizes.inner // ALIGNED)
        where = f"spec.roles.{host}.parallelism"
        if tensor not in (fitting := _fitting(most, sizes)):
            why = _why_tensor(sizes, sizes.inner, folder)
            yield _out_of_range(f"{where}.tensor", tensor, why, _one_of(fitting))
        else:
            heads //= tensor
        if states := sizes.recurrence:  # each rank has a copy of its Mamba-2 groups
            heads = gcd(heads, states.heads if states.kind.rule == "mamba" else states.key_heads)
        if heads % layout.sequence:
            of_states = " and those of its layers with states" if sizes.recurrence else ""
            why = f"the query heads of {folder}{of_states} are split over the ranks"
            yield _out_of_range(f"{where}.sequence", layout.sequence, why, f"a divisor of {heads}")
        yield from _check_pipeline(f"{where}.pipeline", layout.pipeline, folder, sizes)


def _fitting(most: int, sizes: Sizes) -> list[int]:
    """Return the divisors of a number such that ranks have whole key heads, or share one evenly."""
    keys = sizes.numbers_of_key_heads
    return [
        ranks
        for ranks in range(1, most + 1)
        if most % ranks == 0 and not any(own % ranks and ranks % own for own in keys)
    ]


def _one_of(fitting: list[int]) -> str:
    return f"one of {', '.join(map(str, fitting))}"


def _why_tensor(sizes: Sizes, inner: int, folder: str) -> str:
    heads = " or ".join(map(str, sizes.numbers_of_heads))
    keys = " or ".join(map(str, sizes.numbers_of_key_heads))
    return (
        f"tensor parallelism splits {heads} query heads, {keys} key heads and {inner} inner "
        f"features of {folder}"
    )


def _out_of_range(where: str, value: object, why: str, allowed: str) -> Problem:
    return Problem(where, shown(value), why, allowed, ReasonCode.OUT_OF_RANGE)


def _no_effect(where: str, value: object, why: str) -> Problem:
    return Problem(where, shown(value), why, "remove it", ReasonCode.NO_EFFECT)


def _conflict(where: str, value: object, why: str, allowed: str) -> Problem:
    return Problem(where, shown(value), why, allowed, ReasonCode.CONFLICT)


def _not_yet(where: str, value: object, what: str, allowed: str = "remove it") -> Problem:
    why = f"{what}: not in this version"
    return Problem(where, shown(value), why, allowed, ReasonCode.NOT_IN_THIS_VERSION)


def _check_pipeline(where: str, stages: int, folder: str, sizes: Sizes) -> Iterator[Problem]:
    """Report layers that cannot be split into pipeline stages, which pass hidden states only."""
    why, most = f"each pipeline stage needs at least one layer of {folder}", sizes.layers
    if sizes.per_layer and not all(one.has_keys for one in sizes.per_layer.attention):
        why, most = f"layers of {folder} share keys and values with earlier layers", 1
    elif sizes.per_layer and sizes.per_layer.layer_embedding:
        why, most = f"{folder} has an embedding for each layer", 1
    elif sizes.positions:
        why, most = f"only the first layer of {folder} gets positions", 1
    elif FAMILIES[sizes.model_type].norms_embeddings:
        why, most = f"one norm of {folder} is before its layers and behind them", 1
    if most < stages:
        yield _out_of_range(where, stages, why, f"at most {most}")


def _check_experts(where: str, ranks: int, models: set[Sizes | None]) -> Iterator[Problem]:
    """Report expert counts not divisible by the ranks, of models in the same pods."""
    counts = {0 if sizes is None else sizes.experts for sizes in models}
    if ranks > 1 and not any(counts) and None not in models:
        yield _no_effect(where, ranks, "no model of these pods is a mixture of experts")
    elif (most := gcd(*counts)) % ranks:
        why = "expert parallelism splits the experts of each layer"
        yield _out_of_range(where, ranks, why, f"a divisor of {most}")


def _check_routers(spec: PPOJobSpec) -> Iterator[Problem]:
    sizes, algorithm = sizes_of(spec.model.path), spec.algorithm
    if sizes is None:
        return
    kind, mixture, replay = sizes.model_type, sizes.mixture, algorithm.router_replay
    rate = "spec.algorithm.routerBiasRate", algorithm.router_bias_rate
    if mixture is None:
        for where, value in (
            ("spec.algorithm.routerReplay", None if replay == "none" else replay),
            ("spec.algorithm.routerBalanceCoefficient", algorithm.router_balance_coefficient),
            ("spec.algorithm.routerZCoefficient", algorithm.router_z_coefficient),
            rate,
            ("spec.model.freezeRouters", spec.model.freeze_routers),
        ):
            if value:
                yield _no_effect(where, value, f"a model of {kind} has no routers")
        return
    if mixture.selection_bias and algorithm.has_router_losses:
        why = f"router training of {kind}, which selects experts with a bias: not in this version"
        allowed = "neither routerBalanceCoefficient nor routerZCoefficient"
        reason = ReasonCode.NOT_IN_THIS_VERSION
        yield Problem("spec.algorithm", "losses of routers", why, allowed, reason)
    if not mixture.selection_bias and algorithm.router_bias_rate:
        yield _no_effect(*rate, f"routers of {kind} have no expert bias")
    if replay == "rollout" and spec.rollout.engine == "vllm" and sizes.recurrence:
        why = (
            "vLLM tells experts where it keeps prefixes alone, and keeps none of models with "
            f"states, as {kind}"
        )
        allowed = "recompute, or spec.rollout.engine: huggingface"
        yield _conflict("spec.algorithm.routerReplay", replay, why, allowed)


def _check_tiles(spec: PPOJobSpec) -> Iterator[Problem]:
    sizes, tokens = sizes_of(spec.model.path), spec.training.mlp_tile_tokens
    if sizes is None or not tokens or any(map(sizes.has_tiles, range(sizes.layers))):
        return
    why = f"{sizes.model_type} has MoE feed-forward blocks, or none as a module of its own"
    yield _no_effect("spec.training.mlpTileTokens", tokens, why)


def _check_mtp(spec: PPOJobSpec) -> Iterator[Problem]:
    folder = Path(spec.model.path)
    if spec.model.mtp is None or isinstance(config := read_config(folder / "config.json"), Problem):
        return
    kind, count = str(config.get("model_type")), mtp_layer_count(config)
    got, why, allowed = f"a model of {kind}", "", "remove it"
    reason: ReasonCode | ModelReason = ReasonCode.NOT_IN_THIS_VERSION
    weights, layers = read_weights(folder), count_in(config, "num_hidden_layers") or None
    if kind not in MTP_FORMS:
        why = "MTP layers of such models are not trained"
        allowed = f"a model of {', '.join(MTP_FORMS)}, or remove it"
    elif count != 1:
        why = f"{spec.model.path} has {count} MTP layers, not one"
    elif weights.files and not any(is_mtp_weight(name, layers) for name in weights.files):
        why = f"the files of {spec.model.path} have no weights of the MTP layer"
        allowed, reason = "a folder that has them, or remove it", ModelReason.WEIGHTS_MISSING
    if why:
        yield Problem("spec.model.mtp", got, why, allowed, reason)


def _check_tower(spec: PPOJobSpec) -> Iterator[Problem]:
    """Report image and tower settings of a model that gets no images."""
    folder, sizes = spec.model.path, sizes_of(spec.model.path)
    said = {
        "spec.model.freezeVisionTower": None if spec.model.freeze_vision_tower else False,
        "spec.data.maxImagePixels": spec.data.max_image_pixels,
        "spec.data.minImagePixels": spec.data.min_image_pixels,
    }
    form = read_form(Path(folder))
    if said["spec.model.freezeVisionTower"] is False and is_drawn_causally(spec, form):
        why = "vLLM on GPUs supports only text for this model, so its vision tower would not train"
        allowed = "remove it, or engine: huggingface"
        yield _conflict("spec.model.freezeVisionTower", False, why, allowed)
    hears = audio_form_of(form) is not None
    if sizes is None or (isinstance(form, ResizableImageForm) and not hears):
        return
    config = read_object(Path(folder) / "config.json", ModelReason.BAD_CONFIG)
    kind = sizes.model_type if isinstance(config, Problem) else config.get("model_type")
    why = f"a model of {kind} has no image input"
    if hears:
        sees = isinstance(form, ImageForm)
        if sees:
            del said["spec.data.maxImagePixels"], said["spec.data.minImagePixels"]
        beside = "so does what sees" if sees else "sees no images"
        why = f"{folder} has a frozen audio encoder, and {beside}"
    elif form is not None:
        del said["spec.model.freezeVisionTower"]
        why = f"the processor of {kind} sets the size of images"
    elif reason := why_no_media(Path(folder)):
        why = f"{reason}, so it gets none"
    for where, value in said.items():
        if value is not None:
            yield _no_effect(where, value, why)


def _not_vllm(why: str, allowed: str = "huggingface") -> Problem:
    return _conflict("spec.rollout.engine", "vllm", why, allowed)


def _check_engines(spec: PPOJobSpec) -> Iterator[Problem]:
    sizes = sizes_of(spec.model.path)
    if sizes is None or spec.algorithm.given:
        return
    if spec.rollout.engine == "vllm":
        yield from _check_vllm(spec, sizes)
        if (spec.roles.rollout or spec.roles.actor_rollout).gpus_per_replica == 0:
            yield from _check_vllm_on_processors(spec, sizes)
    if spec.rollout.parallelism.tensor > 1:
        dealt = spec.rollout.parallelism.expert
        yield from _check_engine_ranks(spec, sizes)
        yield from _check_experts("spec.rollout.parallelism.expert", dealt, {sizes})


def _check_judge(spec: PPOJobSpec) -> Iterator[Problem]:
    """Report a judge that vLLM does not support; it serves it whatever the policy's engine is."""
    if spec.judge is None or (sizes := sizes_of(spec.judge.path)) is None:
        return
    kind = f"a model of {sizes.model_type}"
    if sizes.is_tied and sizes.model_type in OWN_HEADS:
        why = "vLLM serves it, and does not tie the output layer to the embedding"
        allowed = "one with an output layer of its own"
        got = f"{kind} with tie_word_embeddings"
        yield Problem(JUDGE.where, got, why, allowed, ReasonCode.CONFLICT)
    config = read_object(Path(spec.judge.path) / "config.json", ModelReason.BAD_CONFIG)
    whole = "" if isinstance(config, Problem) else str(config.get("model_type"))
    if reason := NOT_SERVED.get(whole) or NOT_SERVED.get(sizes.model_type):
        why = f"vLLM serves it, and {reason}"
        got = f"a model of {whole or sizes.model_type}"
        yield Problem(JUDGE.where, got, why, "another model", ReasonCode.CONFLICT)
    if _is_untied_there(sizes):
        why = f"vLLM serves it, and {_TIES}"
        got, allowed = f"{kind} without tie_word_embeddings", "one without such a layer"
        yield Problem(JUDGE.where, got, why, allowed, ReasonCode.CONFLICT)


def _is_untied_there(sizes: Sizes) -> bool:
    """Whether a model has an untied output layer that vLLM would ignore."""
    return not sizes.is_tied and sizes.model_type in ALWAYS_TIED


def _check_vllm(spec: PPOJobSpec, sizes: Sizes) -> Iterator[Problem]:
    model = f"model of {sizes.model_type}"
    if sizes.model_type in NOT_IN_VLLM:
        yield _not_vllm(f"vLLM has no class for a {model}")
        return
    if _is_untied_there(sizes):
        yield _not_vllm(f"vLLM {_TIES} in a {model} without tie_word_embeddings")
    if sizes.is_tied and FAMILIES[sizes.model_type].has_head_bias:
        yield _not_vllm(f"vLLM has no bias of an output layer that is the embedding of a {model}")
    caches_heads = FAMILIES[sizes.model_type].caches_heads
    if sizes.mla and not caches_heads and sizes.mla.cached != VLLM_LATENT:
        yield _not_vllm(
            f"vLLM has no kernel for latents of {sizes.mla.cached} numbers a token",
            f"huggingface, or a model with {VLLM_LATENT} of them (kv_lora_rank + qk_rope_head_dim)",
        )
    own_kind = "of a mixture of experts" if sizes.experts else "of layers with states"
    own_kind = "of layers that differ" if sizes.per_layer else own_kind
    has_own_kind = sizes.experts or sizes.recurrence or sizes.per_layer
    beside, drafts, kind = spec.adapters_of_engines, spec.rollout.drafts, sizes.model_type
    if sizes.model_type in PLAIN_IN_VLLM:
        own_kind, has_own_kind = f"of {sizes.model_type}", True
    if beside is not None and beside.weight_decomposed:
        own_kind, has_own_kind = "with lengths of their rows (lora.weightDecomposed)", True
    if has_own_kind and beside is not None:
        what, allowed = f"unmerged adapters {own_kind} in vLLM", "merged, or engine: huggingface"
        yield _not_yet("spec.rollout.adapters", spec.rollout.adapters, what, allowed)
    if drafts and sizes.recurrence:
        what = f"layers with states of {kind} cannot go back behind a guess that was wrong"
        yield _not_yet("spec.rollout.drafts", drafts, what)
    if spec.rollout.dtype == "float16" and kind in NO_FLOAT16_IN_VLLM:
        why = f"values of {kind} overflow float16, and vLLM refuses it"
        yield _conflict("spec.rollout.dtype", "float16", why, "bfloat16 or float32")


def _check_vllm_on_processors(spec: PPOJobSpec, sizes: Sizes) -> Iterator[Problem]:
    kind = sizes.recurrence and sizes.recurrence.kind
    if sizes.mixture is not None and len(sizes.mixture.matrices) == 2:
        who = f"experts without gates, as those of {sizes.model_type}"
        yield _not_vllm(f"vLLM computes {who} on GPUs only")
    if kind:
        types = ("bfloat16",) if kind.rule == "delta" else ("bfloat16", "float32")
        if spec.rollout.dtype not in types:
            own = f"layers with states of {sizes.model_type}"
            why = f"vLLM does not compute {own} in it on processors"
            allowed = f"{' or '.join(types)}, or engine: huggingface"
            yield _conflict("spec.rollout.dtype", spec.rollout.dtype, why, allowed)


def _check_engine_ranks(spec: PPOJobSpec, sizes: Sizes) -> Iterator[Problem]:
    """Report heads and widths that the engine's ranks cannot share; each has a key head."""
    tensor = spec.rollout.parallelism.tensor
    inner = sizes.plain if spec.rollout.parallelism.expert > 1 else sizes.inner
    most = gcd(*sizes.numbers_of_heads, inner, sizes.shared, sizes.plain)
    if sizes.model_type in DEALT_KEY_HEADS:
        most = gcd(most, *sizes.numbers_of_key_heads)
    of_states = ""
    if sizes.recurrence:
        most = gcd(most, sizes.recurrence.key_heads)
        of_states = f", and {sizes.recurrence.key_heads} groups of its layers with states"
    fitting = _fitting(most, sizes)
    if tensor not in fitting:
        why = _why_tensor(sizes, inner, spec.model.path) + of_states
        yield _out_of_range("spec.rollout.parallelism.tensor", tensor, why, _one_of(fitting))


def check_targets(lora: LoraSpec, folder: str, where: str) -> Iterator[Problem]:
    """Report LoRA targets of the section `where` that match no layer of a readable model."""
    if (sizes := sizes_of(folder)) is None:
        return
    names = {
        name.rpartition(".")[2]
        for layer in range(sizes.layers)
        for name in linear_layers(sizes, layer)
    }
    if lora.base_type is not None and not sizes.takes_nf4:
        kind = "mixture of experts" if sizes.mixture else "model"
        yield _not_yet(f"{where}.baseType", lora.base_type, f"of a {kind}, {sizes.model_type}")
    if lora.init in FROM_BASE:
        matrices = [linear_layers(sizes, layer) for layer in range(sizes.layers)]
        found = [(min(shape), name) for one in matrices for name, shape in one.items()]
        most, name = min((one for one in found if lora.adapts(one[1])), default=(lora.rank, ""))
        if lora.rank > most:
            why = f"{lora.init} takes so many vectors of each matrix, and {name} has {most}"
            allowed = f"at most {most}, or {where}.targetModules without {name.rpartition('.')[2]}"
            yield _out_of_range(f"{where}.rank", lora.rank, why, allowed)
    if lora.modules_to_save:
        yield from _check_whole_layers(lora, sizes, folder, f"{where}.modulesToSave")
    if lora.weight_decomposed and FAMILIES[sizes.model_type].is_transposed:
        what = f"with the weight matrices of {sizes.model_type}"
        yield _not_yet(f"{where}.weightDecomposed", True, what)
    if lora.experts:
        yield from _check_expert_adapters(lora, sizes, where)
        names |= _expert_targets(sizes)
    for index, target in enumerate(lora.target_modules or ()):
        if target not in names | {ALL_LINEAR}:
            near = difflib.get_close_matches(target, names, n=1, cutoff=NEAR)
            meant = f", did you mean {near[0]}" if near else ""
            yield Problem(
                f"{where}.targetModules[{index}]",
                shown(target),
                "adapters of MoE experts need experts: true"
                if target in _expert_targets(sizes)
                else f"the model has no linear layer of this name{meant}",
                f"{', '.join(sorted(names))}; without the field all of them",
                ReasonCode.NOT_ONE_OF,
            )


def _check_whole_layers(lora: LoraSpec, sizes: Sizes, folder: str, where: str) -> Iterator[Problem]:
    own = list(lora.modules_to_save or ())
    if layers_name_in(folder) != LAYERS or file_name(EMBEDDING, sizes.model_type) != EMBEDDING:
        yield _not_yet(where, own, f"of {sizes.model_type}")
    elif sizes.is_tied and HEAD in saved_weights(lora):
        why = "the model's output layer is its embedding"
        yield _conflict(where, own, why, "[embed_tokens], which trains both")


def _expert_targets(sizes: Sizes) -> set[str]:
    """Return target names of expert matrices; stacks also by the name of their module."""
    weights = expert_weights(sizes)
    stacks = {".".join(name.split(".")[-2:]) for name in weights if not name.endswith(".weight")}
    return stacks | {name.removesuffix(".weight").rpartition(".")[2] for name in weights}


def _check_expert_adapters(lora: LoraSpec, sizes: Sizes, where: str) -> Iterator[Problem]:
    names = (name.removesuffix(".weight") for name in expert_weights(sizes))
    if not any(map(lora.adapts, names)):
        why = f"no target module is an expert weight of {sizes.model_type}"
        yield _no_effect(f"{where}.experts", True, why)
    if lora.rank % ALIGNED:
        why = "grouped matrix products of experts need it aligned"
        yield _out_of_range(f"{where}.rank", lora.rank, why, f"a multiple of {ALIGNED}")
    if lora.dropout:
        yield _not_yet(f"{where}.dropout", lora.dropout, "of experts", "0, or no experts")
    if lora.weight_decomposed:
        yield _not_yet(f"{where}.weightDecomposed", True, "of experts", "false, or no experts")
