"""The rules of a job: each is written once, for the API server, `ppojob validate` and the pods.

An API server evaluates them as CEL and so refuses a wrong job at admission; `problems` evaluates
the same expressions here. What CEL cannot say is in `ppojob_api.checks`.
"""

from ppojob_api.rules.algorithm import ALGORITHM_RULES
from ppojob_api.rules.names import NAME_RULES
from ppojob_api.rules.pods import POD_RULES
from ppojob_api.rules.policy_loss import POLICY_LOSS_RULES
from ppojob_api.rules.roles import ROLE_RULES
from ppojob_api.rules.rollout_correction import ROLLOUT_CORRECTION_RULES
from ppojob_api.rules.rule import Rule, given
from ppojob_api.rules.run import CHECKPOINT_RULES, LENGTH_RULES, SAMPLING_RULES
from ppojob_api.rules.tools import TOOL_RULES
from ppojob_api.run_config import TRAJECTORY_SECTIONS
from ppojob_api.shape import members
from ppojob_api.v1alpha1.job import PPOJobSpec

__all__ = ["RULES", "Rule"]

_OTHER_NAME = "cannot change; make a job of another name"


def _immutable(section: str) -> Rule:
    """What decides the weights of a run stays as it was created."""
    text = f"spec.{section} decides the weights and {_OTHER_NAME}"
    if not members(PPOJobSpec)[section].shape.optional:
        return Rule(f"spec.{section}", "", "self == oldSelf", text)
    # A rule within a section that may be absent goes with it, so the spec watches over those.
    return Rule("spec", section, _same(section), text)


def _same(field: str) -> str:
    """CEL for an optional field that is neither given, taken away nor changed."""
    new, old = given(field), given(field).replace("self.", "oldSelf.")
    return f"{new} == {old} && (!{new} || self.{field} == oldSelf.{field})"


_NEEDS_LENGTH = " || ".join(
    f"{condition}self.{optimizer}.schedule == 'cosine'"
    f" || {condition}self.{optimizer}.warmupRatio > 0.0"
    for condition, optimizer in (
        ("", "optimizer"),
        (f"{given('critic')} && ", "critic.optimizer"),
    )
)

IMMUTABLE_RULES = (
    *(_immutable(section) for section in TRAJECTORY_SECTIONS),
    *(
        Rule(
            "spec",
            f"steps.{length}",
            _same(f"steps.{length}"),
            f"spec.steps.{length} decides the weights with schedule: cosine or a warmupRatio and"
            f" {_OTHER_NAME}",
            when=_NEEDS_LENGTH,
        )
        for length in ("total", "epochs")
    ),
    Rule(
        "spec.checkpoint",
        "volume",
        _same("volume"),
        f"the run is on this volume and it {_OTHER_NAME}",
    ),
    Rule(
        "spec.scheduling",
        "type",
        "self.type == oldSelf.type",
        "pods that were placed in one way cannot join a gang of another; make a job of another"
        " name",
    ),
)

RULES = (
    *NAME_RULES,
    *ALGORITHM_RULES,
    *POLICY_LOSS_RULES,
    *ROLLOUT_CORRECTION_RULES,
    *LENGTH_RULES,
    *CHECKPOINT_RULES,
    *SAMPLING_RULES,
    *TOOL_RULES,
    *ROLE_RULES,
    *POD_RULES,
    *IMMUTABLE_RULES,
)
