"""What training on given or compared answers needs, and which settings have no effect there."""

from ppojob_api.rules.rule import either, rules, words
from ppojob_api.v1alpha1.estimators import GIVEN, PAIRS
from ppojob_api.v1alpha1.preferences import PAIR_LOSSES

_SMOOTHED = sorted(name for name, one in PAIR_LOSSES.items() if one.has_smoothing)
_WITH_MARGIN = sorted(name for name, one in PAIR_LOSSES.items() if one.has_margin)

ANSWER_RULES = rules(
    """
    spec.algorithm | samplesPerPrompt | OutOfRange
        a row has its answers with type ${self.type}; 1, or remove it
    when: self.type in $GIVEN
    must: self.samplesPerPrompt == 1

    spec.algorithm | $OF_RESPONSES | NoEffect | here
        rows have their answers with type ${self.type}, and nothing is estimated; remove it
    when: self.type in $GIVEN
    must: $UNSET

    spec.algorithm | lossAggregation | NoEffect | here
        losses are of whole answers with type ${self.type}, and their mean is taken; remove it
    when: self.type in $OF_ANSWERS
    must: $UNSET

    spec | data.answerKey | NoEffect | here
        pairs have their answers in data.chosenKey and data.rejectedKey; remove it
    when: self.algorithm.type in $PAIRS
    must: $UNSET

    spec | data.chosenKey data.rejectedKey | NoEffect | here
        it has no effect with another algorithm.type than $PAIR_NAMES; remove it
    when: !(self.algorithm.type in $PAIRS) && !self.data.splitPairs
    must: $UNSET

    spec | data.answerKey data.labelKey | NoEffect | here
        pairs have their answers in data.chosenKey and data.rejectedKey; remove it
    when: self.algorithm.type == 'kto' && self.data.splitPairs
    must: $UNSET

    spec | data.marginKey | NoEffect | here
        it has no effect with another algorithm.type than reward_model; remove it
    when: self.algorithm.type != 'reward_model'
    must: $UNSET

    spec | data.splitPairs data.labelKey | NoEffect | here
        it has no effect with another algorithm.type than kto; remove it
    when: self.algorithm.type != 'kto'
    must: $UNSET

    spec | data.toolsKey | NoEffect | here
        it has no effect with another algorithm.type than sft, dpo and kto, without
        data.demonstrations; remove it
    when: !(self.algorithm.type in ['sft', 'dpo', 'kto']) && self.data.demonstrations.size() == 0
    must: $UNSET

    spec | data.demonstrations | Required | here
        algorithm.supervised learns their answers; a list of files, or remove algorithm.supervised
    when: has(self.algorithm.supervised) && !(self.algorithm.type in $GIVEN)
    must: self.data.demonstrations.size() > 0

    spec | $OF_SUPERVISED | NoEffect | here
        it has no effect without algorithm.supervised; remove it, or give algorithm.supervised
    when: !has(self.algorithm.supervised) || self.algorithm.type in $GIVEN
    must: $UNSET

    spec.algorithm | supervised.rowsPerStep | OutOfRange | here
        each optimizer step of the policy learns one of them at least; as many as a step has
        ${$UPDATES}, or more
    when: has(self.supervised)
    must: $SUPERVISED_ROWS >= $UPDATES

    spec.algorithm.supervised | coefficient | OutOfRange | here
        interpolate weighs the loss of the policy with 1 - coefficient; at most 1, or interpolate:
        false
    when: self.interpolate
    must: self.coefficient <= 1.0

    spec.algorithm.supervised | decaySteps | Required | here
        the coefficient falls until then; a number of steps, or schedule: constant
    when: self.schedule != 'constant'
    must: has(self.decaySteps)

    spec.algorithm.supervised | decaySteps minCoefficient | NoEffect | here
        it has no effect with schedule: constant; remove it, or schedule: cosine or linear
    when: self.schedule == 'constant'
    must: $UNSET

    spec.algorithm.supervised | decaySteps | OutOfRange | here
        the warm-up ${self.warmupSteps} takes them; above warmupSteps
    when: has(self.decaySteps) && self.schedule != 'constant'
    must: self.decaySteps > self.warmupSteps

    spec.algorithm.supervised | minCoefficient | OutOfRange | here
        nothing is left to fall; below coefficient ${self.coefficient}
    when: self.schedule != 'constant'
    must: self.minCoefficient < self.coefficient

    spec.algorithm | promptsPerStep | OutOfRange | here
        kto reads each prompt with the answer to another one of its step as well; at least 2, or
        kto.lossType: apo_zero_unpaired
    when: self.type == 'kto' && !(has(self.kto) && self.kto.lossType == 'apo_zero_unpaired')
    must: self.promptsPerStep >= 2

    spec.algorithm.dpo spec.algorithm.onlineDpo | labelSmoothing | NoEffect
        it has no effect with lossType ${self.lossType}; remove it, or one of $SMOOTHED_NAMES
    when: !(self.lossType in $SMOOTHED)
    must: $UNSET

    spec.algorithm.dpo spec.algorithm.onlineDpo | labelSmoothing | OutOfRange
        robust learns nothing of pairs that say as often the one as the other; below 0.5
    when: self.lossType == 'robust'
    must: self.labelSmoothing < 0.5

    spec.algorithm.dpo spec.algorithm.onlineDpo | targetMargin | NoEffect
        it has no effect with lossType ${self.lossType}; remove it, or $MARGIN_NAMES
    when: !(self.lossType in $WITH_MARGIN)
    must: $UNSET

    spec | reference roles.reference | NoEffect | here
        pairs are compared with no reference with dpo.lossType ${self.algorithm.dpo.lossType};
        remove it
    when: self.algorithm.type == 'dpo' && has(self.algorithm.dpo)
        && self.algorithm.dpo.lossType in $WITHOUT_REFERENCE
    must: $UNSET

    spec | reference roles.reference algorithm.kl.referenceRefresh | NoEffect | here
        pairs are compared with no reference with onlineDpo.lossType
        ${self.algorithm.onlineDpo.lossType}; remove it
    when: self.algorithm.type == 'online_dpo' && has(self.algorithm.onlineDpo)
        && self.algorithm.onlineDpo.lossType in $WITHOUT_REFERENCE
    must: $UNSET

    spec.algorithm | $BESIDE_PAIRS | NoEffect | here
        the loss is that of pairs with type: online_dpo; remove it
    when: self.type == 'online_dpo'
    must: $UNSET

    spec.algorithm | routerBalanceCoefficient routerZCoefficient routerBiasRate | NotInThisVersion
        training of routers beside the loss of pairs: not in this version; remove it
    when: self.type == 'online_dpo'
    must: self.$FIELD == 0.0

    spec.algorithm.kto | undesirableWeight | NoEffect | here
        nothing is learnt with weights of 0 alone; a number above 0
    when: self.desirableWeight == 0.0
    must: self.undesirableWeight > 0.0

    spec.algorithm | kl.in | Conflict
        the loss of pairs holds the policy to its reference itself with type: online_dpo; none
    when: self.type == 'online_dpo'
    must: self.kl.__in__ == 'none'

    spec | data.applyChatTemplateKwargs data.templateColumns | NoEffect | here
        a reward model reads conversations by its template alone; remove it
    when: self.algorithm.type == 'reward_model'
    must: $UNSET

    spec | $OF_ROLLOUTS | NoEffect | here
        nothing is generated or scored with algorithm.type ${self.algorithm.type}; remove it
    when: self.algorithm.type in $GIVEN
    must: $UNSET

    spec | steps.validateOnly steps.generateOnly | Conflict | here
        a job generates nothing with algorithm.type ${self.algorithm.type}; a job of another type,
        with the export as its model
    when: self.algorithm.type in $GIVEN
    must: $UNSET

    spec | data.maxPicturePixels data.minPicturePixels | NoEffect | here
        a reward model is shown no pictures; remove it
    when: self.algorithm.type == 'reward_model'
    must: !has(self.$FIELD)

    spec | model.mtp | NotInThisVersion | here
        answers that are compared (algorithm.type ${self.algorithm.type}): not in this version;
        remove it
    when: self.algorithm.type in $OF_ANSWERS || self.algorithm.type == 'online_dpo'
    must: $UNSET

    spec | model.freezeVisionTower | NoEffect | here
        rows with algorithm.type ${self.algorithm.type} show no pictures; remove it
    when: self.algorithm.type == 'reward_model'
    must: self.model.freezeVisionTower
    """,
    BESIDE_PAIRS="policyLoss rolloutCorrection entropyCoefficient entropyControl highEntropyShare"
    " offPolicyThreshold lossAggregation resampling positiveExamples",
    GIVEN=words(GIVEN),
    MARGIN_NAMES=" or ".join(_WITH_MARGIN),
    OF_ANSWERS=words(name for name in GIVEN if name != "sft"),
    OF_RESPONSES="policyLoss rolloutCorrection dynamicSampling groupFilter resampling"
    " overlongPenalty scoreClip truncationPenalty positiveExamples"
    " entropyCoefficient entropyControl highEntropyShare offPolicyThreshold maskTruncated"
    " routerReplay kl supervised",
    OF_ROLLOUTS="rollout agent rewards rewardModel sandbox roles.rollout roles.reward"
    " data.dataSourceKey data.dataSource numExamine",
    OF_SUPERVISED="data.demonstrations data.demonstrationPromptKey data.demonstrationAnswerKey",
    PAIRS=words(PAIRS),
    PAIR_NAMES=" and ".join(PAIRS),
    SMOOTHED=words(_SMOOTHED),
    SUPERVISED_ROWS=either("supervised.rowsPerStep", "self.promptsPerStep"),
    UPDATES="self.epochs * (self.promptsPerStep / "
    + either("miniBatchPrompts", "self.promptsPerStep")
    + ")",
    SMOOTHED_NAMES=", ".join(_SMOOTHED),
    WITHOUT_REFERENCE=words(name for name, one in PAIR_LOSSES.items() if not one.has_reference),
    WITH_MARGIN=words(_WITH_MARGIN),
)
