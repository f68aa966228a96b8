"""What CEL can say about a job, so that the API server refuses at admission by itself.

Each rule repeats a check of `ppojob_api.checks`; those remain the full list, in their own words.
"""

import json
from dataclasses import dataclass

from ppojob_api.checks.arithmetic import GROUP_ESTIMATORS
from ppojob_api.checks.support import UNSUPPORTED_TYPES
from ppojob_api.run_config import TRAJECTORY_SECTIONS
from ppojob_api.shape import members
from ppojob_api.v1alpha1.algorithm import KlSpec
from ppojob_api.well_known import JOB_NAME_LIMIT, JOB_NAME_PATTERN


@dataclass(frozen=True, slots=True)
class Rule:
    """One validation of the API server.

    Attributes:
        path: Section that the rule stands in; `self` is its value.
        expression: CEL; true for a good object.
        message: What is wrong and what is allowed.
        field: Member of the section that the message is about.
        reason: The API server's word: FieldValueInvalid or FieldValueForbidden.
    """

    path: str
    expression: str
    message: str
    field: str | None = None
    reason: str = "FieldValueInvalid"


def given(field: str) -> str:
    """CEL for "the optional field has a value": it may be absent or null.

    `dyn` keeps the type checker from refusing to compare, say, an integer with null.
    """
    return f"(has(self.{field}) && dyn(self.{field}) != null)"


def implies(condition: str, consequence: str) -> str:
    """CEL for "if ... then ..."."""
    return f"!({condition}) || ({consequence})"


def words(choices: frozenset[str]) -> str:
    """CEL list of words, in a stable order."""
    return "[" + ", ".join(f"'{choice}'" for choice in sorted(choices)) + "]"


NAME_RULES = (
    Rule(
        "",
        f"self.metadata.name.size() <= {JOB_NAME_LIMIT}"
        f" && self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        "metadata.name begins the names of pods and services; a letter, then letters, digits and"
        f" hyphens, all lower case, no hyphen at the end, at most {JOB_NAME_LIMIT} characters",
    ),
)

# CEL writes `in`, a word of its own, as `__in__`. Its literals are those of JSON, strings included.
_KL_DEFAULTS = " && ".join(
    f"self.{name} == {json.dumps(member.default)}"
    for name, member in members(KlSpec).items()
    if name != "in"
)

ALGORITHM_RULES = (
    Rule(
        "spec.algorithm",
        f"!(self.type in {words(UNSUPPORTED_TYPES)})",
        "training with a critic: not in this version",
        "type",
    ),
    Rule(
        "spec.algorithm",
        implies(f"self.type in {words(GROUP_ESTIMATORS)}", "self.samplesPerPrompt >= 2"),
        "the estimator compares the responses of a prompt with each other; at least 2,"
        " or type: reinforce_plus_plus",
        "samplesPerPrompt",
    ),
    Rule(
        "spec.algorithm",
        implies(
            given("miniBatchPrompts"),
            "self.miniBatchPrompts <= self.promptsPerStep"
            " && self.promptsPerStep % self.miniBatchPrompts == 0",
        ),
        "mini-batches cut promptsPerStep into equal parts; a divisor of promptsPerStep",
        "miniBatchPrompts",
    ),
    Rule(
        "spec.algorithm",
        implies(given("grpo"), "self.type == 'grpo'"),
        "it has no effect with another type; remove it, or type: grpo",
        "grpo",
    ),
    Rule(
        "spec.algorithm",
        implies(given("reinforcePlusPlus"), "self.type == 'reinforce_plus_plus'"),
        "it has no effect with another type; remove it, or type: reinforce_plus_plus",
        "reinforcePlusPlus",
    ),
    Rule(
        "spec.algorithm",
        implies(given("lossScaleTokens"), "self.lossAggregation == 'sequence_mean_token_sum_norm'"),
        "it has no effect with another lossAggregation; remove it, or lossAggregation:"
        " sequence_mean_token_sum_norm",
        "lossScaleTokens",
    ),
    Rule(
        "spec.algorithm.kl",
        implies("self.__in__ == 'none'", _KL_DEFAULTS),
        "nothing of kl has an effect with in: none; remove it, or in: loss or in: reward",
    ),
    Rule(
        "spec.algorithm.kl",
        implies("self.controller == 'adaptive'", "self.__in__ == 'reward'"),
        "only KL in the reward is controlled; fixed, or in: reward",
        "controller",
    ),
)

RUN_RULES = (
    Rule(
        "spec.steps",
        f"{given('total')} != {given('epochs')}",
        "a run has one length; exactly one of total and epochs",
    ),
    Rule(
        "spec.optimizer",
        implies("self.schedule == 'constant'", "self.minLearningRateRatio == 0.0"),
        "it has no effect with schedule: constant; remove it, or schedule: cosine",
        "minLearningRateRatio",
    ),
    Rule(
        "spec.rollout",
        "self.topK != 0 && self.validation.topK != 0",
        "topK 0 would leave no token; -1 for all tokens, or at least 1",
    ),
    Rule(
        "spec",
        implies(
            "self.algorithm.samplesPerPrompt > 1",
            "self.rollout.temperature > 0.0 && self.rollout.topK != 1",
        ),
        "the samples of a prompt would be identical; a temperature above 0 and topK other than 1",
    ),
    Rule(
        "spec",
        implies(
            given("rollout.maxModelTokens"),
            "self.data.maxPromptTokens + self.data.maxResponseTokens"
            " <= self.rollout.maxModelTokens",
        ),
        "rollout.maxModelTokens is less than data.maxPromptTokens + data.maxResponseTokens;"
        " at least their sum, or null",
    ),
    Rule(
        "spec.rewards[]",
        implies(given("source"), f"{given('source.path')} != {given('source.configMap')}"),
        "exactly one of path and configMap",
        "source",
    ),
)

# What decides the weights of a run stays as it was created.
IMMUTABLE_RULES = tuple(
    Rule(
        f"spec.{section}",
        "self == oldSelf",
        f"spec.{section} decides the weights and cannot change; make a job of another name",
    )
    for section in TRAJECTORY_SECTIONS
)

RULES = (*NAME_RULES, *ALGORITHM_RULES, *RUN_RULES, *IMMUTABLE_RULES)
