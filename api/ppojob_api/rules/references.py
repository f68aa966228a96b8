"""Rules of references, teachers and KL: required settings, and those without effect."""

from ppojob_api.rules.rule import rules, words
from ppojob_api.v1alpha1.algorithm import FULL_KL, GRADIENT_OF_K2
from ppojob_api.v1alpha1.estimators import SAMPLED_REVERSE_KL
from ppojob_api.v1alpha1.policy_loss import LOSSES

REFERENCE_RULES = rules(
    """
    spec.algorithm.kl | | NoEffect
        nothing of kl has an effect with in: none; remove it, or in: loss or in: reward
    when: self.__in__ == 'none'
    must: $UNSET(estimator coefficient controller target horizon lossTerm)

    spec.algorithm | kl.referenceRefresh | NoEffect
        it has no effect with kl.in: none; remove it, or in: loss or in: reward
    when: self.kl.__in__ == 'none' && self.type != 'online_dpo'
        && self.type != 'distillation' && !(self.policyLoss.type in $COMPARE_REFERENCE)

    spec.algorithm.kl | controller | NoEffect
        only KL in the reward is controlled; fixed, or in: reward
    when: self.__in__ == 'loss'

    spec.algorithm.kl | coefficient | NoEffect
        KL has no effect with coefficient: 0; in: none, or a coefficient above 0
    when: self.__in__ != 'none'
    must: self.coefficient > 0.0

    spec.algorithm.kl | lossTerm | NoEffect
        it adds a KL loss to a KL in the reward; remove it, or in: reward
    when: self.__in__ == 'loss'

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
        a reward has the sampled token only; k1, or full as the estimator of lossTerm
    when: self.__in__ == 'reward' && has(self.estimator)
    must: self.estimator != '$FULL'

    spec.algorithm.kl | | NoEffect
        controller: fixed has no target and horizon; remove them, or controller: adaptive
    when: self.__in__ != 'none' && self.controller == 'fixed'
    must: $UNSET(target horizon)

    spec | algorithm.kl.referenceRefresh | NotInThisVersion
        refreshing a reference in pods of its own: not in this version; remove it, or
        roles.reference.colocateWith: actorRollout
    must: !(has(self.roles.reference) && self.roles.reference.colocateWith == 'none')

    spec | algorithm.kl.referenceRefresh | NotInThisVersion | here
        with model.lora: not in this version; remove it, or train all weights
    when: has(self.model.lora)

    spec | reference | Required
        the teacher is another model with type: distillation, or reads another prompt;
        {path: FOLDER}, data.teacherPromptKey, or algorithm.distillation.reprompt
    when: self.algorithm.type == 'distillation' && !has(self.data.teacherPromptKey)
        && !($HAS_REPROMPT)

    spec | data.teacherPromptKey | NoEffect | here
        no reference scores the rollouts; type: distillation, or kl.in: loss, or remove it
    must: self.algorithm.kl.__in__ != 'none'
        || self.algorithm.type in ['online_dpo', 'distillation']
        || self.algorithm.policyLoss.type in $COMPARE_REFERENCE

    spec | data.maxTeacherPromptTokens | NoEffect | here
        the teacher reads the policy's prompts; remove it, or data.teacherPromptKey, or reprompt
    when: !has(self.data.teacherPromptKey) && !($HAS_REPROMPT)

    spec | data.teacherPromptKey | Conflict | here
        algorithm.distillation.reprompt makes the teacher's prompts; one of both
    when: $HAS_REPROMPT

    spec | agent data.templateColumns | NotInThisVersion | here
        beside algorithm.distillation.reprompt: not in this version; remove it
    when: $HAS_REPROMPT

    spec | rewards | Required | here
        distillation.reprompt selects by scores; a reward function, or rewardModel
    when: $HAS_REPROMPT
    must: self.rewards.size() > 0 || has(self.rewardModel)

    spec | algorithm.samplesPerPrompt | OutOfRange | here
        distillation.reprompt shows another response; at least 2, or reprompt.feedbackKey
    when: !has(self.algorithm.distillation.reprompt.feedbackKey)
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
        dpo and kto with several references: not in this version; reference.path
    when: self.algorithm.type in ['dpo', 'kto']

    spec.algorithm | $BESIDE_TEACHER | NoEffect | here
        type: distillation learns only from the teacher; remove it, or another type with kl.in: loss
        and reference, which learns from rewards too
    when: self.type == 'distillation'

    spec.algorithm | kl.in | NoEffect
        type: distillation learns only from the teacher; none, or another type with reference
    when: self.type == 'distillation'
    must: self.kl.__in__ == 'none'

    spec.algorithm | $OF_ADVANTAGES | NoEffect | here
        the loss has no advantages; remove it, or distillation.divergence: $SAMPLED
    when: self.type == 'distillation' && self.distillation.divergence != '$SAMPLED'

    spec.algorithm.distillation | beta | OutOfRange | here
        the mixture is one of the models; between 0 and 1, or divergence: forward_kl or reverse_kl
    when: self.divergence == 'jsd'
    must: self.beta > 0.0 && self.beta < 1.0

    spec.algorithm.distillation.reprompt | template | NoEffect | here
        the template lacks {solution}; a text with it
    must: self.template.contains('{solution}')

    spec.algorithm.distillation.reprompt | solutionTemplate | NoEffect | here
        the template lacks {response}; a text with it
    must: self.solutionTemplate.contains('{response}')

    spec.algorithm.distillation.reprompt | template feedbackTemplate | NoEffect | here
        the template lacks {feedback}; a text with it, or no feedbackKey
    when: has(self.feedbackKey)
    must: self.$FIELD.contains('{feedback}')

    spec | rewards | NotInThisVersion | here
        a full-vocabulary divergence with onError: drop: not in this version; errorScore, or
        algorithm.distillation.divergence: $SAMPLED
    when: has(self.algorithm.distillation)
        && self.algorithm.distillation.divergence != '$SAMPLED'
        && !has(self.algorithm.distillation.reprompt)
    must: self.rewards.all(one, one.onError != 'drop')

    spec | data.validation | NoEffect | here
        algorithm.type: distillation without rewards scores no response; rewards, or remove it
    when: self.algorithm.type == 'distillation' && self.rewards.size() == 0
        && !has(self.rewardModel) && !self.steps.generateOnly

    spec | roles.reference.colocateWith | NotInThisVersion
        a full-vocabulary divergence with a teacher in pods of its own: not in this version;
        actorRollout, or algorithm.distillation.divergence: $SAMPLED
    when: self.algorithm.distillation.divergence != '$SAMPLED'
    must: !(has(self.roles.reference) && self.roles.reference.colocateWith == 'none')

    spec | algorithm.kl.referenceRefresh | Conflict | here
        a reference that is another model cannot take the policy's weights; remove it, or reference
    when: has(self.reference)

    spec | roles.reference.colocateWith | NotInThisVersion
        a KL of estimator: full to a reference in pods of its own: not in this version;
        actorRollout, or another estimator
    when: has(self.algorithm.kl.estimator) && self.algorithm.kl.estimator == '$FULL'
        || has(self.algorithm.kl.lossTerm)
        && self.algorithm.kl.lossTerm.estimator == '$FULL'
    must: !(has(self.roles.reference) && self.roles.reference.colocateWith == 'none')

    spec | roles.reference.colocateWith | NotInThisVersion
        dpo and kto with a reference in pods of its own: not in this version; actorRollout
    when: self.algorithm.type in ['dpo', 'kto']
    must: !(has(self.roles.reference) && self.roles.reference.colocateWith == 'none')
    """,
    BESIDE_TEACHER="dynamicSampling groupFilter resampling overlongPenalty scoreClip"
    " truncationPenalty positiveExamples certaintyReward",
    COMPARE_REFERENCE=words(name for name, one in LOSSES.items() if one.has_reference),
    FULL=FULL_KL,
    GRADIENT_OF_K2=words(GRADIENT_OF_K2),
    HAS_REPROMPT="has(self.algorithm.distillation) && has(self.algorithm.distillation.reprompt)",
    OF_ADVANTAGES="policyLoss rolloutCorrection entropyCoefficient entropyControl"
    " highEntropyShare offPolicyThreshold maskTruncated",
    SAMPLED=SAMPLED_REVERSE_KL,
)
