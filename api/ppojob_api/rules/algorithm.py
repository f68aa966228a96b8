"""Rules of algorithms: required settings, and settings without effect."""

from ppojob_api.rules.policy_loss import COMPARE_GROUPS as LOSSES_OF_GROUPS
from ppojob_api.rules.rule import rules, words
from ppojob_api.v1alpha1.estimators import ESTIMATORS
from ppojob_api.v1alpha1.policy_loss import LOSSES

ALGORITHM_RULES = rules(
    """
    spec.algorithm | samplesPerPrompt | OutOfRange
        type ${self.type} compares the responses of a prompt; at least 2, or another type
    when: self.type in $COMPARE_GROUPS
    must: self.samplesPerPrompt >= 2

    spec | rewards | Conflict | here
        majority_vote always gives a single response 1, and so the greedy ones of remax;
        algorithm.samplesPerPrompt of at least 2, and another algorithm.type than remax
    when: self.algorithm.samplesPerPrompt == 1 || self.algorithm.type == 'remax'
    must: self.rewards.all(one, one.function != 'majority_vote' || has(one.source))

    spec.algorithm | dynamicSampling | Conflict
        a single response never differs; samplesPerPrompt of at least 2, or remove it
    must: self.samplesPerPrompt >= 2

    spec.algorithm | dynamicSampling.maxRounds | OutOfRange
        so many rounds never fill promptsPerStep ${self.promptsPerStep}; more, or larger ones
    must: self.dynamicSampling.maxRounds * self.dynamicSampling.promptsPerRound
        >= self.promptsPerStep

    spec.algorithm | groupFilter.keep | OutOfRange
        all of them are kept; less than samplesPerPrompt ${self.samplesPerPrompt}
    must: self.groupFilter.keep < self.samplesPerPrompt

    spec.algorithm | groupFilter.keep | OutOfRange
        type, policyLoss.type or dynamicSampling compares those that are kept; at least 2
    when: has(self.groupFilter) && (self.type in $COMPARE_GROUPS
        || self.policyLoss.type in $LOSSES_OF_GROUPS || has(self.dynamicSampling))
    must: self.groupFilter.keep >= 2

    spec.algorithm.dynamicSampling | meanAbove | OutOfRange
        no mean is above it and below meanBelow ${self.meanBelow}; less than that
    must: self.meanAbove < self.meanBelow

    spec.algorithm | gdpo | Required
        it compares several rewards; {rewardKeys: [NAME, ...]}, numbers of reward functions
    when: self.type == 'gdpo'

    spec | agent | Required
        algorithm.type: gigpo compares turns; an agent with tools or interactions, or type: grpo
    when: self.algorithm.type == 'gigpo'

    spec.algorithm spec.algorithm.policyLoss | custom | Required
        type: custom is a function of one's own; {source: {path: FILE}, function: NAME}
    when: self.type == 'custom'

    spec.algorithm.ppo | lambda | NoEffect
        criticLambda and lengthAdaptiveAlpha take its place; remove it
    when: has(self.criticLambda) && has(self.lengthAdaptiveAlpha)

    spec.algorithm.gdpo | rewardWeights | OutOfRange
        each of rewardKeys ${self.rewardKeys.size()} needs a weight; as many, or none
    must: self.rewardWeights.size() == 0
        || self.rewardWeights.size() == self.rewardKeys.size()

    spec.algorithm | kl.in | Conflict
        type ${self.type} uses raw rewards, without the KL penalty in the reward; loss, or none
    when: self.type in ['gdpo', 'gigpo', 'prime']
    must: self.kl.__in__ != 'reward'

    spec | critic.valueClip | NoEffect | here
        a process reward model (algorithm.type: prime) has no values; remove it
    when: self.algorithm.type == 'prime'

    spec | rewardModel | Conflict | here
        type: prime needs scores from 0 to 1, and these are unbounded; remove it, or another type
    when: self.algorithm.type == 'prime'

    spec | rewards | OutOfRange
        the process reward model of type: prime learns errorScore too; from 0 to 1, or none
    when: self.algorithm.type == 'prime'
    must: self.rewards.all(one, !has(one.errorScore)
        || (one.errorScore >= 0.0 && one.errorScore <= 1.0))

    spec | critic.referencePath | NoEffect | here
        a critic that estimates values has no reference; remove it, or algorithm.type: prime
    when: self.algorithm.type != 'prime'

    spec.algorithm | resampling | NotInThisVersion | here
        resampling with type: prime: not in this version; remove it
    when: self.type == 'prime'

    spec | algorithm.overlongPenalty.bufferTokens | OutOfRange
        it is above data.maxResponseTokens ${self.data.maxResponseTokens}; at most that
    must: self.algorithm.overlongPenalty.bufferTokens <= self.data.maxResponseTokens

    spec.algorithm | overlongPenalty scoreClip truncationPenalty | NoEffect
        gdpo uses raw rewards, without penalties on the score; remove it
    when: self.type == 'gdpo'

    spec.algorithm | certaintyReward | NotInThisVersion | here
        type ${self.type} reads raw rewards: not in this version; remove it, or another type
    when: self.type in ['gdpo', 'prime', 'remax', 'spo']

    spec | agent | NotInThisVersion
        answer_probability needs single-turn responses; remove it, or another certaintyReward.type
    when: self.algorithm.certaintyReward.type == 'answer_probability'

    spec.algorithm | certaintyReward.type | NoEffect | here
        it is negative, and maxrl learns nothing from such groups; self_certainty, or another type
    when: self.type == 'maxrl' && !self.certaintyReward.besideScores
    must: self.certaintyReward.type != 'negative_entropy'

    spec.algorithm | dynamicSampling positiveExamples scoreClip | NoEffect | here
        certaintyReward replaces these scores; remove it, or certaintyReward.besideScores: true
    when: !self.certaintyReward.besideScores

    spec.algorithm | groupFilter.metric | NoEffect | here
        certaintyReward replaces these scores; length, or certaintyReward.besideScores: true
    when: !self.certaintyReward.besideScores

    spec.algorithm.scoreClip | high | OutOfRange
        no score is between the limits; more than low ${self.low}
    must: self.low < self.high

    spec.algorithm | scoreClip | Required
        it has no limit; low, high or both
    must: has(self.scoreClip.low) || has(self.scoreClip.high)

    spec.algorithm | dynamicSampling | NotInThisVersion
        dynamic sampling with remax: not in this version; remove it
    must: self.type != 'remax'

    spec.algorithm | dynamicSampling groupFilter | NotInThisVersion
        spo tracks the scores of all responses, and this drops some: not in this version; remove it
    must: self.type != 'spo'

    spec.algorithm | miniBatchPrompts | OutOfRange
        it does not divide promptsPerStep ${self.promptsPerStep}; a divisor of it
    must: self.miniBatchPrompts <= self.promptsPerStep
        && self.promptsPerStep % self.miniBatchPrompts == 0

    spec | critic.miniBatchPrompts | OutOfRange
        it does not divide promptsPerStep ${self.algorithm.promptsPerStep}; a divisor of it
    must: self.critic.miniBatchPrompts <= self.algorithm.promptsPerStep
        && self.algorithm.promptsPerStep % self.critic.miniBatchPrompts == 0

    spec.algorithm | entropyCoefficient | OutOfRange
        entropyControl begins with it and keeps within minCoefficient
        ${self.entropyControl.minCoefficient} and maxCoefficient
        ${self.entropyControl.maxCoefficient}; a number between them
    must: self.entropyControl.minCoefficient <= self.entropyCoefficient
        && self.entropyCoefficient <= self.entropyControl.maxCoefficient

    spec.algorithm.entropyControl | maxCoefficient | OutOfRange
        nothing is left to adapt; above minCoefficient ${self.minCoefficient}
    must: self.minCoefficient < self.maxCoefficient

    spec | algorithm.shuffleMiniBatches | NoEffect
        a step is one mini-batch; false, or miniBatchPrompts below promptsPerStep
    when: self.algorithm.shuffleMiniBatches
    must: has(self.algorithm.miniBatchPrompts)
        && self.algorithm.miniBatchPrompts < self.algorithm.promptsPerStep
        || has(self.critic) && has(self.critic.miniBatchPrompts)
        && self.critic.miniBatchPrompts < self.algorithm.promptsPerStep

    spec | model.freezeRouters | NoEffect
        LoRA freezes all base weights; remove it, or model.lora
    when: has(self.model.lora)

    spec | model.mtp | NotInThisVersion | here
        a layer beside adapters (model.lora): not in this version; remove it, or model.lora
    when: has(self.model.lora)

    spec | model.freezeVisionTower | Conflict | here
        LoRA freezes all base weights, the vision tower's too; true, or no model.lora
    when: has(self.model.lora)
    must: self.model.freezeVisionTower

    spec | model.freezeVisionTower | NotInThisVersion | here
        kl.referenceRefresh does not update the reference's vision tower: not in this version; true,
        or no kl.referenceRefresh
    when: has(self.algorithm.kl.referenceRefresh)
    must: self.model.freezeVisionTower

    spec | $OF_ROUTERS | NoEffect
        it has no effect on frozen routers (model.freezeRouters, or model.lora); remove it
    when: self.model.freezeRouters || has(self.model.lora)

    spec | model.lora.path | NotInThisVersion | here
        engines of a job that trains nothing load no adapters; an export, which has merged weights,
        as model.path
    must: !self.steps.validateOnly && !self.steps.generateOnly

    spec | reference roles.reference | NoEffect
        it has no effect with algorithm.kl.in: none; remove it, or in: loss or in: reward
    must: self.algorithm.kl.__in__ != 'none'
        || self.algorithm.type in ['dpo', 'kto', 'online_dpo', 'distillation']
        || self.algorithm.policyLoss.type in $COMPARE_REFERENCE
    """,
    COMPARE_GROUPS=words(name for name, one in ESTIMATORS.items() if one.compares_group),
    COMPARE_REFERENCE=words(name for name, one in LOSSES.items() if one.has_reference),
    OF_ROUTERS=" ".join(
        f"algorithm.router{one}" for one in ("BalanceCoefficient", "ZCoefficient", "BiasRate")
    ),
    LOSSES_OF_GROUPS=words(LOSSES_OF_GROUPS),
)
