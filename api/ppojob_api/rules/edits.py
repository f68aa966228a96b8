"""Rules of edits: which fields of an existing job may change, and when (API server only).

Fields that decide the weights never change. The layout may, as with `ppojob run`, but only while
the job has no pods: pods of two layouts cannot work together.
"""

import json
from typing import Final

from ppojob_api.rules.rule import Rule, rules, words
from ppojob_api.run_config import LAYOUT, TRAJECTORY_SECTIONS
from ppojob_api.shape import Member, Shape, members
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.training import ENDLESS

_SECTIONS = members(PPOJobSpec)
_FIXED = [name for name in TRAJECTORY_SECTIONS if name not in {*LAYOUT, "roles"}]
_WORDS_OF_CEL: Final = {"in", "function"}
"""Fields whose names are reserved words of CEL."""

_NEEDS_LENGTH = (
    f"!(self.optimizer.schedule in {words(ENDLESS)}) && !has(self.optimizer.decaySteps)"
    " || self.optimizer.warmupRatio > 0.0"
)
_SAME = "self.$FIELD == oldSelf.$FIELD"
_SAME_IF_ANY = f"has(self.$FIELD) == has(oldSelf.$FIELD) && (!has(self.$FIELD) || {_SAME})"
_MACROS: Final = {
    "SAME": _SAME,
    "SAME_IF_ANY": _SAME_IF_ANY,
    "OTHER_NAME": "cannot change; make a job of another name (spec.checkpoint.branch continues this"
    " one)",
    "WHILE_SUSPENDED": "may change only while the job is suspended and has no pods; kubectl ppojob"
    " suspend NAME --wait, edit it, kubectl ppojob resume NAME",
    "IS_SUSPENDED": "oldSelf.spec.lifecycle.suspend && has(oldSelf.status)"
    " && has(oldSelf.status.phase) && oldSelf.status.phase == 'Suspended'",
}
_POLICY = "self.roles.actorRollout.gpusPerReplica"
_DEVICES: Final = (
    ("actorRollout", "self.training.autocast == 'auto' || self.rollout.dtype == 'auto'", _POLICY),
    (
        "rewardModel",
        "has(self.rewardModel) && self.rewardModel.dtype == 'auto'",
        "(has(self.roles.rewardModel) && self.roles.rewardModel.colocateWith == 'none'"
        f" ? self.roles.rewardModel.gpusPerReplica : {_POLICY})",
    ),
    (
        "judge",
        "has(self.judge) && self.judge.dtype == 'auto'",
        "self.roles.judge.gpusPerReplica",
    ),
)
"""Role, whether it has a dtype that depends on its device, and its GPUs, as CEL."""


def _as_it_was(section: str, *, layout: bool) -> str:
    """CEL for "the layout fields, or the other fields, of a section are unchanged"."""
    model = _SECTIONS[section].shape.model
    assert model is not None
    return " && ".join(
        f"({_SAME_IF_ANY if member.shape.optional else _SAME})".replace("$FIELD", f"$FIELD.{name}")
        for name, member in members(model).items()
        if (name in LAYOUT[section]) == layout
    )


def _unchanged(shape: Shape, path: str) -> str:
    """CEL for "the value at a path of `self` is unchanged".

    In items of lists the API server writes no defaults (ADR 4), but the author or an older CRD may
    have. So there an absent field equals its default.
    """
    if not _has_defaults_in_items(shape):
        return f"self{path} == oldSelf{path}"
    return " == ".join(_compared(shape, f"{job}{path}") for job in ("self", "oldSelf"))


def _compared(shape: Shape, value: str) -> str:
    """CEL for a list of the values to compare, whose cost the API server can estimate."""
    if shape.kind == "list":
        assert shape.item is not None
        return f"{value}.map(x, {_compared(shape.item, 'x')})"
    assert shape.model is not None
    fields = members(shape.model).items()
    return f"[{', '.join(f'dyn({_field(value, *one)})' for one in fields)}]"


def _field(section: str, name: str, member: Member) -> str:
    step = f"__{name}__" if name in _WORDS_OF_CEL else name
    if _has_defaults_in_items(member.shape):
        return _compared(member.shape, f"{section}.{step}")
    # An API server writes the defaults of a section, and none of an item.
    if member.required or (section != "x" and member.default is not None):
        return f"{section}.{step}"
    if member.default is None:
        return f"{section}.?{step}"
    default = json.dumps(member.default).replace('"', "'")
    return f"{f'dyn({section})' if default == '{}' else section}.?{step}.orValue({default})"


def _has_defaults_in_items(shape: Shape) -> bool:
    inner = shape.model or (shape.item.model if shape.item is not None else None)
    if inner is None:
        return False
    fields = members(inner).values()
    if shape.model is None:
        return any(one.default is not None for one in fields)
    return any(_has_defaults_in_items(one.shape) for one in fields)


def _rules_of_part(section: str) -> tuple[Rule, ...]:
    """Rules of a section with layout fields; an edit of other fields reports only those."""
    fixed, layout = (_as_it_was(section, layout=one) for one in (False, True))
    if _SECTIONS[section].shape.optional:
        fixed = f"has(self.$FIELD) == has(oldSelf.$FIELD) && (!has(self.$FIELD) || {fixed})"
        layout = f"!has(self.$FIELD) || !has(oldSelf.$FIELD) || {layout}"
    return rules(
        """
        spec | $NAME | Conflict
            spec.$FIELD decides the weights, but for $LAYOUT, and $OTHER_NAME
        must: $PART

        | spec.$NAME | Conflict
            of $FIELD $LAYOUT $WHILE_SUSPENDED
        must: $LAYOUT_PART || $IS_SUSPENDED
        """,
        NAME=section,
        LAYOUT=", ".join(LAYOUT[section]),
        PART=fixed,
        LAYOUT_PART=layout,
        each=[_MACROS],
    )


def _rules_of_whole(section: str) -> tuple[Rule, ...]:
    """Rule of a section that decides the weights; an optional one is compared in its parent."""
    shape = _SECTIONS[section].shape
    place, unchanged = f"spec.{section} |", _unchanged(shape, "")
    if shape.optional:
        place, unchanged = f"spec | {section}", _unchanged(shape, f".{section}")
        unchanged = f"has(self.$NAME) == has(oldSelf.$NAME) && (!has(self.$NAME) || {unchanged})"
    return rules(
        """
        $PLACE | Conflict
            spec.$NAME decides the weights and $OTHER_NAME
        must: $UNCHANGED
        """,
        NAME=section,
        PLACE=place,
        UNCHANGED=unchanged.replace("$NAME", section),
        each=[_MACROS],
    )


EDIT_RULES = (
    *(rule for section in _FIXED for rule in _rules_of_whole(section)),
    *rules(
        """
        spec | steps.total steps.epochs | Conflict
            spec.$FIELD decides the weights with a schedule that falls without decaySteps or a
            warmupRatio and $OTHER_NAME
        when: $NEEDS_LENGTH || has(self.critic) && ($CRITIC_NEEDS_LENGTH)
        must: $SAME_IF_ANY

        spec.steps | validateOnly generateOnly | Conflict
            spec.steps.$FIELD decides what the pods hold and $OTHER_NAME
        must: $SAME

        spec.checkpoint | volume | Conflict
            the run is on this volume and it $OTHER_NAME
        must: $SAME_IF_ANY

        spec.scheduling | type | Conflict
            pods placed in one way cannot join a gang of another; make a job of another name
        must: $SAME

        | spec.roles | Conflict
            $FIELD $WHILE_SUSPENDED
        must: $SAME || $IS_SUSPENDED
        """,
        NEEDS_LENGTH=_NEEDS_LENGTH,
        CRITIC_NEEDS_LENGTH=_NEEDS_LENGTH.replace("self.", "self.critic."),
        each=[_MACROS],
    ),
    *(rule for section in LAYOUT for rule in _rules_of_part(section)),
    *rules(
        """
        spec | roles.$ROLE.gpusPerReplica | Conflict
            dtypes that are auto depend on whether spec.$FIELD is 0, which $OTHER_NAME
        when: $HAS_AUTO
        must: ($GPUS > 0) == ($OLD_GPUS > 0)
        """,
        each=[
            {
                **_MACROS,
                "ROLE": role,
                "HAS_AUTO": when,
                "GPUS": gpus,
                "OLD_GPUS": gpus.replace("self", "oldSelf"),
            }
            for role, when, gpus in _DEVICES
        ],
    ),
)
