"""What CEL can say about the name of a job, its paths and its algorithm."""

from pydantic.alias_generators import to_camel

from ppojob_api.rules.rule import Rule, given, implies, untouched, words
from ppojob_api.v1alpha1.algorithm import ESTIMATORS, KlSpec
from ppojob_api.well_known import JOB_NAME_LIMIT, JOB_NAME_PATTERN

_COMPARE_GROUPS = frozenset(name for name, one in ESTIMATORS.items() if one.compares_group)

NAME_RULES = (
    Rule(
        "",
        f"self.metadata.name.size() <= {JOB_NAME_LIMIT}"
        f" && self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        "metadata.name begins the names of pods and services; a letter, then letters, digits and"
        f" hyphens, all lower case, no hyphen at the end, at most {JOB_NAME_LIMIT} characters",
    ),
    Rule(
        "spec",
        implies(
            given("checkpoint.volume"),
            "self.model.path.startsWith('/')"
            " && self.data.train.all(file, file.path.startsWith('/'))"
            " && self.data.validation.all(file, file.path.startsWith('/'))",
        ),
        "pods find no relative path; model.path and those of data absolute, on a volume that"
        " pods[].volumes mounts",
    ),
)

# CEL writes the field `in`, a word of its own, as `__in__`.
_KL_TARGET = ("target", "horizon")
_KL_TARGET_DEFAULTS = untouched(KlSpec, names=_KL_TARGET)
_KL_DEFAULTS = untouched(KlSpec, names=("estimator", "coefficient", "controller", *_KL_TARGET))

ALGORITHM_RULES = (
    Rule(
        "spec.algorithm",
        implies(f"self.type in {words(_COMPARE_GROUPS)}", "self.samplesPerPrompt >= 2"),
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
    *(
        Rule(
            "spec.algorithm",
            implies(given(to_camel(kind)), f"self.type == '{kind}'"),
            f"it has no effect with another type; remove it, or type: {kind}",
            to_camel(kind),
        )
        for kind, estimator in ESTIMATORS.items()
        if estimator.options is not None
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
)
