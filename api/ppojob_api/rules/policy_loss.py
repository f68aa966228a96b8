"""What CEL can say about the policy loss."""

from pydantic.alias_generators import to_camel

from ppojob_api.rules.rule import Rule, given, implies, untouched, words
from ppojob_api.v1alpha1.policy_loss import CLIP_FIELDS, LOSSES, BypassSpec, PolicyLossSpec

_MEANS_OF_RESPONSES = frozenset(name for name, one in LOSSES.items() if one.means_of_responses)
_CLIPS = (
    "self.type == 'clip' || self.type == 'bypass'"
    " && !(has(self.bypass) && self.bypass.form == 'reinforce')"
)
_CLIP_DEFAULTS = untouched(PolicyLossSpec, names=tuple(map(to_camel, CLIP_FIELDS)))
_NO_WEIGHTS = untouched(BypassSpec, names=("weights", "weightLimit"))

POLICY_LOSS_RULES = (
    *(
        Rule(
            "spec.algorithm.policyLoss",
            implies(given(to_camel(kind)), f"self.type == '{kind}'"),
            f"it has no effect with another type; remove it, or type: {kind}",
            to_camel(kind),
        )
        for kind, loss in LOSSES.items()
        if loss.options is not None
    ),
    Rule(
        "spec.algorithm.policyLoss",
        f"({_CLIPS}) || ({_CLIP_DEFAULTS})",
        "clipLow, clipHigh and dualClip have no effect but with type: clip, and type: bypass with"
        " form: clip; remove them",
    ),
    Rule(
        "spec.algorithm.policyLoss",
        "self.dualClip == 0.0 || self.dualClip > 1.0",
        "it bounds ratios above 1; above 1, or 0 for none",
        "dualClip",
    ),
    Rule(
        "spec.algorithm.policyLoss",
        implies("self.type == 'dro'", given("dro")),
        "type: dro needs dro.beta, which has no default; a number above 0",
    ),
    Rule(
        "spec.algorithm.policyLoss.bypass",
        implies("self.form == 'clip'", _NO_WEIGHTS),
        "weights and weightLimit have no effect with form: clip; remove them, or form: reinforce",
    ),
    Rule(
        "spec.algorithm.policyLoss.bypass",
        implies("self.weights == 'none'", untouched(BypassSpec, names=("weightLimit",))),
        "it has no effect with weights: none; remove it, or weights: token or sequence",
        "weightLimit",
    ),
    Rule(
        "spec.algorithm.policyLoss.clipCov",
        "self.covarianceLow < self.covarianceHigh",
        "no token lies between it and covarianceLow; above covarianceLow",
        "covarianceHigh",
    ),
    Rule(
        "spec.algorithm",
        implies(
            f"self.policyLoss.type in {words(_MEANS_OF_RESPONSES)}",
            "self.lossAggregation == 'sequence_mean_token_mean'",
        ),
        "this policyLoss.type is a mean over responses of the mean over their tokens;"
        " sequence_mean_token_mean",
        "lossAggregation",
    ),
)
