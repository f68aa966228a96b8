"""The rules of a job: each is written once, for the API server, `ppojob validate` and the pods.

An API server evaluates them as CEL and so refuses a wrong job at admission; `problems` evaluates
the same expressions here. What CEL cannot say is in `ppojob_api.checks`.
"""

from ppojob_api.rules.algorithm import ALGORITHM_RULES
from ppojob_api.rules.answers import ANSWER_RULES
from ppojob_api.rules.names import NAME_RULES
from ppojob_api.rules.pods import POD_RULES
from ppojob_api.rules.policy_loss import POLICY_LOSS_RULES
from ppojob_api.rules.references import REFERENCE_RULES
from ppojob_api.rules.roles import ROLE_RULES
from ppojob_api.rules.rule import Rule, places, rules, words
from ppojob_api.rules.run import CHECKPOINT_RULES, LENGTH_RULES, SAMPLING_RULES
from ppojob_api.rules.tools import TOOL_RULES
from ppojob_api.run_config import TRAJECTORY_SECTIONS
from ppojob_api.shape import members
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.training import ENDLESS

__all__ = ["RULES", "Rule", "places"]

_OPTIONAL = [name for name in TRAJECTORY_SECTIONS if members(PPOJobSpec)[name].shape.optional]

_NEEDS_LENGTH = (
    f"!(self.optimizer.schedule in {words(ENDLESS)}) && !has(self.optimizer.decaySteps)"
    " || self.optimizer.warmupRatio > 0.0"
)

IMMUTABLE_RULES = rules(
    """
    $ALWAYS_THERE | | Conflict
        $SECTION decides the weights and $OTHER_NAME
    must: self == oldSelf

    spec | $OPTIONAL | Conflict
        spec.$FIELD decides the weights and $OTHER_NAME
    must: $SAME

    spec | steps.total steps.epochs | Conflict
        spec.$FIELD decides the weights with a schedule that falls without decaySteps or a
        warmupRatio and $OTHER_NAME
    when: $NEEDS_LENGTH || has(self.critic) && ($CRITIC_NEEDS_LENGTH)
    must: $SAME

    spec.steps | validateOnly generateOnly | Conflict
        spec.steps.$FIELD decides what the pods hold and $OTHER_NAME
    must: self.$FIELD == oldSelf.$FIELD

    spec.checkpoint | volume | Conflict
        the run is on this volume and it $OTHER_NAME
    must: $SAME

    spec.scheduling | type | Conflict
        pods that were placed in one way cannot join a gang of another; make a job of another name
    must: self.type == oldSelf.type
    """,
    ALWAYS_THERE=" ".join(f"spec.{name}" for name in TRAJECTORY_SECTIONS if name not in _OPTIONAL),
    # A rule within a section that may be absent goes with it, so the spec has those.
    OPTIONAL=" ".join(_OPTIONAL),
    NEEDS_LENGTH=_NEEDS_LENGTH,
    CRITIC_NEEDS_LENGTH=_NEEDS_LENGTH.replace("self.", "self.critic."),
    OTHER_NAME="cannot change; make a job of another name (with spec.checkpoint.branch it begins"
    " with a checkpoint of this one)",
    SAME="has(self.$FIELD) == has(oldSelf.$FIELD)"
    " && (!has(self.$FIELD) || self.$FIELD == oldSelf.$FIELD)",
)

RULES = (
    *NAME_RULES,
    *ANSWER_RULES,
    *ALGORITHM_RULES,
    *REFERENCE_RULES,
    *POLICY_LOSS_RULES,
    *LENGTH_RULES,
    *CHECKPOINT_RULES,
    *SAMPLING_RULES,
    *TOOL_RULES,
    *ROLE_RULES,
    *POD_RULES,
    *IMMUTABLE_RULES,
)
