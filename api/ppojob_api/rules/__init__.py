"""The rules of a job, each written once for the API server, `ppojob validate` and the pods.

The API server evaluates them as CEL and refuses an invalid job at admission; `Rule.problems`
evaluates the same expressions. Rules that CEL cannot express are in `ppojob_api.checks`.
"""

from ppojob_api.rules.algorithm import ALGORITHM_RULES
from ppojob_api.rules.answers import ANSWER_RULES
from ppojob_api.rules.choices import CHOICE_RULES
from ppojob_api.rules.edits import EDIT_RULES
from ppojob_api.rules.names import NAME_RULES
from ppojob_api.rules.pair_losses import PAIR_RULES
from ppojob_api.rules.pods import POD_RULES
from ppojob_api.rules.policy_loss import POLICY_LOSS_RULES
from ppojob_api.rules.references import REFERENCE_RULES
from ppojob_api.rules.roles import ROLE_RULES
from ppojob_api.rules.rule import Rule, places
from ppojob_api.rules.run import CHECKPOINT_RULES, LENGTH_RULES, SAMPLING_RULES
from ppojob_api.rules.tools import TOOL_RULES

__all__ = ["RULES", "Rule", "places"]

RULES = (
    *NAME_RULES,
    *ANSWER_RULES,
    *PAIR_RULES,
    *CHOICE_RULES,
    *ALGORITHM_RULES,
    *REFERENCE_RULES,
    *POLICY_LOSS_RULES,
    *LENGTH_RULES,
    *CHECKPOINT_RULES,
    *SAMPLING_RULES,
    *TOOL_RULES,
    *ROLE_RULES,
    *POD_RULES,
    *EDIT_RULES,
)
