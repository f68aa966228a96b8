"""What a policy loss needs, and which of its settings would have no effect."""

from pydantic.alias_generators import to_camel

from ppojob_api.rules.rule import rules, untouched, words
from ppojob_api.v1alpha1.policy_loss import CLIP_FIELDS, LOSSES, PolicyLossSpec

POLICY_LOSS_RULES = (
    *(
        rule
        for kind, loss in LOSSES.items()
        if loss.options is not None
        for rule in rules(
            """
            spec.algorithm.policyLoss | $OPTIONS | NoEffect
                it has no effect with type ${self.type}; remove it, or type: $KIND
            when: has(self.$OPTIONS)
            must: self.type == '$KIND'
            """,
            KIND=kind,
            OPTIONS=to_camel(kind),
        )
    ),
    *(
        rule
        for name in map(to_camel, CLIP_FIELDS)
        for rule in rules(
            """
            spec.algorithm.policyLoss | $CLIP_FIELD | NoEffect
                it has no effect with type ${self.type}; remove it, or type: clip
            when: self.type != 'clip' && (self.type != 'bypass'
                || has(self.bypass) && self.bypass.form == 'reinforce')
            must: $CLIP_FIELD_UNTOUCHED
            """,
            CLIP_FIELD=name,
            CLIP_FIELD_UNTOUCHED=untouched(PolicyLossSpec, names=(name,)),
        )
    ),
    *rules(
        """
        spec.algorithm.policyLoss | dualClip | OutOfRange
            it bounds ratios above 1; above 1, or 0 for none
        must: self.dualClip == 0.0 || self.dualClip > 1.0

        spec.algorithm.policyLoss | dro.beta | Required
            type: dro needs it, and it has no default; a number above 0
        when: self.type == 'dro'
        must: has(self.dro)

        spec.algorithm.policyLoss.clipCov | covarianceHigh | OutOfRange
            no token lies between it and covarianceLow ${self.covarianceLow}; above that
        must: self.covarianceLow < self.covarianceHigh

        spec.algorithm | highEntropyShare | Conflict
            policyLoss.type: geo_mean has one loss for all tokens of a response; 1, or another type
        when: self.policyLoss.type == 'geo_mean'
        must: self.highEntropyShare == 1.0

        spec.algorithm | lossAggregation | Conflict
            policyLoss.type ${self.policyLoss.type} is a mean over responses of the mean over their
            tokens; sequence_mean_token_mean
        when: self.policyLoss.type in $MEANS_OF_RESPONSES
        must: self.lossAggregation == 'sequence_mean_token_mean'

        spec.algorithm | lossAggregation | Conflict
            policyLoss.type ${self.policyLoss.type} is a mean over responses of the mean over their
            tokens, or of the sum; sequence_mean_token_mean, or sequence_mean_token_sum
        when: self.policyLoss.type in $MAY_BE_SUMS
        must: self.lossAggregation in ['sequence_mean_token_mean', 'sequence_mean_token_sum']
        """,
        MAY_BE_SUMS=words(name for name, one in LOSSES.items() if one.may_be_sums),
        MEANS_OF_RESPONSES=words(name for name, one in LOSSES.items() if one.means_of_responses),
    ),
)
