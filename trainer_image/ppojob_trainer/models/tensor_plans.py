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
from ppojob_trainer.models.families import FAMILIES, Family, Mixture
from ppojob_trainer.models.log_partition import NAME as LOG_PARTITION
from ppojob_trainer.models.state_nets import layers_with_states
from ppojob_trainer.parallel.tensor_styles import (
    BeforeRows,
    Columns,
    Cut,
    OfStates,
    OfSummands,
    OverAllHeads,
    Stacks,
    Style,
    Summands,
    TensorLayer,
    Vocabulary,
)

ROWS: Final = Style(
    TensorLayer, {"weight": "rows", "bias": "rows", A: "summands", B: "rows", M: "rows"}
)
_COLUMNS: Final[Mapping[str, Cut]] = {
    "weight": "columns",
    A: "columns",
    B: "summands",
    M: "summands",
}
COLUMNS: Final = Style(Columns, _COLUMNS)
IN_FIRST_ROWS: Final = replace(ROWS, cuts={**ROWS.cuts, "weight": "columns"})
IN_FIRST_COLUMNS: Final = replace(COLUMNS, cuts={**_COLUMNS, "weight": "rows"})
VOCABULARY: Final = Style(Vocabulary, {"weight": "rows"})
WHOLE: Final = Style(TensorLayer)
BEFORE_ROWS: Final = Style(BeforeRows)
OF_STATES: Final = Style(OfStates)
IN_EACH_HEAD: Final = Style(TensorLayer, {"weight": "summands"})
"""Weights shared by all heads, sharded over the ranks."""
OVER_ALL_HEADS: Final = Style(OverAllHeads, {"weight": "rows"})
_EVEN: Final = (1, 1)
"""Fused gate_up."""

COLUMNS_ALONE: Final = Style(TensorLayer, _COLUMNS)
"""Row-parallel matrices whose partial sums an enclosing module reduces."""
SUMMANDS: Final = Style(Summands)
WEIGHS_SUMMANDS: Final = Style(TensorLayer, dict.fromkeys(("weight", "bias", A, B, M), "summands"))
"""Replicated; its output weighs a partial sum."""

STACKS: Final = Style(
    Stacks,
    {
        **{"gate_up_proj": "depths", "gate_up_proj_bias": "columns"},
        **{f"gate_up_proj_{A}": "summands", f"gate_up_proj_{B}": "columns"},
        **{"down_proj": "columns", "down_proj_bias": "summands"},
        **{f"down_proj_{A}": "depths", f"down_proj_{B}": "summands"},
    },
)
"""Whose gate and up rows are interleaved."""
_GATES_FIRST: Final = {"gate_up_proj": _EVEN, f"gate_up_proj_{B}": _EVEN}
STACKS_IN_FIRST: Final = replace(STACKS, shares=_GATES_FIRST)
STACKS_OUT_FIRST: Final = replace(
    STACKS_IN_FIRST, cuts={**STACKS.cuts, "gate_up_proj": "columns", "down_proj": "depths"}
)

_PLAN: Final = {
    "model.embed_tokens": VOCABULARY,
    "model.norm": WHOLE,
    "lm_head": ROWS,  # never called: log-probabilities read its shards, see `fused_logprobs`
    "score": WHOLE,
    **{f"{LOG_PARTITION}.{name}": WHOLE for name in ("inner.*", "norms.*", "output")},
}
_FEED_FORWARD: Final = {
    "model.layers.*.mlp.gate_proj": ROWS,
    "model.layers.*.mlp.up_proj": ROWS,
    "model.layers.*.mlp.down_proj": COLUMNS,
}
_LAYERS_APART: Final = {
    "model.embed_tokens_per_layer": VOCABULARY,
    "model.per_layer_model_projection": WHOLE,
    "model.per_layer_projection_norm": WHOLE,
    "model.layers.*.per_layer_input_gate": WHOLE,
    "model.layers.*.per_layer_projection": WHOLE,
    "model.layers.*.post_per_layer_input_norm": WHOLE,
}


def plan_of(family: Family) -> dict[str, Style]:
    """Return the styles of a family's modules with parameters, or with a joint all-reduce."""
    mixture = family.mixture
    plan = _PLAN | _attention(family)
    plan |= _mixture(mixture) if mixture else {}
    if not mixture or (family.feed_forward and family.feed_forward.is_beside):
        plan |= _feed_forward(family)
    if family.positions:
        plan[f"model.{family.positions[0]}"] = WHOLE
    if mixture and (mixture.dense_first or family.has_one_block):  # all-reduced like MoE blocks
        plan |= _feed_forward(family) | {f"model.layers.*.{family.plain_out}": COLUMNS_ALONE}
    if mixture and family.has_one_block:
        plan[f"model.layers.*.{family.attention}.{family.attention_out}"] = COLUMNS_ALONE
    plan |= {f"model.layers.*.{norm}": BEFORE_ROWS for norm in family.norms}
    plan |= {f"model.layers.*.{norm}": WHOLE for norm in family.late_norms}
    plan |= _numbers(family)
    if family.has_layers_apart:
        plan |= _LAYERS_APART
    if family.has_sinks or family.counts:
        own: dict[str, Cut] = {"sinks": "rows"} if family.has_sinks else {}
        plan[f"model.layers.*.{family.attention}"] = Style(TensorLayer, own, counts=family.counts)
    if not family.norms:
        plan |= {f"model.layers.*.{block}": OF_STATES for block in (family.attention, "mlp")}
    if family.head_norm != "none":
        style = OVER_ALL_HEADS if family.head_norm == "all heads" else IN_EACH_HEAD
        plan |= {f"model.layers.*.self_attn.{norm}": style for norm in family.head_norms}
    return plan


def _attention(family: Family) -> dict[str, Style]:
    """Return the styles of attention's matrices; see `styles_of` for the fused one."""
    at = f"model.layers.*.{family.attention}"
    if family.has_latents:
        plan = dict.fromkeys(("q_proj", "q_b_proj", "kv_b_proj"), ROWS) | {"o_proj": COLUMNS}
        shared = ("q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm")
        plan |= dict.fromkeys(shared, WEIGHS_SUMMANDS)
        return {f"{at}.{name}": style for name, style in plan.items()}
    into = (family.attention_in,) if "qkv_proj" in family.fused else ("q_proj", "k_proj", "v_proj")
    rows, columns = (IN_FIRST_ROWS, IN_FIRST_COLUMNS) if family.is_in_first else (ROWS, COLUMNS)
    return {f"{at}.{name}": rows for name in into} | {f"{at}.{family.attention_out}": columns}


def _feed_forward(family: Family) -> dict[str, Style]:
    """Return the styles of dense feed-forward blocks."""
    if "gate_up_proj" in family.fused:
        return {
            "model.layers.*.mlp.gate_up_proj": _of_several(ROWS, _EVEN),
            "model.layers.*.mlp.down_proj": COLUMNS,
        }
    if (own := family.feed_forward) is None:
        return _FEED_FORWARD
    rows, columns = (IN_FIRST_ROWS, IN_FIRST_COLUMNS) if family.is_in_first else (ROWS, COLUMNS)
    plan = {
        f"model.layers.*.{name}": rows if widths == 1 else _of_several(rows, (1,) * widths)
        for name, widths in own.into.items()
    }
    return plan | {f"model.layers.*.{own.out}": columns}


def _of_several(style: Style, shares: tuple[int, ...]) -> Style:
    """Return the style of a fused layer, whose outputs are concatenated parts."""
    cut = (name for name, own in style.cuts.items() if own != "summands")
    return replace(style, shares=dict.fromkeys(cut, shares))


def _numbers(family: Family) -> dict[str, Style]:
    """Return the styles of modules with per-head or per-channel parameters, sharded alike."""
    cuts: dict[str, dict[str, Cut]] = {}
    for name in (*family.learnt, *family.fixed):
        owner, _, number = f"model.layers.*.{name}".rpartition(".")
        own = cuts.setdefault(owner, {})
        if name in family.learnt:
            own[number] = "summands"
    return {owner: Style(TensorLayer, own) for owner, own in cuts.items()}


def _mixture(mixture: Mixture) -> dict[str, Style]:
    """Return the styles of an MoE block, which has one all-reduce for all of its experts."""
    if not mixture.block:
        return _mixture_of_layers(mixture)
    block = f"model.layers.*.{mixture.block}"
    cuts = ROWS, ROWS, COLUMNS_ALONE
    plan = {block: SUMMANDS, f"{block}.{mixture.router}": WEIGHS_SUMMANDS}
    owner = mixture.correction.rpartition(".")[0]
    if owner not in {"", mixture.router}:
        plan[f"{block}.{owner}"] = WHOLE
    if mixture.is_stacked:
        halves = STACKS_OUT_FIRST if mixture.is_out_first else STACKS_IN_FIRST
        plan[f"{block}.experts"] = STACKS if mixture.is_clamped else halves
    else:
        own = zip(mixture.matrices, cuts[-len(mixture.matrices) :], strict=True)
        plan |= {f"{block}.experts.*.{name}": cut for name, cut in own}
    if mixture.shared:
        names = (f"{block}.{mixture.shared}.{one}_proj" for one in ("gate", "up", "down"))
        plan |= dict(zip(names, cuts, strict=True))
    if mixture.shared_gate:
        plan[f"{block}.{mixture.shared_gate}"] = WEIGHS_SUMMANDS
    return plan


def _mixture_of_layers(mixture: Mixture) -> dict[str, Style]:
    """Return the styles of experts that belong to the layer itself, with router and norms."""
    before, beside, behind = mixture.norms
    plan = {
        "experts": STACKS_OUT_FIRST,
        mixture.router: Style(OfStates, dict.fromkeys(("scale", "per_expert_scale"), "summands")),
        f"{mixture.router}.proj": WEIGHS_SUMMANDS,
        **{before: BEFORE_ROWS, beside: WHOLE, behind: Style(OfSummands)},
    }
    return {f"model.layers.*.{name}": style for name, style in plan.items()}


def styles_of(model: nn.Module) -> dict[str, Style]:
    """Return the style of each module of a model with parameters, or in its plan.

    Expert-parallel experts have none.
    """
    config: Any = model.config
    family = FAMILIES[config.model_type]
    plan = plan_of(family)
    if "qkv_proj" in family.fused and family.counts:  # other models' heads are contiguous
        key = "num_key_value_heads"
        heads, keys = config.num_attention_heads, getattr(config, family.keys.get(key, key))
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
        if module in alike or name.startswith(TOWER):  # which are replicated
            found[name] = WHOLE
            continue
        place = re.sub(r"\.\d+(?=\.|$)", ".*", name)
        if place in plan or any(True for _ in module.parameters(recurse=False)):
            found[name] = plan[place]
    return found


def _computed_alike(model: nn.Module) -> set[nn.Module]:
    """Yield the replicated modules with parameters: recurrent layers and the norms before them."""
    config: Any = model.config
    norm, *_ = (*FAMILIES[config.model_type].norms, "")
    return {
        one
        for layer, net in layers_with_states(model)
        for one in (*net.modules(), layer.get_submodule(norm))
        if any(True for _ in one.parameters(recurse=False))
    }
