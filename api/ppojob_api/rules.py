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


def untouched(*names: str) -> str:
    """CEL for "these fields of kl have their defaults"; its literals are those of JSON."""
    fields = members(KlSpec)
    return " && ".join(f"self.{name} == {json.dumps(fields[name].default)}" for name in names)


# CEL writes the field `in`, a word of its own, as `__in__`.
_KL_DEFAULTS = untouched("estimator", "coefficient", "controller", "target", "horizon")
_KL_TARGET_DEFAULTS = untouched("target", "horizon")

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

EFFECT_RULES = (
    Rule(
        "spec.algorithm.kl",
        implies("self.__in__ != 'none'", "self.coefficient > 0.0"),
        "KL has no effect with coefficient: 0; in: none, or a coefficient above 0",
        "coefficient",
    ),
    Rule(
        "spec.algorithm.kl",
        implies("self.controller == 'fixed'", _KL_TARGET_DEFAULTS),
        "target and horizon have no effect with controller: fixed; remove them, or controller:"
        " adaptive",
    ),
    Rule(
        "spec.algorithm",
        implies(
            "self.shuffleMiniBatches",
            f"{given('miniBatchPrompts')} && self.miniBatchPrompts < self.promptsPerStep",
        ),
        "it has no effect with one mini-batch a step; false, or miniBatchPrompts below"
        " promptsPerStep",
        "shuffleMiniBatches",
    ),
    Rule(
        "spec",
        implies(given("roles.reference"), "self.algorithm.kl.__in__ != 'none'"),
        "roles.reference has no effect with algorithm.kl.in: none; remove it, or in: loss or"
        " in: reward",
    ),
    Rule(
        "spec.data",
        implies(given("seed"), "self.shuffle"),
        "it has no effect with shuffle: false; remove it",
        "seed",
    ),
    Rule(
        "spec.rollout",
        implies(given("kvCacheGib"), "self.engine != 'huggingface'"),
        "it has no effect with engine: huggingface; remove it, or engine: vllm",
        "kvCacheGib",
    ),
    Rule(
        "spec.rollout.validation",
        implies(
            "self.temperature == 0.0", "self.samples == 1 && self.topP == 1.0 && self.topK == -1"
        ),
        "samples, topP and topK have no effect with temperature: 0; remove them, or a temperature"
        " above 0",
    ),
    Rule(
        "spec.rewards[]",
        "self.weight != 0.0",
        "a reward of weight 0 has no effect; another weight, or remove it",
        "weight",
    ),
    Rule(
        "spec.loggers",
        "self.all(one, self.exists_one(other, other == one))",
        "each logger once",
    ),
    Rule(
        "spec",
        implies(
            given("steps.total"),
            f"(!{given('steps.validateEvery')} || self.steps.validateEvery <= self.steps.total)"
            f" && (!{given('checkpoint.every')} || self.checkpoint.every <= self.steps.total)",
        ),
        "steps.validateEvery or checkpoint.every would never happen; at most steps.total, or null",
    ),
)

SUPPORT_RULES = (
    Rule(
        "spec.roles",
        f"!{given('rollout')}",
        "pods of its own for generation: not in this version; null",
        "rollout",
    ),
    Rule(
        "spec.roles",
        f"!{given('critic')}",
        "a critic: not in this version; null",
        "critic",
    ),
    Rule(
        "spec.roles.reference",
        given("colocateWith"),
        "a reference in pods of its own: not in this version; actorRollout",
        "colocateWith",
    ),
    Rule(
        "spec.roles.actorRollout",
        "self.replicas == 1 && self.gpusPerReplica <= 1"
        f" && (!{given('ranksPerReplica')} || self.ranksPerReplica == 1)",
        "more than one rank of the policy: not in this version; replicas 1, gpusPerReplica 0 or 1,"
        " ranksPerReplica 1",
    ),
    Rule(
        "spec.roles.actorRollout.parallelism",
        f"self.tensor == 1 && (!{given('dataShard')} || self.dataShard == 1)",
        "sharded or tensor parallel training: not in this version; 1",
    ),
    Rule(
        "spec.rollout.parallelism",
        f"self.tensor == 1 && (!{given('data')} || self.data == 1)",
        "more than one rank of generation: not in this version; 1",
    ),
    Rule(
        "spec.rewards[]",
        f"!{given('source')} || !{given('source.configMap')}",
        "code from a ConfigMap: not in this version; source: {path: FILE}",
        "source",
    ),
    Rule(
        "spec.model",
        "!self.trustRemoteCode",
        "code that comes with a model: not in this version; false",
        "trustRemoteCode",
    ),
    Rule(
        "spec.lifecycle",
        f"!self.suspend && !{given('activeDeadlineSeconds')}"
        f" && !{given('ttlSecondsAfterFinished')}",
        "suspending, deadlines and deletion after the end: not in this version; false and null",
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

RULES = (
    *NAME_RULES,
    *ALGORITHM_RULES,
    *RUN_RULES,
    *EFFECT_RULES,
    *SUPPORT_RULES,
    *IMMUTABLE_RULES,
)
