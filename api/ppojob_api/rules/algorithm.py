"""What an algorithm needs, and which of its settings would have no effect."""

from pydantic.alias_generators import to_camel

from ppojob_api.rules.policy_loss import COMPARE_GROUPS as LOSSES_OF_GROUPS
from ppojob_api.rules.rule import rules, words
from ppojob_api.v1alpha1.algorithm import FULL_KL, GRADIENT_OF_K2
from ppojob_api.v1alpha1.estimators import ESTIMATORS, GIVEN, PAIRS, SAMPLED_REVERSE_KL
from ppojob_api.v1alpha1.policy_loss import LOSSES
from ppojob_api.v1alpha1.preferences import PAIR_LOSSES

_HAVE_CRITIC = sorted(name for name, one in ESTIMATORS.items() if one.has_critic)

_SMOOTHED = sorted(name for name, one in PAIR_LOSSES.items() if one.has_smoothing)
_WITH_MARGIN = sorted(name for name, one in PAIR_LOSSES.items() if one.has_margin)

ALGORITHM_RULES = rules(
    """
    spec.algorithm | samplesPerPrompt | OutOfRange
        the estimator ${self.type} compares the responses of a prompt with each other; at least
        2, or type: reinforce_plus_plus
    when: self.type in $COMPARE_GROUPS
    must: self.samplesPerPrompt >= 2

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

    spec | data.splitPairs | NoEffect | here
        it has no effect with another algorithm.type than kto; remove it
    when: self.algorithm.type != 'kto'
    must: $UNSET

    spec | data.marginKey | NoEffect | here
        it has no effect with another algorithm.type than reward_model; remove it
    when: self.algorithm.type != 'reward_model'
    must: $UNSET

    spec | data.labelKey | NoEffect | here
        it has no effect with another algorithm.type than kto; remove it
    when: self.algorithm.type != 'kto'
    must: $UNSET

    spec | data.maxPicturePixels data.minPicturePixels | NoEffect | here
        a reward model is shown no pictures; remove it
    when: self.algorithm.type == 'reward_model'
    must: !has(self.$FIELD)

    spec | data.toolsKey | NoEffect | here
        it has no effect with another algorithm.type than sft, dpo and kto; remove it
    when: !(self.algorithm.type in ['sft', 'dpo', 'kto'])
    must: $UNSET

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

    spec.algorithm | routerBalanceCoefficient routerZCoefficient | NotInThisVersion
        losses of routers beside that of pairs: not in this version; remove it
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

    spec.algorithm.kl | | NoEffect
        nothing of kl has an effect with in: none; remove it, or in: loss or in: reward
    when: self.__in__ == 'none'
    must: $UNSET(estimator coefficient controller target horizon lossTerm)

    spec.algorithm | kl.referenceRefresh | NoEffect
        it has no effect with kl.in: none; remove it, or in: loss or in: reward
    when: self.kl.__in__ == 'none' && self.type != 'online_dpo'
        && self.type != 'distillation' && !(self.policyLoss.type in $COMPARE_REFERENCE)
    must: !has(self.kl.referenceRefresh)

    spec.algorithm.kl | controller | NoEffect
        only KL in the reward is controlled; fixed, or in: reward
    when: self.__in__ == 'loss'
    must: self.controller == 'fixed'

    spec.algorithm.kl | coefficient | NoEffect
        KL has no effect with coefficient: 0; in: none, or a coefficient above 0
    when: self.__in__ != 'none'
    must: self.coefficient > 0.0

    spec.algorithm.kl | lossTerm | NoEffect
        it stands beside a KL in the reward; remove it, or in: reward
    when: self.__in__ == 'loss'
    must: !has(self.lossTerm)

    spec.algorithm.kl | estimator | NoEffect
        + changes the gradient alone, and a reward has none; without +, or in: loss
    when: self.__in__ == 'reward' && has(self.estimator)
    must: !(self.estimator in $GRADIENT_OF_K2)

    spec.algorithm.kl | unbiased | NoEffect
        it corrects an estimate in the loss; false, or in: loss with k1, k2, k3 or abs
    when: self.unbiased
    must: self.__in__ == 'loss' && (!has(self.estimator)
        || !(self.estimator in $GRADIENT_OF_K2) && self.estimator != '$FULL')

    spec.algorithm.kl | estimator | Conflict
        full compares all tokens that could have been sampled, and a reward is of the one that
        was; k1, or full as the estimator of lossTerm
    when: self.__in__ == 'reward' && has(self.estimator)
    must: self.estimator != '$FULL'

    spec.algorithm.kl | | NoEffect
        target and horizon have no effect with controller: fixed; remove them, or controller:
        adaptive
    when: self.__in__ != 'none' && self.controller == 'fixed'
    must: $UNSET(target horizon)

    spec | algorithm.kl.referenceRefresh | NotInThisVersion
        a reference in pods of its own that takes over weights: not in this version; remove it,
        or roles.reference.colocateWith: actorRollout
    when: has(self.algorithm.kl.referenceRefresh)
    must: !(has(self.roles.reference) && self.roles.reference.colocateWith == 'none')

    spec | algorithm.kl.referenceRefresh | NotInThisVersion | here
        a reference that takes over adapters (model.lora): not in this version; remove it, or
        train all weights
    when: has(self.model.lora)
    must: !has(self.algorithm.kl.referenceRefresh)

    spec | reference | Required
        the teacher is another model with type: distillation, or reads another prompt;
        {path: FOLDER}, data.teacherPromptKey, or algorithm.distillation.reprompt
    when: self.algorithm.type == 'distillation' && !has(self.data.teacherPromptKey)
        && !($HAS_REPROMPT)
    must: has(self.reference)

    spec | data.teacherPromptKey | NoEffect | here
        no reference reads responses that are drawn; algorithm.type: distillation, or kl.in: loss,
        or remove it
    when: has(self.data.teacherPromptKey)
    must: self.algorithm.kl.__in__ != 'none'
        || self.algorithm.type in ['online_dpo', 'distillation']
        || self.algorithm.policyLoss.type in $COMPARE_REFERENCE

    spec | data.maxTeacherPromptTokens | NoEffect | here
        no teacher has prompts of its own; remove it, or data.teacherPromptKey, or
        algorithm.distillation.reprompt
    when: !has(self.data.teacherPromptKey) && !($HAS_REPROMPT)
    must: $UNSET

    spec | data.teacherPromptKey | Conflict | here
        algorithm.distillation.reprompt makes the teacher's prompts; one of both
    when: $HAS_REPROMPT
    must: $UNSET

    spec | agent data.templateColumns | NotInThisVersion | here
        beside algorithm.distillation.reprompt: not in this version; remove it
    when: $HAS_REPROMPT
    must: $UNSET

    spec | rewards | Required | here
        nothing says which responses the teacher is shown (algorithm.distillation.reprompt); a
        reward function, or rewardModel
    when: $HAS_REPROMPT
    must: self.rewards.size() > 0 || has(self.rewardModel)

    spec | algorithm.samplesPerPrompt | OutOfRange | here
        the teacher is shown another response of the group (distillation.reprompt); at least 2, or
        reprompt.feedbackKey
    when: $HAS_REPROMPT && !has(self.algorithm.distillation.reprompt.feedbackKey)
    must: self.algorithm.samplesPerPrompt >= 2

    spec.reference | | Required
        it names no model; path: FOLDER, or teachers: [{path: FOLDER, dataSources: [NAME]}]
    must: has(self.path) || self.teachers.size() > 0

    spec.reference | teachers | Duplicate | here
        the model is there twice; each once, with all of its data sources, and none that is
        reference.path
    must: self.teachers.all(one, (!has(self.path) || one.path != self.path)
        && self.teachers.exists_one(other, other.path == one.path))

    spec.reference | teachers | Duplicate | here
        a data source is there twice; each once
    must: self.teachers.all(one, one.dataSources.all(source,
        one.dataSources.exists_one(same, same == source)
        && self.teachers.exists_one(other, source in other.dataSources)))

    spec | reference.teachers | NotInThisVersion | here
        answers that are compared with several models: not in this version; reference.path
    when: self.algorithm.type in ['dpo', 'kto'] && has(self.reference)
    must: self.reference.teachers.size() == 0

    spec.algorithm | $BESIDE_TEACHER | NoEffect | here
        nothing but the teacher is learnt from with type: distillation; remove it, or another type
        with kl.in: loss and reference, which learns from rewards too
    when: self.type == 'distillation'
    must: $UNSET

    spec.algorithm | kl.in | NoEffect
        nothing but the teacher is learnt from with type: distillation; none, or another type with
        reference, which learns from rewards too
    when: self.type == 'distillation'
    must: self.kl.__in__ == 'none'

    spec.algorithm | $OF_ADVANTAGES | NoEffect | here
        the loss is the divergence itself, and there are no advantages; remove it, or
        distillation.divergence: $SAMPLED
    when: self.type == 'distillation' && has(self.distillation)
        && self.distillation.divergence != '$SAMPLED'
    must: $UNSET

    spec.algorithm.distillation | beta | NoEffect | here
        it has no effect with another divergence; remove it, or divergence: jsd
    when: self.divergence != 'jsd'
    must: $UNSET

    spec.algorithm.distillation | beta | OutOfRange | here
        the mixture is one of the two models; between 0 and 1, or divergence: forward_kl for 0 and
        reverse_kl for 1
    when: self.divergence == 'jsd'
    must: self.beta > 0.0 && self.beta < 1.0

    spec.algorithm.distillation.reprompt | template | NoEffect | here
        no response is shown without {solution}; a text with it
    must: self.template.contains('{solution}')

    spec.algorithm.distillation.reprompt | solutionTemplate | NoEffect | here
        no response is shown without {response}; a text with it
    must: self.solutionTemplate.contains('{response}')

    spec.algorithm.distillation.reprompt | template feedbackTemplate | NoEffect | here
        no feedback is shown without {feedback}; a text with it, or no feedbackKey
    when: has(self.feedbackKey)
    must: self.$FIELD.contains('{feedback}')

    spec | rewards | NotInThisVersion | here
        a divergence over the whole vocabulary that leaves out responses without a score (onError:
        drop): not in this version; errorScore, or algorithm.distillation.divergence: $SAMPLED
    when: has(self.algorithm.distillation)
        && self.algorithm.distillation.divergence != '$SAMPLED'
        && !has(self.algorithm.distillation.reprompt)
    must: self.rewards.all(one, one.onError != 'drop')

    spec | data.validation | NoEffect | here
        nothing says what a response is worth with algorithm.type: distillation alone; rewards, or
        remove it
    when: self.algorithm.type == 'distillation' && self.rewards.size() == 0
        && !has(self.rewardModel) && !self.steps.generateOnly
    must: $UNSET

    spec | roles.reference.colocateWith | NotInThisVersion
        a divergence over the whole vocabulary from a teacher in pods of its own: not in this
        version; actorRollout, or algorithm.distillation.divergence: $SAMPLED
    when: has(self.algorithm.distillation)
        && self.algorithm.distillation.divergence != '$SAMPLED'
    must: !(has(self.roles.reference) && self.roles.reference.colocateWith == 'none')

    spec | algorithm.kl.referenceRefresh | Conflict | here
        another model cannot take over the policy's weights; remove it, or reference
    when: has(self.reference)
    must: !has(self.algorithm.kl.referenceRefresh)

    spec | model.freezeRouters | NoEffect
        beside adapters all weights stay as they are; remove it, or model.lora
    when: has(self.model.lora)
    must: !self.model.freezeRouters

    spec | model.mtp | NotInThisVersion | here
        a layer beside adapters (model.lora): not in this version; remove it, or model.lora
    when: has(self.model.lora)
    must: $UNSET

    spec | model.mtp | NotInThisVersion | here
        answers that are compared (algorithm.type ${self.algorithm.type}): not in this version;
        remove it
    when: self.algorithm.type in $OF_ANSWERS || self.algorithm.type == 'online_dpo'
    must: $UNSET

    spec | model.freezeVisionTower | Conflict | here
        beside adapters all weights stay as they are, the tower's too; true, or no model.lora
    when: has(self.model.lora)
    must: self.model.freezeVisionTower

    spec | model.freezeVisionTower | NoEffect | here
        rows with algorithm.type ${self.algorithm.type} show no pictures; remove it
    when: self.algorithm.type == 'reward_model'
    must: self.model.freezeVisionTower

    spec | model.freezeVisionTower | NotInThisVersion | here
        a reference that follows has a tower of its own, which follows nobody: not in this version;
        true, or no kl.referenceRefresh
    when: has(self.algorithm.kl.referenceRefresh)
    must: self.model.freezeVisionTower

    spec | algorithm.routerBalanceCoefficient algorithm.routerZCoefficient | NoEffect
        routers that stay as they are learn nothing from it (model.freezeRouters, or model.lora);
        remove it
    when: self.model.freezeRouters || has(self.model.lora)
    must: self.$FIELD == 0.0

    spec | model.lora.path | NotInThisVersion | here
        engines of a job that trains nothing read the model's folder alone; an export, which has
        merged weights, as model.path
    when: has(self.model.lora) && has(self.model.lora.path)
    must: !self.steps.validateOnly && !self.steps.generateOnly

    spec | roles.reference.colocateWith | NotInThisVersion
        a KL of estimator: full to a reference in pods of its own: not in this version;
        actorRollout, or another estimator
    when: has(self.algorithm.kl.estimator) && self.algorithm.kl.estimator == '$FULL'
        || has(self.algorithm.kl.lossTerm)
        && self.algorithm.kl.lossTerm.estimator == '$FULL'
    must: !(has(self.roles.reference) && self.roles.reference.colocateWith == 'none')

    spec | algorithm.routerReplay | NotInThisVersion
        which experts an engine chose is told by engine: huggingface, and by vLLM on GPUs with
        rollout.parallelism.tensor: 1; recompute, or such an engine
    when: self.algorithm.routerReplay == 'rollout' && self.rollout.engine == 'vllm'
    must: self.roles.actorRollout.gpusPerReplica > 0 && self.rollout.parallelism.tensor == 1

    spec | reference roles.reference | NoEffect
        it has no effect with algorithm.kl.in: none; remove it, or in: loss or in: reward
    when: has(self.$FIELD)
    must: self.algorithm.kl.__in__ != 'none'
        || self.algorithm.type in ['dpo', 'kto', 'online_dpo', 'distillation']
        || self.algorithm.policyLoss.type in $COMPARE_REFERENCE

    spec | roles.reference.colocateWith | NotInThisVersion
        answers that are compared with a reference in pods of its own: not in this version;
        actorRollout
    when: self.algorithm.type in ['dpo', 'kto']
    must: !(has(self.roles.reference) && self.roles.reference.colocateWith == 'none')
    """,
    BESIDE_PAIRS="policyLoss rolloutCorrection entropyCoefficient entropyControl highEntropyShare"
    " offPolicyThreshold lossAggregation resampling",
    BESIDE_TEACHER="dynamicSampling groupFilter resampling overlongPenalty scoreClip"
    " truncationPenalty",
    COMPARE_REFERENCE=words(name for name, one in LOSSES.items() if one.has_reference),
    COMPARE_GROUPS=words(name for name, one in ESTIMATORS.items() if one.compares_group),
    CRITIC_NAMES=", ".join(_HAVE_CRITIC),
    FULL=FULL_KL,
    HAS_REPROMPT="has(self.algorithm.distillation) && has(self.algorithm.distillation.reprompt)",
    GRADIENT_OF_K2=words(GRADIENT_OF_K2),
    GIVEN=words(GIVEN),
    HAVE_CRITIC=words(_HAVE_CRITIC),
    OF_ADVANTAGES="policyLoss rolloutCorrection entropyCoefficient entropyControl"
    " highEntropyShare offPolicyThreshold maskTruncated",
    LOSSES_OF_GROUPS=words(LOSSES_OF_GROUPS),
    OF_ANSWERS=words(name for name in GIVEN if name != "sft"),
    OF_RESPONSES="policyLoss rolloutCorrection dynamicSampling groupFilter resampling"
    " overlongPenalty scoreClip truncationPenalty"
    " entropyCoefficient entropyControl highEntropyShare offPolicyThreshold maskTruncated"
    " routerReplay kl",
    OF_ROLLOUTS="rollout agent rewards rewardModel sandbox roles.rollout roles.reward"
    " data.dataSourceKey data.dataSource numExamine",
    PAIR_NAMES=" and ".join(PAIRS),
    PAIRS=words(PAIRS),
    SAMPLED=SAMPLED_REVERSE_KL,
    SMOOTHED=words(_SMOOTHED),
    SMOOTHED_NAMES=", ".join(_SMOOTHED),
    MARGIN_NAMES=" or ".join(_WITH_MARGIN),
    WITH_MARGIN=words(_WITH_MARGIN),
    WITHOUT_REFERENCE=words(name for name, one in PAIR_LOSSES.items() if not one.has_reference),
    WITH_OPTIONS=" ".join(
        to_camel(name) for name, one in (*ESTIMATORS.items(), *GIVEN.items()) if one.options
    ),
)
