"""Rules of policy losses and rollout correction: required settings, those without effect."""

from pydantic.alias_generators import to_camel

from ppojob_api.rules.rule import rules, words
from ppojob_api.v1alpha1.estimators import GIVEN
from ppojob_api.v1alpha1.policy_loss import CLIP_FIELDS, LOSSES, RATIO_MODES

COMPARE_GROUPS = [name for name, one in LOSSES.items() if one.compares_group]
_REGRESS = [*COMPARE_GROUPS, *(name for name, one in LOSSES.items() if one.learns_log_z)]

POLICY_LOSS_RULES = rules(
    """
    spec.algorithm.policyLoss | $CLIP_FIELDS | NoEffect
        it has no effect with type ${self.type}; remove it, or type: clip
    when: self.type != 'clip' && (self.type != 'bypass'
        || has(self.bypass) && self.bypass.form == 'reinforce')

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

    spec.algorithm | policyLoss.type | Conflict
        it regresses rewards of responses, and a teacher rewards tokens; another type
    when: self.type == 'distillation'
    must: !(self.policyLoss.type in $REGRESS)

    spec.algorithm | samplesPerPrompt | OutOfRange
        policyLoss.type ${self.policyLoss.type} compares responses; at least 2, or another type
    when: !(self.type in $GIVEN) && self.policyLoss.type in $COMPARE_GROUPS
    must: self.samplesPerPrompt >= 2

    spec.algorithm | highEntropyShare | Conflict
        policyLoss.type ${self.policyLoss.type} has one loss a response; 1, or another type
    when: !(self.type in $GIVEN) && self.policyLoss.type in $OF_ROWS

    spec.algorithm | lossAggregation | Conflict
        policyLoss.type ${self.policyLoss.type} is a mean over responses of the mean over their
        tokens; sequence_mean_token_mean
    when: !(self.type in $GIVEN) && self.policyLoss.type in $MEANS_OF_RESPONSES
    must: self.lossAggregation == 'sequence_mean_token_mean'

    spec.algorithm | lossAggregation | Conflict
        policyLoss.type ${self.policyLoss.type} is a mean over responses of the mean over their
        tokens, or of the sum; sequence_mean_token_mean, or sequence_mean_token_sum
    when: !(self.type in $GIVEN) && self.policyLoss.type in $MAY_BE_SUMS
    must: self.lossAggregation in ['sequence_mean_token_mean', 'sequence_mean_token_sum']

    spec.algorithm | rolloutCorrection | Required
        policyLoss.bypass.form: reinforce has no ratio of its own; weights: sequence, token or none
    when: $IS_BYPASS && $IS_REINFORCE

    spec.algorithm | rolloutCorrection.weights | NoEffect
        policyLoss.bypass.form: clip has the ratio to the engine already; none, or form: reinforce
    when: $IS_BYPASS && !($IS_REINFORCE) && has(self.rolloutCorrection)

    spec.algorithm | rolloutCorrection.weights | NoEffect
        policyLoss.type ${self.policyLoss.type} has the ratio to the engine already; none
    when: self.policyLoss.type in $HAVE_THE_RATIO && has(self.rolloutCorrection)

    spec.algorithm.rolloutCorrection | weightFloor | OutOfRange
        no weight lies between it and weightLimit ${self.weightLimit}; at most that
    must: self.weightFloor <= self.weightLimit

    spec.algorithm.rolloutCorrection | rejection | Conflict | here
        two entries have one mode, and it has one pair of bounds; each mode at most once
    must: self.rejection.all(one, self.rejection.exists_one(other, other.mode == one.mode))

    spec.algorithm.rolloutCorrection.rejection[] | low | NoEffect
        a divergence has no lower bound ${self.mode}; remove it, or another mode with k1
    must: self.mode in $RATIO_MODES

    spec.algorithm.rolloutCorrection.rejection[] | high | OutOfRange | here
        every response has a token with a ratio above it; more than 1
    when: self.mode == 'seq_max_k1'
    must: self.high > 1.0

    spec.algorithm.rolloutCorrection.rejection[] | high | OutOfRange
        no ratio lies between low and high; at least low
    when: self.mode in $RATIO_MODES && has(self.low)
    must: self.low <= self.high

    spec.algorithm.rolloutCorrection.rejection[] | high | OutOfRange
        no ratio lies between 1 / high, the default of low, and high; at least 1, or give low
    when: self.mode in $RATIO_MODES && !has(self.low)
    must: self.high >= 1.0
    """,
    CLIP_FIELDS=" ".join(map(to_camel, CLIP_FIELDS)),
    COMPARE_GROUPS=words(COMPARE_GROUPS),
    GIVEN=words(GIVEN),
    HAVE_THE_RATIO=words(
        name for name, one in LOSSES.items() if one.is_of_sampler and name != "bypass"
    ),
    IS_BYPASS="self.policyLoss.type == 'bypass'",
    IS_REINFORCE="has(self.policyLoss.bypass) && self.policyLoss.bypass.form == 'reinforce'",
    MAY_BE_SUMS=words(name for name, one in LOSSES.items() if one.may_be_sums),
    MEANS_OF_RESPONSES=words(name for name, one in LOSSES.items() if one.means_of_responses),
    OF_ROWS=words(name for name, one in LOSSES.items() if one.is_of_rows),
    REGRESS=words(_REGRESS),
    RATIO_MODES=words(RATIO_MODES),
)
