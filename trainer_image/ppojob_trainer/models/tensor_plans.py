"""Which layers of a model are cut over tensor ranks, and how.

`*` stands for the number of a decoder layer. transformers has such plans as well
(`base_model_tp_plan`), without what is summed around the layers; a test compares the two.
"""

import re
from typing import Any, Final

from torch import nn

from ppojob_trainer.models.adapter_names import A, B
from ppojob_trainer.models.config_files import TOWER
from ppojob_trainer.models.experts import experts_of
from ppojob_trainer.models.families import FAMILIES, Family, Mixture
from ppojob_trainer.models.log_partition import NAME as LOG_PARTITION
from ppojob_trainer.parallel.tensor_styles import (
    BeforeRows,
    Columns,
    Cut,
    Stacks,
    Style,
    Summands,
    TensorLayer,
    Vocabulary,
)

ROWS: Final = Style(TensorLayer, {"weight": "rows", "bias": "rows", A: "summands", B: "rows"})
COLUMNS: Final = Style(Columns, {"weight": "columns", A: "columns", B: "summands"})
VOCABULARY: Final = Style(Vocabulary, {"weight": "rows"})
WHOLE: Final = Style(TensorLayer)
BEFORE_ROWS: Final = Style(BeforeRows)
IN_EACH_HEAD: Final = Style(TensorLayer, {"weight": "summands"})
"""Weights that all heads share, of which each rank has some."""

COLUMNS_ALONE: Final = Style(TensorLayer, {"weight": "columns", A: "columns", B: "summands"})
"""Of matrices whose outputs are summed by a module around them."""
SUMMANDS: Final = Style(Summands)
WEIGHS_SUMMANDS: Final = Style(
    TensorLayer, {"weight": "summands", "bias": "summands", A: "summands", B: "summands"}
)
"""Whole on every rank, which has a summand of what it weighs."""

STACKS: Final = Style(
    Stacks,
    {
        **{"gate_up_proj": "depths", "gate_up_proj_bias": "columns"},
        **{f"gate_up_proj_{A}": "summands", f"gate_up_proj_{B}": "columns"},
        **{"down_proj": "columns", "down_proj_bias": "summands"},
        **{f"down_proj_{A}": "depths", f"down_proj_{B}": "summands"},
    },
)
"""Of which gates and inner layers lie by turns."""

_PLAN: Final = {
    "model.embed_tokens": VOCABULARY,
    "model.norm": WHOLE,
    "lm_head": ROWS,  # never called: log-probabilities are made of its parts, see `fused_logprobs`
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
    """The styles of a family's modules that have parameters of their own, or are summed as one."""
    assert not family.uncut, "such a layout is refused"
    mixture = None if family.mixture and family.mixture.uncut else family.mixture
    plan = _PLAN | _attention(family)
    plan |= _mixture(mixture) if mixture else _feed_forward(family)
    if family.positions:
        plan[f"model.{family.positions[0]}"] = WHOLE
    if mixture and mixture.dense_first:  # whose block is summed as mixtures are
        plan |= _FEED_FORWARD | {"model.layers.*.mlp.down_proj": COLUMNS_ALONE}
    plan |= {f"model.layers.*.{norm}": BEFORE_ROWS for norm in family.norms}
    plan |= {f"model.layers.*.{norm}": WHOLE for norm in family.late_norms}
    plan |= _numbers(family)
    if family.has_layers_apart:
        plan |= _LAYERS_APART
    if family.has_sinks:
        plan["model.layers.*.self_attn"] = Style(TensorLayer, {"sinks": "rows"})
    if family.head_norm != "none":
        plan |= {f"model.layers.*.self_attn.{norm}": IN_EACH_HEAD for norm in family.head_norms}
    return plan


def _attention(family: Family) -> dict[str, Style]:
    """The styles of attention's matrices; where they are one, heads lie in it one by one."""
    at = f"model.layers.*.{family.attention}"
    into = (family.attention_in,) if "qkv_proj" in family.fused else ("q_proj", "k_proj", "v_proj")
    return {f"{at}.{name}": ROWS for name in into} | {f"{at}.{family.attention_out}": COLUMNS}


def _feed_forward(family: Family) -> dict[str, Style]:
    """The styles of plain blocks."""
    if (own := family.feed_forward) is None:
        return _FEED_FORWARD
    plan = {f"model.layers.*.{name}": ROWS for name in own.into}
    return plan | {f"model.layers.*.{own.out}": COLUMNS}


def _numbers(family: Family) -> dict[str, Style]:
    """The styles of modules with numbers of their own: each rank has some of what they are for."""
    cuts: dict[str, dict[str, Cut]] = {}
    for name in (*family.learnt, *family.fixed):
        owner, _, number = f"model.layers.*.{name}".rpartition(".")
        own = cuts.setdefault(owner, {})
        if name in family.learnt:
            own[number] = "summands"
    return {owner: Style(TensorLayer, own) for owner, own in cuts.items()}


def _mixture(mixture: Mixture) -> dict[str, Style]:
    """The styles of a block, which is summed over the ranks once, with all of its experts."""
    block = f"model.layers.*.{mixture.block}"
    cuts = ROWS, ROWS, COLUMNS_ALONE
    plan = {block: SUMMANDS, f"{block}.{mixture.router}": WEIGHS_SUMMANDS}
    owner = mixture.correction.rpartition(".")[0]
    if owner not in {"", mixture.router}:
        plan[f"{block}.{owner}"] = WHOLE
    if mixture.is_stacked:
        return plan | {f"{block}.experts": STACKS}
    plan |= {
        f"{block}.experts.*.{name}": cut for name, cut in zip(mixture.matrices, cuts, strict=True)
    }
    if mixture.shared:
        names = (f"{block}.{mixture.shared}.{one}_proj" for one in ("gate", "up", "down"))
        plan |= dict(zip(names, cuts, strict=True))
    if mixture.shared_gate:
        plan[f"{block}.{mixture.shared_gate}"] = WEIGHS_SUMMANDS
    return plan


def styles_of(model: nn.Module) -> dict[str, Style]:
    """The style of each module of a model that has parameters of its own, or is in its plan.

    Experts that ranks share have none.
    """
    config: Any = model.config
    plan = plan_of(FAMILIES[config.model_type])
    whole = {
        one for layer in experts_of(model) if layer.expert_ranks.size > 1 for one in layer.modules()
    }
    found = {}
    for name, module in model.named_modules():
        if module in whole:
            continue
        if name.startswith(TOWER):  # which is whole on each of them
            found[name] = WHOLE
            continue
        place = re.sub(r"\.\d+(?=\.|$)", ".*", name)
        if place in plan or any(True for _ in module.parameters(recurse=False)):
            found[name] = plan[place]
    return found
