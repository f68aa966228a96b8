"""Rules of SFT and preference training: required settings, and those without effect."""

from ppojob_api.rules.rule import either, rules, words
from ppojob_api.v1alpha1.estimators import ESTIMATORS, GIVEN, PAIRS
from ppojob_api.v1alpha1.policy_loss import LOSSES

_GUIDED = [name for name, one in ESTIMATORS.items() if one.compares_scores]

ANSWER_RULES = rules(
    """
    spec.algorithm | samplesPerPrompt | OutOfRange
        type ${self.type} reads responses from the data; 1, or remove it
    when: self.type in $GIVEN

    spec.algorithm | $OF_RESPONSES | NoEffect | here
        type ${self.type} has no rollouts and no advantages; remove it
    when: self.type in $GIVEN

    spec.algorithm | lossAggregation | NoEffect | here
        type ${self.type} averages the losses of whole responses; remove it
    when: self.type in $OF_ANSWERS

    spec | data.answerKey | NoEffect | here
        preference pairs are read from data.chosenKey and data.rejectedKey; remove it
    when: self.algorithm.type in $PAIRS

    spec | data.chosenKey data.rejectedKey | NoEffect | here
        it has no effect with another algorithm.type than $PAIR_NAMES; remove it
    when: !(self.algorithm.type in $PAIRS) && !self.data.splitPairs

    spec | data.answerKey data.labelKey | NoEffect | here
        preference pairs are read from data.chosenKey and data.rejectedKey; remove it
    when: self.algorithm.type == 'kto' && self.data.splitPairs

    spec | data.toolsKey | NoEffect | here
        it has no effect on type ${self.algorithm.type} without data.demonstrations; remove it
    when: !(self.algorithm.type in ['sft', 'dpo', 'kto']) && self.data.demonstrations.size() == 0

    spec | data.demonstrations | Required | here
        algorithm.supervised trains on demonstrations; files, or remove algorithm.supervised
    when: has(self.algorithm.supervised) && !(self.algorithm.type in $GIVEN)
    must: self.data.demonstrations.size() > 0

    spec | $OF_SUPERVISED | NoEffect | here
        it has no effect without algorithm.supervised; remove it, or give algorithm.supervised
    when: !has(self.algorithm.supervised) || self.algorithm.type in $GIVEN

    spec.algorithm | supervised.rowsPerStep | OutOfRange | here
        each optimizer step of a step needs a demonstration; at least as many ${$UPDATES}
    must: $SUPERVISED_ROWS >= $UPDATES

    spec.algorithm.supervised | coefficient | OutOfRange | here
        interpolate weighs the policy loss with 1 - coefficient; at most 1, or interpolate: false
    when: self.interpolate
    must: self.coefficient <= 1.0

    spec.algorithm.supervised | decaySteps | Required | here
        the coefficient decays until then; a number of steps, or schedule: constant
    when: self.schedule != 'constant'

    spec.algorithm.supervised | decaySteps | OutOfRange | here
        the warm-up ${self.warmupSteps} takes them; above warmupSteps
    when: self.schedule != 'constant'
    must: self.decaySteps > self.warmupSteps

    spec.algorithm.supervised | minCoefficient | OutOfRange | here
        there is nothing to decay; below coefficient ${self.coefficient}
    when: self.schedule != 'constant'
    must: self.minCoefficient < self.coefficient

    spec | data.guidanceKey | Required | here
        algorithm.guidance needs off-policy responses; a column, such as target, or no guidance
    when: has(self.algorithm.guidance) && !(self.algorithm.type in $GIVEN)

    spec | data.guidanceKey | NoEffect | here
        it has no effect without algorithm.guidance; remove it, or give algorithm.guidance
    when: !has(self.algorithm.guidance)

    spec.algorithm | guidance.samples | OutOfRange
        at least one response must be on-policy; below samplesPerPrompt ${self.samplesPerPrompt}
    when: !(self.type in $GIVEN)
    must: self.guidance.samples < self.samplesPerPrompt

    spec.algorithm | type | Conflict
        guidance compares responses by their scores; one of $GUIDED_NAMES, or no guidance
    when: has(self.guidance) && !(self.type in $GIVEN)
    must: self.type in $GUIDED

    spec.algorithm | policyLoss.type | Conflict
        guidance needs a token-level loss without sampler log-probabilities; clip, or another such
    when: has(self.guidance) && !(self.type in $GIVEN)
    must: !(self.policyLoss.type in $UNGUIDED)

    spec.algorithm | routerReplay | Conflict
        no engine records the experts of off-policy responses (guidance); recompute, or none
    when: has(self.guidance)
    must: self.routerReplay != 'rollout'

    spec.algorithm | kl.unbiased | Conflict
        the old policy did not generate the off-policy responses of guidance; false, or no guidance
    when: has(self.guidance)

    spec | agent | NotInThisVersion
        agents with algorithm.guidance: not in this version; remove it, or algorithm.guidance
    when: has(self.algorithm.guidance)

    spec.algorithm | promptsPerStep | OutOfRange | here
        kto also pairs each prompt with another's answer; at least 2, or another kto.lossType
    when: self.type == 'kto' && (!has(self.kto) || self.kto.lossType == 'kto')
    must: self.promptsPerStep >= 2

    spec.algorithm | $BESIDE_PAIRS | NoEffect | here
        type: online_dpo has a preference loss of its own; remove it
    when: self.type == 'online_dpo'

    spec.algorithm | routerBalanceCoefficient routerZCoefficient routerBiasRate | NotInThisVersion
        router training with a preference loss: not in this version; remove it
    when: self.type == 'online_dpo'

    spec.algorithm | kl.in | Conflict
        the loss of type: online_dpo compares with the reference already; none
    when: self.type == 'online_dpo'
    must: self.kl.__in__ == 'none'

    spec | data.applyChatTemplateKwargs data.templateColumns | NoEffect | here
        a reward model renders conversations with its template alone; remove it
    when: self.algorithm.type == 'reward_model'

    spec | $OF_ROLLOUTS | NoEffect | here
        nothing is generated or scored with algorithm.type ${self.algorithm.type}; remove it
    when: self.algorithm.type in $GIVEN

    spec | steps.validateOnly steps.generateOnly | Conflict | here
        type ${self.algorithm.type} has no rollouts; a grpo job, say, with the export as its model
    when: self.algorithm.type in $GIVEN

    spec | model.mtp | NotInThisVersion | here
        with algorithm.type ${self.algorithm.type}: not in this version; remove it
    when: self.algorithm.type in $OF_ANSWERS || self.algorithm.type == 'online_dpo'
    """,
    BESIDE_PAIRS="policyLoss rolloutCorrection entropyCoefficient entropyControl highEntropyShare"
    " offPolicyThreshold lossAggregation resampling positiveExamples",
    GIVEN=words(GIVEN),
    GUIDED=words(_GUIDED),
    GUIDED_NAMES=", ".join(_GUIDED),
    OF_ANSWERS=words(name for name in GIVEN if name != "sft"),
    OF_RESPONSES="policyLoss rolloutCorrection dynamicSampling groupFilter resampling"
    " overlongPenalty scoreClip truncationPenalty positiveExamples certaintyReward"
    " entropyCoefficient entropyControl highEntropyShare offPolicyThreshold maskTruncated"
    " routerReplay kl supervised guidance",
    OF_ROLLOUTS="rollout agent rewards rewardModel sandbox roles.rollout roles.reward"
    " data.dataSourceKey data.dataSource numExamine",
    OF_SUPERVISED="data.demonstrations data.demonstrationPromptKey data.demonstrationAnswerKey",
    PAIRS=words(PAIRS),
    PAIR_NAMES=" and ".join(PAIRS),
    SUPERVISED_ROWS=either("supervised.rowsPerStep", "self.promptsPerStep"),
    UPDATES="self.epochs * (self.promptsPerStep / "
    + either("miniBatchPrompts", "self.promptsPerStep")
    + ")",
    UNGUIDED=words(name for name, one in LOSSES.items() if one.is_of_rows or one.is_of_sampler),
)
