"""MoE feed-forward blocks: their tensors, and checks of their sizes.

A router sends each token to its most probable experts, whose outputs are summed, weighted by those
probabilities (Shazeer et al. 2017, arXiv:1701.06538). Does not import torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ppojob_api.problem import ABSENT, Problem, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.family import BIAS_MODULE, CORRECTION, EXPERT_BIAS, MixtureOfExperts
from ppojob_trainer.models.hybrid_layers import EXPERTS, layer_types
from ppojob_trainer.models.per_layer_sizes import count_in
from ppojob_trainer.models.problems import ModelReason

STACKS: Final = ("gate_up_proj", "down_proj")
"""Names of stacked expert tensors of a layer."""
LATENT: Final = ("fc1_latent_proj", "fc2_latent_proj")
"""Names in a block of the projections to the width that experts compute in, and from it."""
ALIGNED: Final = 8
"""Divisor of widths: PyTorch's grouped products need rows of whole 16 bytes."""
WIDTHS: Final = range(1, 2**31)
_COUNTS: Final = range(1, 10_001)


def stays_float32(name: str) -> bool:
    """Whether a weight is float32 in training and in engines, whatever the others' dtype.

    Rounding a router's selection bias would change the experts. A gated delta network's decay is an
    exponential of its weight, which vLLM keeps in float32.
    """
    return name.endswith((CORRECTION, EXPERT_BIAS, ".A_log"))


def is_sent_float32(name: str) -> bool:
    """Whether engines get a weight in float32: vLLM keeps some routers so, and rounds others."""
    return stays_float32(name) or name.endswith(".gate.weight")


def experts_key(config: Mapping[str, Json]) -> str:
    """Return the config.json key of the number of experts per layer.

    The hub's folders use their family's key; transformers 5 writes another one for Qwen3.
    """
    names = ("n_routed_experts", "num_local_experts", "moe_num_experts")
    return next((name for name in names if name in config), "num_experts")


def top_k_key(config: Mapping[str, Json]) -> str:
    """Return the config.json key of the number of experts per token (top-k)."""
    names = ("moe_k", "top_k_experts", "moe_topk")
    return next((name for name in names if name in config), "num_experts_per_tok")


def top_k_of(config: Mapping[str, Json]) -> Json:
    """Return the number of experts per token, which Hunyuan's folders list for each layer."""
    value = config.get(top_k_key(config))
    return value[0] if isinstance(value, list) and value == value[:1] * len(value) else value


def mixture_in(config: Mapping[str, Json]) -> MixtureOfExperts | None:
    """Return the family's MoE description, None for a dense model of the same family."""
    family = FAMILIES[str(config["model_type"])]
    kinds = layer_types({**family.defaults, **config}) if family.has_one_block else None
    is_plain = config.get(experts_key(config)) == 0 if kinds is None else EXPERTS not in kinds
    mixture = family.mixture
    if mixture and mixture.enabled_by:
        is_plain = config.get(mixture.enabled_by) is not True
    if mixture and config.get(mixture.scoring_key) == "sigmoid":
        mixture = replace(mixture, scoring="sigmoid")
    return None if is_plain else mixture


def dense_layers(config: Mapping[str, Json], mixture: MixtureOfExperts) -> frozenset[int]:
    """Return the numbers of an MoE model's layers that have a dense block in place of experts."""
    first, interval = count_in(config, mixture.dense_first), count_in(config, mixture.interval) or 1
    named = config.get("mlp_only_layers") if mixture.interval else None
    named = named if isinstance(named, list) else []
    layers = range(min(count_in(config, "num_hidden_layers"), _COUNTS.stop))
    return frozenset(n for n in layers if n < first or (n + 1) % interval or n in named)


def required_sizes(config: Mapping[str, Json]) -> dict[str, range]:
    """Return the required feed-forward sizes in config.json, and their allowed ranges."""
    family = FAMILIES[str(config["model_type"])]
    mixture, own = mixture_in(config), family.feed_forward
    inner = "intermediate_size" if own is None else own.inner
    if mixture is None:
        return {inner: WIDTHS}
    plain = (inner,) if own or dense_layers(config, mixture) else ()
    widths = dict.fromkeys((*plain, mixture.inner, *mixture.shared_inner), WIDTHS)
    if mixture.may_share_none:
        widths[(*plain, *mixture.shared_inner)[-1]] = range(WIDTHS.stop)
    if mixture.interval:
        widths[mixture.interval] = _COUNTS
    return {experts_key(config): _COUNTS, **widths}


def expert_tensors(
    mixture: MixtureOfExperts, experts: int, *, hidden: int, inner: int, latent: int = 0
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return the names in a layer and shapes of an MoE block's tensors: router and experts.

    `latent` is the width that experts read and write, if it is not `hidden`.
    """
    router = mixture.within(mixture.router)
    yield f"{router}.{mixture.router_weight}", (experts, hidden)
    if mixture.has_scales:
        yield f"{router}.scale", (hidden,)
        yield f"{router}.per_expert_scale", (experts,)
    if mixture.is_clamped:
        yield f"{router}.bias", (experts,)
    if mixture.is_stacked:
        at = mixture.within("experts")
        for name, (into, out) in {
            "gate_up_proj": (hidden, 2 * inner),
            "down_proj": (inner, hidden),
        }.items():
            yield f"{at}.{name}", (experts, *((out, into) if mixture.is_out_first else (into, out)))
        if mixture.is_clamped:
            yield f"{at}.gate_up_proj_bias", (experts, 2 * inner)
            yield f"{at}.down_proj_bias", (experts, hidden)
        return
    if mixture.selection_bias:
        shape = (1, experts) if mixture.selection_bias.startswith(BIAS_MODULE) else (experts,)
        yield f"{mixture.block}.{mixture.selection_bias}", shape
    width = latent or hidden
    for expert in range(experts):
        back = mixture.matrices[-1]
        for matrix in mixture.matrices:
            shape = (width, inner) if matrix == back else (inner, width)
            yield f"{mixture.block}.experts.{expert}.{matrix}.weight", shape


def layers_beside_experts(
    mixture: MixtureOfExperts, *, hidden: int, inner: int, latent: int
) -> dict[str, tuple[int, int]]:
    """Return the linear layers of an MoE block besides experts, by their names in a layer.

    Those are of the shared expert, of width `inner` if there is one, and projections to and from
    the `latent` width of the others, if it is not `hidden`.
    """
    found = {}
    if mixture.shared and inner:
        at = f"{mixture.block}.{mixture.shared}"
        into = ("gate_proj", "up_proj") if len(mixture.matrices) > 2 else ("up_proj",)
        found = {f"{at}.{name}": (inner, hidden) for name in into}
        found[f"{at}.down_proj"] = (hidden, inner)
    if mixture.shared_gate:
        found[f"{mixture.block}.{mixture.shared_gate}"] = (1, hidden)
    if latent:
        shapes = ((latent, hidden), (hidden, latent))
        found |= zip((f"{mixture.block}.{name}" for name in LATENT), shapes, strict=True)
    return found


def check_mixture(
    mixture: MixtureOfExperts, config: Mapping[str, Json], path: Path
) -> Iterator[Problem]:
    """Report MoE sizes that contradict each other."""

    def problem(key: str, why: str, allowed: str, reason: ModelReason) -> Problem:
        got = ABSENT if config.get(key) is None else shown(config[key])
        return Problem(f"{path}:{key}", got, why, allowed, reason)

    experts, top_k = config.get(experts_key(config)), top_k_of(config)
    if isinstance(experts, int) and not (isinstance(top_k, int) and 0 < top_k <= experts):
        why, allowed = "it is the number of experts per token", f"an integer from 1 to {experts}"
        yield problem(top_k_key(config), why, allowed, ModelReason.BAD_CONFIG)
    for key in ("hidden_size", mixture.inner, mixture.latent):
        if isinstance(width := config.get(key), int) and width % ALIGNED:
            why = "grouped matrix products of experts need it aligned"
            unit = f"a multiple of {ALIGNED}"
            yield problem(key, why, unit, ModelReason.UNSUPPORTED_ARCHITECTURE)
