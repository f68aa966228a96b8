"""Tensor-parallel plans: which modules are column-parallel, row-parallel or replicated.

`*` stands for the number of a decoder layer. transformers has such plans as well
(`base_model_tp_plan`), without the all-reduces around the layers; a test compares the two.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from torch import nn

from ppojob_trainer.models.adapter_names import A, B, M
from ppojob_trainer.models.config_files import TOWER
from ppojob_trainer.models.experts import experts_of
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.family import Family, MixtureOfExperts
from ppojob_trainer.models.log_partition import NAME as LOG_PARTITION
from ppojob_trainer.models.mixtures import LATENT
from ppojob_trainer.models.transformers_modules import recurrent_layers
from ppojob_trainer.parallel.tensor_styles import (
    Cut,
    Heads,
    OverAllHeads,
    Stacks,
    Style,
    TensorLayer,
    Vocabulary,
)

COLWISE: Final = Style({"weight": "rows", "bias": "rows", A: "partial", B: "rows", M: "rows"})
_ROWWISE: Final[Mapping[str, Cut]] = {
    "weight": "columns",
    A: "columns",
    B: "partial",
    M: "partial",
}
ROWWISE: Final = Style(_ROWWISE, ("output",))
TRANSPOSED_COLWISE: Final = replace(COLWISE, cuts={**COLWISE.cuts, "weight": "columns"})
TRANSPOSED_ROWWISE: Final = replace(ROWWISE, cuts={**_ROWWISE, "weight": "rows"})
VOCABULARY: Final = Style({"weight": "rows"}, layer=Vocabulary)
REPLICATED: Final = Style()
BEFORE_COLWISE: Final = Style(sums=("output gradient",))
"""Replicated, before column-parallel matrices, of whose input each rank has a partial gradient."""
STATES_TO_COLWISE: Final = Style(sums=("input gradient",))
"""Modules whose column-parallel matrices read hidden states without a norm between."""
IN_EACH_HEAD: Final = Style({"weight": "partial"})
"""Weights shared by all heads, sharded over the ranks."""
OVER_ALL_HEADS: Final = Style({"weight": "rows"}, layer=OverAllHeads)
_EVEN: Final = (1, 1)
"""Fused gate_up."""

ROWWISE_PARTIAL: Final = Style(_ROWWISE)
"""Row-parallel matrices whose partial sums an enclosing module reduces."""
PARTIAL_SUMS: Final = Style(sums=("output",))
"""Modules whose row-parallel matrices leave partial sums."""
STATES_TO_PARTIAL_SUMS: Final = Style(sums=("input gradient", "output"))
WEIGHS_PARTIAL_SUMS: Final = Style(dict.fromkeys(("weight", "bias", A, B, M), "partial"))
"""Replicated; its output weighs a partial sum."""

STACKS: Final = Style(
    {
        **{"gate_up_proj": "depths", "gate_up_proj_bias": "columns"},
        **{f"gate_up_proj_{A}": "partial", f"gate_up_proj_{B}": "columns"},
        **{"down_proj": "columns", "down_proj_bias": "partial"},
        **{f"down_proj_{A}": "depths", f"down_proj_{B}": "partial"},
    },
    layer=Stacks,
)
"""Whose gate and up rows are interleaved."""
_GATES_FIRST: Final = {"gate_up_proj": _EVEN, f"gate_up_proj_{B}": _EVEN}
TRANSPOSED_STACKS: Final = replace(STACKS, shares=_GATES_FIRST)
UNTRANSPOSED_STACKS: Final = replace(
    TRANSPOSED_STACKS, cuts={**STACKS.cuts, "gate_up_proj": "columns", "down_proj": "depths"}
)

_PLAN: Final = {
    "model.embed_tokens": VOCABULARY,
    "model.norm": REPLICATED,
    "lm_head": COLWISE,  # never called: log-probabilities read its shards, see `fused_logprobs`
    "score": REPLICATED,
    **{f"{LOG_PARTITION}.{name}": REPLICATED for name in ("inner.*", "norms.*", "output")},
}
_FEED_FORWARD: Final = {
    "model.layers.*.mlp.gate_proj": COLWISE,
    "model.layers.*.mlp.up_proj": COLWISE,
    "model.layers.*.mlp.down_proj": ROWWISE,
}
_PER_LAYER_SIZES: Final = {
    "model.embed_tokens_per_layer": VOCABULARY,
    "model.per_layer_model_projection": REPLICATED,
    "model.per_layer_projection_norm": REPLICATED,
    "model.layers.*.per_layer_input_gate": REPLICATED,
    "model.layers.*.per_layer_projection": REPLICATED,
    "model.layers.*.post_per_layer_input_norm": REPLICATED,
}


def plan_of(family: Family) -> dict[str, Style]:
    """Return the styles of a family's modules with parameters, or with a joint all-reduce."""
    mixture = family.mixture
    plan = _PLAN | _attention(family)
    plan |= _mixture(mixture) if mixture else {}
    if not mixture or (family.feed_forward and family.feed_forward.in_moe_layers):
        plan |= _feed_forward(family)
    if family.positions:
        plan[f"model.{family.positions[0]}"] = REPLICATED
    has_dense = mixture and (mixture.dense_first or mixture.interval or family.has_one_block)
    if has_dense:  # all-reduced like MoE blocks
        plan |= _feed_forward(family) | {f"model.layers.*.{family.dense_out}": ROWWISE_PARTIAL}
    if mixture and family.has_one_block:
        plan[f"model.layers.*.{family.attention}.{family.attention_out}"] = ROWWISE_PARTIAL
    plan |= {f"model.layers.*.{norm}": BEFORE_COLWISE for norm in family.norms}
    plan |= {f"model.layers.*.{norm}": REPLICATED for norm in family.post_norms}
    plan |= _numbers(family)
    if family.has_per_layer_sizes:
        plan |= _PER_LAYER_SIZES
    if family.has_sinks or family.head_counts:
        own: dict[str, Cut] = {"sinks": "rows"} if family.has_sinks else {}
        plan[f"model.layers.*.{family.attention}"] = Style(own, counts=family.head_counts)
    if family.recurrence and family.recurrence.is_beside_attention:
        plan[f"model.layers.*.{family.attention}"] = STATES_TO_COLWISE
    if not family.norms:
        plan[f"model.layers.*.{family.attention}"] = STATES_TO_COLWISE
        plan["model.layers.*.mlp"] = STATES_TO_PARTIAL_SUMS if mixture else STATES_TO_COLWISE
    if family.qk_norm != "none":
        style = OVER_ALL_HEADS if family.qk_norm == "all heads" else IN_EACH_HEAD
        plan |= {f"model.layers.*.self_attn.{norm}": style for norm in family.qk_norm_names}
    return plan


def _attention(family: Family) -> dict[str, Style]:
    """Return the styles of attention's matrices; see `styles_of` for the fused one."""
    at = f"model.layers.*.{family.attention}"
    if family.has_mla:
        plan = dict.fromkeys(("q_proj", "q_b_proj", "kv_b_proj"), COLWISE) | {"o_proj": ROWWISE}
        shared = ("q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm")
        plan |= dict.fromkeys(shared, WEIGHS_PARTIAL_SUMS)
        return {f"{at}.{name}": style for name, style in plan.items()}
    into = (family.attention_in,) if "qkv_proj" in family.fused else ("q_proj", "k_proj", "v_proj")
    rows, columns = (
        (TRANSPOSED_COLWISE, TRANSPOSED_ROWWISE) if family.is_transposed else (COLWISE, ROWWISE)
    )
    if family.attention_gate:
        into = (*into, family.attention_gate)
    return {f"{at}.{name}": rows for name in into} | {f"{at}.{family.attention_out}": columns}


def _feed_forward(family: Family) -> dict[str, Style]:
    if "gate_up_proj" in family.fused:
        return {
            "model.layers.*.mlp.gate_up_proj": _of_several(COLWISE, _EVEN),
            "model.layers.*.mlp.down_proj": ROWWISE,
        }
    if (own := family.feed_forward) is None:
        return _FEED_FORWARD
    rows, columns = (
        (TRANSPOSED_COLWISE, TRANSPOSED_ROWWISE) if family.is_transposed else (COLWISE, ROWWISE)
    )
    plan = {
        f"model.layers.*.{name}": rows if widths == 1 else _of_several(rows, (1,) * widths)
        for name, widths in own.into.items()
    }
    return plan | {f"model.layers.*.{own.out}": columns}


def _of_several(style: Style, shares: tuple[int, ...]) -> Style:
    """Return the style of a fused layer, whose outputs are concatenated parts."""
    cut = (name for name, own in style.cuts.items() if own != "partial")
    return replace(style, shares=dict.fromkeys(cut, shares))


def _numbers(family: Family) -> dict[str, Style]:
    """Return the styles of modules with per-head or per-channel parameters, sharded alike."""
    cuts: dict[str, dict[str, Cut]] = {}
    for name in (*family.trained_scalars, *family.frozen_scalars):
        owner, _, number = f"model.layers.*.{name}".rpartition(".")
        own = cuts.setdefault(owner, {})
        if name in family.trained_scalars:
            own[number] = "partial"
    return {owner: Style(own) for owner, own in cuts.items()}


def _mixture(mixture: MixtureOfExperts) -> dict[str, Style]:
    """Return the styles of an MoE block, which has one all-reduce for all of its experts."""
    if not mixture.block:
        return _mixture_of_layers(mixture)
    block = f"model.layers.*.{mixture.block}"
    cuts = COLWISE, COLWISE, ROWWISE_PARTIAL
    router = f"{mixture.router}.{mixture.router_weight}".rpartition(".")[0]
    plan = {block: PARTIAL_SUMS, f"{block}.{router}": WEIGHS_PARTIAL_SUMS}
    plan |= {f"{block}.{name}": WEIGHS_PARTIAL_SUMS for name in LATENT if mixture.latent}
    owner = mixture.selection_bias.rpartition(".")[0]
    if owner not in {"", mixture.router}:
        plan[f"{block}.{owner}"] = REPLICATED
    if mixture.is_stacked:
        halves = UNTRANSPOSED_STACKS if mixture.is_out_first else TRANSPOSED_STACKS
        plan[f"{block}.experts"] = STACKS if mixture.is_clamped else halves
    else:
        own = zip(mixture.matrices, cuts[-len(mixture.matrices) :], strict=True)
        plan |= {f"{block}.experts.*.{name}": cut for name, cut in own}
    if mixture.shared:
        names = (f"{block}.{mixture.shared}.{one}_proj" for one in ("gate", "up", "down"))
        plan |= dict(zip(names, cuts, strict=True))
    if mixture.shared_gate:
        plan[f"{block}.{mixture.shared_gate}"] = WEIGHS_PARTIAL_SUMS
    return plan


def _mixture_of_layers(mixture: MixtureOfExperts) -> dict[str, Style]:
    """Return the styles of experts that belong to the layer itself, with router and norms."""
    before, beside, behind = mixture.norms
    plan = {
        "experts": UNTRANSPOSED_STACKS,
        mixture.router: Style(
            dict.fromkeys(("scale", "per_expert_scale"), "partial"), ("input gradient",)
        ),
        f"{mixture.router}.proj": WEIGHS_PARTIAL_SUMS,
        **{before: BEFORE_COLWISE, beside: REPLICATED, behind: Style(sums=("input",))},
    }
    return {f"model.layers.*.{name}": style for name, style in plan.items()}


def styles_of(model: nn.Module) -> dict[str, Style]:
    """Return the styles of modules with parameters, or in the plan; not of expert-parallel ones."""
    config: Any = model.config
    family = FAMILIES[config.model_type]
    plan, shared = plan_of(family), _head_layers(family)
    if "qkv_proj" in family.fused and family.head_counts:  # other models' heads are contiguous
        key = "num_key_value_heads"
        heads, keys = config.num_attention_heads, getattr(config, family.key_aliases.get(key, key))
        at = f"model.layers.*.{family.attention}.{family.attention_in}"
        plan[at] = _of_several(plan[at], (heads, keys, keys))
    whole = {
        one for layer in experts_of(model) if layer.expert_ranks.size > 1 for one in layer.modules()
    }
    alike = _computed_alike(model)
    found = {}
    for name, module in model.named_modules():
        if module in whole:
            continue
        has_parameters = any(True for _ in module.parameters(recurse=False))
        if module in alike or f"{name}.".startswith(TOWER):  # which are replicated
            if has_parameters:  # by the class of others transformers finds what it records of them
                found[name] = REPLICATED
            continue
        place = re.sub(r"\.\d+(?=\.|$)", ".*", name)
        if place in plan or has_parameters:
            found[name] = plan[place]
        if place in shared:
            attention: Any = model.get_submodule(name.rpartition(".")[0])
            found[name] = replace(plan[place], layer=shared[place], head=attention.head_dim)
    return found


def _head_layers(family: Family) -> dict[str, type[TensorLayer]]:
    """Return the layers that make key and value heads, which ranks may share, with their classes.

    Of a fused layer whose heads are contiguous each rank has whole ones.
    """
    found: dict[str, type[TensorLayer]] = {"k_proj": Heads, "v_proj": Heads}
    if family.qk_norm == "all heads":
        found = {family.qk_norm_names[1]: OverAllHeads, "v_proj": Heads}
    if "qkv_proj" in family.fused:
        found = {family.attention_in: Heads} if family.head_counts else {}
    return {f"model.layers.*.{family.attention}.{name}": kind for name, kind in found.items()}


def _computed_alike(model: nn.Module) -> set[nn.Module]:
    """Yield the replicated modules with parameters: recurrent layers and the norms before them."""
    config: Any = model.config
    norm, *_ = (*FAMILIES[config.model_type].norms, "")
    return {
        one
        for layer, net in recurrent_layers(model)
        for one in (*net.modules(), layer.get_submodule(norm))
        if any(True for _ in one.parameters(recurse=False))
    }
