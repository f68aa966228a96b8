"""What CEL can say about a job, so that the API server refuses at admission by itself.

Each rule repeats a check of `ppojob_api.checks`; those remain the full list, in their own words.
"""

from ppojob_api.rules.algorithm import ALGORITHM_RULES, NAME_RULES
from ppojob_api.rules.effect import EFFECT_RULES
from ppojob_api.rules.pods import POD_RULES
from ppojob_api.rules.policy_loss import POLICY_LOSS_RULES
from ppojob_api.rules.roles import ROLE_RULES
from ppojob_api.rules.rule import Rule, given, implies
from ppojob_api.rules.run import RUN_RULES
from ppojob_api.rules.scheduling import SCHEDULING_RULES
from ppojob_api.rules.support import SUPPORT_RULES
from ppojob_api.run_config import TRAJECTORY_SECTIONS
from ppojob_api.shape import members
from ppojob_api.v1alpha1.job import PPOJobSpec

__all__ = ["RULES", "Rule"]


def _immutable(section: str) -> Rule:
    """What decides the weights of a run stays as it was created."""
    message = f"spec.{section} decides the weights and cannot change; make a job of another name"
    if not members(PPOJobSpec)[section].shape.optional:
        return Rule(f"spec.{section}", "self == oldSelf", message)
    # A rule within a section that may be absent goes with it, so the spec watches over those.
    return _stays("spec", section, message)


def _stays(path: str, field: str, message: str) -> Rule:
    """An optional field that is neither given, taken away nor changed."""
    return Rule(path, _same(field), message, field)


def _same(field: str) -> str:
    new, old = given(field), given(field).replace("self.", "oldSelf.")
    return f"{new} == {old} && (!{new} || self.{field} == oldSelf.{field})"


_COSINE = (
    "self.optimizer.schedule == 'cosine'"
    f" || {given('critic')} && self.critic.optimizer.schedule == 'cosine'"
)

IMMUTABLE_RULES = (
    *(_immutable(section) for section in TRAJECTORY_SECTIONS),
    *(
        Rule(
            "spec",
            implies(_COSINE, _same(f"steps.{length}")),
            f"spec.steps.{length} decides the weights with schedule: cosine and cannot change;"
            " make a job of another name",
            "steps",
        )
        for length in ("total", "epochs")
    ),
    _stays(
        "spec.checkpoint",
        "volume",
        "the run is on this volume and it cannot change; make a job of another name",
    ),
)

RULES = (
    *NAME_RULES,
    *ALGORITHM_RULES,
    *POLICY_LOSS_RULES,
    *RUN_RULES,
    *EFFECT_RULES,
    *ROLE_RULES,
    *POD_RULES,
    *SCHEDULING_RULES,
    *SUPPORT_RULES,
    *IMMUTABLE_RULES,
)
