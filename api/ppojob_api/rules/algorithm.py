"""Rules of algorithms: required settings, and settings without effect."""

from pydantic.alias_generators import to_camel

from ppojob_api.rules.policy_loss import COMPARE_GROUPS as LOSSES_OF_GROUPS
from ppojob_api.rules.rule import rules, words
from ppojob_api.v1alpha1.estimators import ESTIMATORS, GIVEN
from ppojob_api.v1alpha1.policy_loss import LOSSES

_HAVE_CRITIC = sorted(name for name, one in ESTIMATORS.items() if one.has_critic)

ALGORITHM_RULES = rules(
    """
    spec.algorithm | samplesPerPrompt | OutOfRange
        the estimator ${self.type} compares the responses of a prompt with each other; at least
        2, or type: reinforce_plus_plus
    when: self.type in $COMPARE_GROUPS
    must: self.samplesPerPrompt >= 2

    spec | rewards | Conflict | here
        majority_vote scores a single response with 1, whatever it is, and so the greedy ones of
        remax; algorithm.samplesPerPrompt of at least 2, and another algorithm.type than remax
    when: self.algorithm.samplesPerPrompt == 1 || self.algorithm.type == 'remax'
    must: self.rewards.all(one, one.function != 'majority_vote' || has(one.source))

    spec.algorithm | dynamicSampling | Conflict
        a single response never differs from itself; samplesPerPrompt of at least 2, or remove
        it
    when: has(self.dynamicSampling)
    must: self.samplesPerPrompt >= 2

    spec.algorithm | dynamicSampling.maxRounds | OutOfRange
        so many rounds of promptsPerRound never fill a batch of promptsPerStep
        ${self.promptsPerStep}; more rounds, or more prompts a round
    when: has(self.dynamicSampling) && has(self.dynamicSampling.promptsPerRound)
    must: self.dynamicSampling.maxRounds * self.dynamicSampling.promptsPerRound
        >= self.promptsPerStep

    spec.algorithm | groupFilter.keep | OutOfRange
        all of them are kept; less than samplesPerPrompt ${self.samplesPerPrompt}
    when: has(self.groupFilter)
    must: self.groupFilter.keep < self.samplesPerPrompt

    spec.algorithm | groupFilter.keep | OutOfRange
        type, policyLoss.type or dynamicSampling compares those that are kept with each other;
        at least 2
    when: has(self.groupFilter) && (self.type in $COMPARE_GROUPS
        || self.policyLoss.type in $LOSSES_OF_GROUPS || has(self.dynamicSampling))
    must: self.groupFilter.keep >= 2

    spec.algorithm.dynamicSampling | meanAbove | OutOfRange
        no mean is above it and below meanBelow ${self.meanBelow}; less than that
    when: has(self.meanAbove) && has(self.meanBelow)
    must: self.meanAbove < self.meanBelow

    spec.algorithm | gdpo | Required
        it compares several rewards; {rewardKeys: [NAME, ...]}, numbers that reward functions
        give beside the score
    when: self.type == 'gdpo'
    must: has(self.gdpo)

    spec | agent | Required
        algorithm.type: gigpo compares the turns of conversations; an agent with tools or
        interactions, or type: grpo
    when: self.algorithm.type == 'gigpo'
    must: has(self.agent)

    spec.algorithm spec.algorithm.policyLoss | custom | Required
        type: custom is a function of one's own; {source: {path: FILE}, function: NAME}
    when: self.type == 'custom'
    must: has(self.custom)

    spec.algorithm.ppo | lambda | NoEffect
        criticLambda and lengthAdaptiveAlpha take its place; remove it
    when: has(self.criticLambda) && has(self.lengthAdaptiveAlpha)
    must: self.lambda == 1.0

    spec.algorithm.gdpo | rewardWeights | OutOfRange
        one belongs to each of rewardKeys ${self.rewardKeys.size()}; as many, or none
    must: self.rewardWeights.size() == 0
        || self.rewardWeights.size() == self.rewardKeys.size()

    spec.algorithm.gdpo | rewardWeights | NoEffect | here
        no reward counts with weights of 0 alone; at least one other
    when: self.rewardWeights.size() > 0
    must: !self.rewardWeights.all(one, one == 0.0)

    spec.algorithm | kl.in | Conflict
        type ${self.type} reads the rewards themselves, without the KL that is taken off the score;
        loss, or none
    when: self.type in ['gdpo', 'gigpo', 'prime']
    must: self.kl.__in__ != 'reward'

    spec | critic.valueClip | NoEffect | here
        a process reward model (algorithm.type: prime) has no values; remove it
    when: self.algorithm.type == 'prime' && has(self.critic)
    must: $UNSET

    spec | rewardModel | Conflict | here
        a process reward model (algorithm.type: prime) learns shares of right from 0 to 1, and a
        reward model's scores have no bounds; remove it, or another algorithm.type
    when: self.algorithm.type == 'prime'
    must: $UNSET

    spec | rewards | OutOfRange
        a process reward model (algorithm.type: prime) learns an errorScore as it learns others; one
        from 0 to 1, or none
    when: self.algorithm.type == 'prime'
    must: self.rewards.all(one, !has(one.errorScore)
        || (one.errorScore >= 0.0 && one.errorScore <= 1.0))

    spec | critic.referencePath | NoEffect | here
        values are compared with none; remove it, or algorithm.type: prime
    when: self.algorithm.type != 'prime' && has(self.critic)
    must: $UNSET

    spec.algorithm | resampling | NotInThisVersion | here
        a process reward model learns all responses: drawing them with type: prime is not in this
        version; remove it
    when: self.type == 'prime'
    must: $UNSET

    spec | algorithm.overlongPenalty.bufferTokens | OutOfRange
        it is longer than a response; at most data.maxResponseTokens
        ${self.data.maxResponseTokens}
    when: has(self.algorithm.overlongPenalty)
    must: self.algorithm.overlongPenalty.bufferTokens <= self.data.maxResponseTokens

    spec.algorithm | overlongPenalty scoreClip truncationPenalty | NoEffect
        gdpo reads the rewards themselves, without what is taken off the score; remove it
    when: self.type == 'gdpo'
    must: $UNSET

    spec.algorithm | certaintyReward | NotInThisVersion | here
        the estimator ${self.type} reads the scores of rewards themselves: not in this version;
        remove it, or another type
    when: self.type in ['gdpo', 'prime', 'remax', 'spo']
    must: !has(self.certaintyReward)

    spec.algorithm.certaintyReward | marker debias | NoEffect | here
        only the probability of an answer reads it; remove it, or type: answer_probability
    when: self.type != 'answer_probability'
    must: $UNSET

    spec | agent | NotInThisVersion
        the probability of an answer (algorithm.certaintyReward) is of responses of one turn;
        remove it, or another certaintyReward.type
    when: has(self.algorithm.certaintyReward)
        && self.algorithm.certaintyReward.type == 'answer_probability'
    must: !has(self.agent)

    spec.algorithm | certaintyReward.type | NoEffect | here
        it is below 0, and maxrl learns nothing where the mean of a group is; self_certainty, or
        another algorithm.type
    when: self.type == 'maxrl' && has(self.certaintyReward) && !self.certaintyReward.besideScores
    must: self.certaintyReward.type != 'negative_entropy'

    spec.algorithm | dynamicSampling positiveExamples scoreClip | NoEffect | here
        it reads the scores of rewards, of which nothing is learnt; remove it, or certaintyReward
        with besideScores: true
    when: has(self.certaintyReward) && !self.certaintyReward.besideScores
    must: $UNSET

    spec.algorithm | groupFilter.metric | NoEffect | here
        it is of the scores of rewards, of which nothing is learnt; length, or certaintyReward with
        besideScores: true
    when: has(self.groupFilter) && has(self.certaintyReward) && !self.certaintyReward.besideScores
    must: self.groupFilter.metric == 'length'

    spec.algorithm.scoreClip | high | OutOfRange
        no score is between the limits; more than low ${self.low}
    when: has(self.low) && has(self.high)
    must: self.low < self.high

    spec.algorithm | scoreClip | Required
        it says no limit; low, high or both
    when: has(self.scoreClip)
    must: has(self.scoreClip.low) || has(self.scoreClip.high)

    spec.algorithm.resampling | power | NoEffect
        it has no effect with method ${self.method}; remove it, or method: pow
    when: self.method != 'pow'
    must: $UNSET

    spec.algorithm | dynamicSampling | NotInThisVersion
        dynamic sampling beside the greedy responses of remax: not in this version; remove it
    when: has(self.dynamicSampling)
    must: self.type != 'remax'

    spec.algorithm | dynamicSampling groupFilter | NotInThisVersion
        spo is to know of a prompt what all its responses scored, and this leaves some of them
        out: not in this version; remove it
    when: has(self.$FIELD)
    must: self.type != 'spo'

    spec.algorithm | miniBatchPrompts | OutOfRange
        it does not cut promptsPerStep ${self.promptsPerStep} into equal parts; a divisor of it
    when: has(self.miniBatchPrompts)
    must: self.miniBatchPrompts <= self.promptsPerStep
        && self.promptsPerStep % self.miniBatchPrompts == 0

    spec | critic.miniBatchPrompts | OutOfRange
        it does not cut promptsPerStep ${self.algorithm.promptsPerStep} into equal parts; a
        divisor of it
    when: has(self.critic) && has(self.critic.miniBatchPrompts)
    must: self.critic.miniBatchPrompts <= self.algorithm.promptsPerStep
        && self.algorithm.promptsPerStep % self.critic.miniBatchPrompts == 0

    spec.algorithm | $WITH_OPTIONS | NoEffect
        it has no effect with another type; remove it, or type: $TYPE
    when: has(self.$FIELD)
    must: self.type == '$TYPE'

    spec | critic roles.critic | NoEffect
        it has no effect with another algorithm.type than $CRITIC_NAMES; remove it
    when: has(self.$FIELD)
    must: self.algorithm.type in $HAVE_CRITIC

    spec.algorithm | entropyCoefficient | OutOfRange
        entropyControl begins with it and keeps within minCoefficient
        ${self.entropyControl.minCoefficient} and maxCoefficient
        ${self.entropyControl.maxCoefficient}; a number between them
    when: has(self.entropyControl)
    must: self.entropyControl.minCoefficient <= self.entropyCoefficient
        && self.entropyCoefficient <= self.entropyControl.maxCoefficient

    spec.algorithm.entropyControl | maxCoefficient | OutOfRange
        nothing is left to adapt; above minCoefficient ${self.minCoefficient}
    must: self.minCoefficient < self.maxCoefficient

    spec.algorithm | lossScaleTokens | NoEffect
        it has no effect with another lossAggregation; remove it, or lossAggregation:
        sequence_mean_token_sum_norm
    when: has(self.lossScaleTokens)
    must: self.lossAggregation == 'sequence_mean_token_sum_norm'

    spec | algorithm.shuffleMiniBatches | NoEffect
        it has no effect with one mini-batch a step; false, or miniBatchPrompts below
        promptsPerStep
    when: self.algorithm.shuffleMiniBatches
    must: has(self.algorithm.miniBatchPrompts)
        && self.algorithm.miniBatchPrompts < self.algorithm.promptsPerStep
        || has(self.critic) && has(self.critic.miniBatchPrompts)
        && self.critic.miniBatchPrompts < self.algorithm.promptsPerStep

    spec | model.freezeRouters | NoEffect
        beside adapters all weights stay as they are; remove it, or model.lora
    when: has(self.model.lora)
    must: !self.model.freezeRouters

    spec | model.mtp | NotInThisVersion | here
        a layer beside adapters (model.lora): not in this version; remove it, or model.lora
    when: has(self.model.lora)
    must: $UNSET

    spec | model.freezeVisionTower | Conflict | here
        beside adapters all weights stay as they are, the tower's too; true, or no model.lora
    when: has(self.model.lora)
    must: self.model.freezeVisionTower

    spec | model.freezeVisionTower | NotInThisVersion | here
        a reference that follows has a tower of its own, which follows nobody: not in this version;
        true, or no kl.referenceRefresh
    when: has(self.algorithm.kl.referenceRefresh)
    must: self.model.freezeVisionTower

    spec | $OF_ROUTERS | NoEffect
        routers that stay as they are learn nothing from it (model.freezeRouters, or model.lora);
        remove it
    when: self.model.freezeRouters || has(self.model.lora)
    must: self.$FIELD == 0.0

    spec | model.lora.path | NotInThisVersion | here
        engines of a job that trains nothing read the model's folder alone; an export, which has
        merged weights, as model.path
    when: has(self.model.lora) && has(self.model.lora.path)
    must: !self.steps.validateOnly && !self.steps.generateOnly

    spec | reference roles.reference | NoEffect
        it has no effect with algorithm.kl.in: none; remove it, or in: loss or in: reward
    when: has(self.$FIELD)
    must: self.algorithm.kl.__in__ != 'none'
        || self.algorithm.type in ['dpo', 'kto', 'online_dpo', 'distillation']
        || self.algorithm.policyLoss.type in $COMPARE_REFERENCE
    """,
    COMPARE_GROUPS=words(name for name, one in ESTIMATORS.items() if one.compares_group),
    COMPARE_REFERENCE=words(name for name, one in LOSSES.items() if one.has_reference),
    CRITIC_NAMES=", ".join(_HAVE_CRITIC),
    HAVE_CRITIC=words(_HAVE_CRITIC),
    OF_ROUTERS=" ".join(
        f"algorithm.router{one}" for one in ("BalanceCoefficient", "ZCoefficient", "BiasRate")
    ),
    LOSSES_OF_GROUPS=words(LOSSES_OF_GROUPS),
    WITH_OPTIONS=" ".join(
        to_camel(name) for name, one in (*ESTIMATORS.items(), *GIVEN.items()) if one.options
    ),
)
