"""What CEL can say about a job, so that the API server refuses at admission by itself.

Each rule repeats a check of `ppojob_api.checks`; those remain the full list, in their own words.
"""

from ppojob_api.checks.arithmetic import GROUP_ESTIMATORS, LEAST_TEMPERATURE
from ppojob_api.checks.schedule import VALIDATION_METRICS
from ppojob_api.role_rules import PENDING_ROLE_RULES, ROLE_RULES
from ppojob_api.rule import Rule, given, implies, untouched, words
from ppojob_api.run_config import TRAJECTORY_SECTIONS
from ppojob_api.shape import members
from ppojob_api.v1alpha1.algorithm import KlSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.well_known import JOB_NAME_LIMIT, JOB_NAME_PATTERN

NAME_RULES = (
    Rule(
        "",
        f"self.metadata.name.size() <= {JOB_NAME_LIMIT}"
        f" && self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        "metadata.name begins the names of pods and services; a letter, then letters, digits and"
        f" hyphens, all lower case, no hyphen at the end, at most {JOB_NAME_LIMIT} characters",
    ),
)


# CEL writes the field `in`, a word of its own, as `__in__`.
_KL_TARGET = ("target", "horizon")
_KL_TARGET_DEFAULTS = untouched(KlSpec, names=_KL_TARGET)
_KL_DEFAULTS = untouched(KlSpec, names=("estimator", "coefficient", "controller", *_KL_TARGET))

ALGORITHM_RULES = (
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
        implies(given("ppo"), "self.type == 'ppo'"),
        "it has no effect with another type; remove it, or type: ppo",
        "ppo",
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
        f"self.validateOnly ? !({given('total')} && {given('epochs')})"
        f" : {given('total')} != {given('epochs')}",
        "a run has one length; exactly one of total and epochs",
    ),
    Rule(
        "spec.steps",
        implies("self.validateOnly", "self.validateFirst"),
        "validateOnly runs the first validation and nothing else; true, or validateOnly: false",
        "validateFirst",
    ),
    Rule(
        "spec",
        implies("self.steps.validateOnly", "self.data.validation.size() > 0"),
        "steps.validateOnly has no rows to validate on; files in data.validation, or validateOnly:"
        " false",
    ),
    *(
        Rule(
            f"spec.{section}",
            implies("self.schedule == 'constant'", "self.minLearningRateRatio == 0.0"),
            "it has no effect with schedule: constant; remove it, or schedule: cosine",
            "minLearningRateRatio",
        )
        for section in ("optimizer", "critic.optimizer")
    ),
    Rule(
        "spec",
        implies(
            f"{given('critic')} && {given('critic.miniBatchPrompts')}",
            "self.critic.miniBatchPrompts <= self.algorithm.promptsPerStep"
            " && self.algorithm.promptsPerStep % self.critic.miniBatchPrompts == 0",
        ),
        "critic.miniBatchPrompts cuts promptsPerStep into equal parts; a divisor of"
        " algorithm.promptsPerStep",
    ),
    Rule(
        "spec",
        implies(
            f"{given('critic')} && {given('steps.total')}",
            "self.critic.warmupSteps < self.steps.total",
        ),
        "critic.warmupSteps leaves no step that trains the policy; below steps.total",
    ),
    Rule(
        "spec.checkpoint",
        implies(
            given("best"),
            " || ".join(f"self.best.metric.startsWith('{name}')" for name in VALIDATION_METRICS),
        ),
        f"best.metric is not one of a validation; a name that begins with"
        f" {' or '.join(VALIDATION_METRICS)}",
        "best",
    ),
    Rule(
        "spec",
        implies(
            given("checkpoint.best"),
            f"self.data.validation.size() > 0 && {given('steps.validateEvery')}"
            f" && {given('checkpoint.every')}"
            " && self.checkpoint.every % self.steps.validateEvery == 0",
        ),
        "checkpoint.best needs a validation at each commit; data.validation, steps.validateEvery,"
        " and checkpoint.every as a multiple of it",
    ),
    *(
        Rule(
            f"spec.{section}",
            f"self.temperature == 0.0 || self.temperature >= {LEAST_TEMPERATURE}",
            "engines take such a temperature for 0, or divide by almost nothing; must be 0, or at"
            f" least {LEAST_TEMPERATURE} and finite",
            "temperature",
        )
        for section in ("rollout", "rollout.validation")
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
    *(
        Rule(
            "spec",
            implies(given(section), "self.algorithm.type == 'ppo'"),
            f"{section} has no effect with another algorithm.type than ppo; remove it",
        )
        for section in ("critic", "roles.critic")
    ),
    Rule(
        "spec",
        implies(given("roles.rewardModel"), given("rewardModel")),
        "roles.rewardModel has no effect without rewardModel; remove it, or give rewardModel",
    ),
    Rule(
        "spec.rewardModel",
        "self.weight != 0.0",
        "a reward of weight 0 has no effect; another weight, or rewardModel: null",
        "weight",
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
        "spec.rollout.parallelism",
        "self.tensor == 1",
        "tensor parallel generation: not in this version; 1",
        "tensor",
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

PENDING_RULES = (
    Rule(
        "spec.algorithm",
        "self.type != 'ppo'",
        "training with a critic: not in this version",
        "type",
    ),
    Rule("spec", f"!{given('rewardModel')}", "a reward model: not in this version; null"),
    Rule(
        "spec.steps",
        "!self.validateOnly",
        "validation without training: not in this version; false",
        "validateOnly",
    ),
    Rule(
        "spec.checkpoint",
        f"!{given('best')}",
        "keeping the best commit: not in this version; null",
        "best",
    ),
    *PENDING_ROLE_RULES,
)

# A rule within a section that may be absent goes with it, so those are watched from above.
_OPTIONAL_SECTIONS = tuple(
    section for section in TRAJECTORY_SECTIONS if members(PPOJobSpec)[section].shape.nullable
)


def _kept(section: str) -> str:
    """CEL for "an optional member of the spec stays as it was, or stays away"."""
    new, old = given(section), given(section).replace("self.", "oldSelf.")
    return f"{new} == {old} && (!{new} || self.{section} == oldSelf.{section})"


# What decides the weights of a run stays as it was created.
IMMUTABLE_RULES = tuple(
    Rule(
        "spec" if section in _OPTIONAL_SECTIONS else f"spec.{section}",
        _kept(section) if section in _OPTIONAL_SECTIONS else "self == oldSelf",
        f"spec.{section} decides the weights and cannot change; make a job of another name",
    )
    for section in TRAJECTORY_SECTIONS
)

RULES = (
    *NAME_RULES,
    *ALGORITHM_RULES,
    *RUN_RULES,
    *EFFECT_RULES,
    *ROLE_RULES,
    *SUPPORT_RULES,
    *PENDING_RULES,
    *IMMUTABLE_RULES,
)
