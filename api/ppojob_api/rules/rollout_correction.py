"""Which settings of the correction for the engine would have no effect, or contradict others."""

from ppojob_api.rules.rule import rules, untouched, words
from ppojob_api.v1alpha1.policy_loss import LOSSES
from ppojob_api.v1alpha1.rollout_correction import RATIO_MODES, RolloutCorrectionSpec

ROLLOUT_CORRECTION_RULES = rules(
    """
    spec.algorithm | rolloutCorrection | Required
        policyLoss.bypass.form: reinforce has no ratio of its own; weights: sequence or token, or
        none for no weights
    when: $IS_BYPASS && $IS_REINFORCE
    must: has(self.rolloutCorrection)

    spec.algorithm | rolloutCorrection.weights | NoEffect
        policyLoss.bypass.form: clip has the ratio to the engine already; none, or form: reinforce
    when: $IS_BYPASS && !($IS_REINFORCE) && has(self.rolloutCorrection)
    must: self.rolloutCorrection.weights == 'none'

    spec.algorithm | rolloutCorrection.weights | NoEffect
        policyLoss.type ${self.policyLoss.type} has the ratio to the engine already; none
    when: self.policyLoss.type in $HAVE_THE_RATIO && has(self.rolloutCorrection)
    must: self.rolloutCorrection.weights == 'none'

    spec.algorithm.rolloutCorrection | weightLimit | NoEffect
        it has no effect with weights: none; remove it, or weights: token or sequence
    when: self.weights == 'none'
    must: $LIMIT_UNTOUCHED

    spec.algorithm.rolloutCorrection | weightFloor | NoEffect
        it has no effect with weights: none; remove it, or weights: token or sequence
    when: self.weights == 'none'
    must: !has(self.weightFloor)

    spec.algorithm.rolloutCorrection | normalize | NoEffect
        it has no effect with weights: none; remove it, or weights: token or sequence
    when: self.weights == 'none'
    must: !self.normalize

    spec.algorithm.rolloutCorrection | weightFloor | OutOfRange
        no weight lies between it and weightLimit ${self.weightLimit}; at most that
    when: has(self.weightFloor)
    must: self.weightFloor <= self.weightLimit

    spec.algorithm.rolloutCorrection | rejection | Conflict | here
        two entries have one mode, and it has one pair of bounds; each mode at most once
    must: self.rejection.all(one, self.rejection.exists_one(other, other.mode == one.mode))

    spec.algorithm.rolloutCorrection.rejection[] | low | NoEffect
        it has no effect with a divergence of at least 0 ${self.mode}; remove it, or a mode with k1
    when: has(self.low)
    must: self.mode in $RATIO_MODES

    spec.algorithm.rolloutCorrection.rejection[] | high | OutOfRange
        no ratio lies between low and high; at least low
    when: self.mode in $RATIO_MODES && has(self.low)
    must: self.low <= self.high

    spec.algorithm.rolloutCorrection.rejection[] | high | OutOfRange
        no ratio lies between 1 / high, which low is where it is absent, and high; at least 1, or
        give low
    when: self.mode in $RATIO_MODES && !has(self.low)
    must: self.high >= 1.0
    """,
    HAVE_THE_RATIO=words(
        name for name, one in LOSSES.items() if one.is_of_sampler and name != "bypass"
    ),
    IS_BYPASS="self.policyLoss.type == 'bypass'",
    IS_REINFORCE="has(self.policyLoss.bypass) && self.policyLoss.bypass.form == 'reinforce'",
    LIMIT_UNTOUCHED=untouched(RolloutCorrectionSpec, names=("weightLimit",)),
    RATIO_MODES=words(RATIO_MODES),
)
