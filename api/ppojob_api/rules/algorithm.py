"""What an algorithm needs, and which of its settings would have no effect."""

from pydantic.alias_generators import to_camel

from ppojob_api.problem import ReasonCode
from ppojob_api.rules.rule import Rule, given, untouched, words
from ppojob_api.v1alpha1.algorithm import ESTIMATORS, KlSpec

_COMPARE_GROUPS = [name for name, one in ESTIMATORS.items() if one.compares_group]
_HAVE_CRITIC = [name for name, one in ESTIMATORS.items() if one.has_critic]
_SCALED_LOSS = "sequence_mean_token_sum_norm"

_ALGORITHM = "spec.algorithm"
_KL = "spec.algorithm.kl"
_KL_TARGET = ("target", "horizon")
_NO_EFFECT = ReasonCode.NO_EFFECT
_DIVISOR = (
    "it does not cut promptsPerStep ${self.%spromptsPerStep} into equal parts; a divisor of it"
)

ALGORITHM_RULES = (
    Rule(
        _ALGORITHM,
        "samplesPerPrompt",
        "self.samplesPerPrompt >= 2",
        "the estimator ${self.type} compares the responses of a prompt with each other; at least 2,"
        " or type: reinforce_plus_plus",
        ReasonCode.OUT_OF_RANGE,
        when=f"self.type in {words(_COMPARE_GROUPS)}",
    ),
    Rule(
        _ALGORITHM,
        "miniBatchPrompts",
        "self.miniBatchPrompts <= self.promptsPerStep"
        " && self.promptsPerStep % self.miniBatchPrompts == 0",
        _DIVISOR % "",
        ReasonCode.OUT_OF_RANGE,
        when=given("miniBatchPrompts"),
    ),
    Rule(
        "spec",
        "critic.miniBatchPrompts",
        "self.critic.miniBatchPrompts <= self.algorithm.promptsPerStep"
        " && self.algorithm.promptsPerStep % self.critic.miniBatchPrompts == 0",
        _DIVISOR % "algorithm.",
        ReasonCode.OUT_OF_RANGE,
        when=f"{given('critic')} && {given('critic.miniBatchPrompts')}",
    ),
    *(
        Rule(
            _ALGORITHM,
            to_camel(kind),
            f"self.type == '{kind}'",
            f"it has no effect with another type; remove it, or type: {kind}",
            _NO_EFFECT,
            when=given(to_camel(kind)),
        )
        for kind, estimator in ESTIMATORS.items()
        if estimator.options is not None
    ),
    *(
        Rule(
            "spec",
            section,
            f"self.algorithm.type in {words(_HAVE_CRITIC)}",
            "it has no effect with another algorithm.type than"
            f" {', '.join(sorted(_HAVE_CRITIC))}; remove it",
            _NO_EFFECT,
            when=given(section),
        )
        for section in ("critic", "roles.critic")
    ),
    Rule(
        _ALGORITHM,
        "lossScaleTokens",
        f"self.lossAggregation == '{_SCALED_LOSS}'",
        "it has no effect with another lossAggregation; remove it, or lossAggregation:"
        f" {_SCALED_LOSS}",
        _NO_EFFECT,
        when=given("lossScaleTokens"),
    ),
    Rule(
        "spec",
        "algorithm.shuffleMiniBatches",
        f"{given('algorithm.miniBatchPrompts')}"
        " && self.algorithm.miniBatchPrompts < self.algorithm.promptsPerStep"
        f" || {given('critic')} && {given('critic.miniBatchPrompts')}"
        " && self.critic.miniBatchPrompts < self.algorithm.promptsPerStep",
        "it has no effect with one mini-batch a step; false, or miniBatchPrompts below"
        " promptsPerStep",
        _NO_EFFECT,
        when="self.algorithm.shuffleMiniBatches",
    ),
    Rule(
        f"{_ALGORITHM}.policyLoss",
        "dualClip",
        "self.dualClip == 0.0 || self.dualClip > 1.0",
        "it bounds ratios above 1; above 1, or 0 for none",
        ReasonCode.OUT_OF_RANGE,
    ),
    Rule(
        _KL,
        "",
        untouched(KlSpec, names=("estimator", "coefficient", "controller", *_KL_TARGET)),
        "nothing of kl has an effect with in: none; remove it, or in: loss or in: reward",
        _NO_EFFECT,
        when="self.__in__ == 'none'",
    ),
    Rule(
        _KL,
        "controller",
        "self.controller == 'fixed'",
        "only KL in the reward is controlled; fixed, or in: reward",
        _NO_EFFECT,
        when="self.__in__ == 'loss'",
    ),
    Rule(
        _KL,
        "coefficient",
        "self.coefficient > 0.0",
        "KL has no effect with coefficient: 0; in: none, or a coefficient above 0",
        _NO_EFFECT,
        when="self.__in__ != 'none'",
    ),
    Rule(
        _KL,
        "",
        untouched(KlSpec, names=_KL_TARGET),
        "target and horizon have no effect with controller: fixed; remove them, or controller:"
        " adaptive",
        _NO_EFFECT,
        when="self.__in__ != 'none' && self.controller == 'fixed'",
    ),
    Rule(
        "spec",
        "roles.reference",
        "self.algorithm.kl.__in__ != 'none'",
        "it has no effect with algorithm.kl.in: none; remove it, or in: loss or in: reward",
        _NO_EFFECT,
        when=given("roles.reference"),
    ),
)
