"""Rules of a run: length, validation, sampling and scoring."""

from typing import Final

from ppojob_api.rules.rule import either, rules, words
from ppojob_api.v1alpha1.estimators import GIVEN
from ppojob_api.v1alpha1.model import FROM_BASE

VALIDATION_METRICS: Final = ("val-core/", "val-aux/")
VALIDATION_LOSS: Final = "val/loss"
"""What a validation of given answers measures."""

# Below this the vLLM engine lifts a temperature to it in silence.
LEAST_TEMPERATURE: Final = 0.01

# vLLM's own limit; what is above it would fail the first generation.
VLLM_TEMPERATURE_LIMIT: Final = 2.0

VLLM_LORA_RANK: Final = 512
"""The highest rank that vLLM has room for."""

# Optimizer steps that steps.total makes; none at all is refused by rules of their own.
_PROMPTS = "self.algorithm.promptsPerStep"
_PART = either("algorithm.miniBatchPrompts", _PROMPTS)
_POLICY_UPDATES = (
    f"(self.steps.total - (has(self.critic) ? self.critic.warmupSteps : 0))"
    f" * self.algorithm.epochs * ({_PROMPTS} / {_PART})"
)
_CRITIC_UPDATES = (
    f"self.steps.total * {either('critic.epochs', 'self.algorithm.epochs')}"
    f" * ({_PROMPTS} / {either('critic.miniBatchPrompts', _PART)})"
)

LENGTH_RULES = rules(
    """
    spec.steps | total | Required
        the run would have no end; exactly one of total and epochs
    when: !self.validateOnly && !self.generateOnly
    must: has(self.total) || has(self.epochs)

    spec.steps | epochs | Conflict
        total ${self.total} gives the length already; exactly one of total and epochs
    must: !(has(self.total) && has(self.epochs))

    spec.steps | validateFirst | Conflict
        validateOnly runs the first validation and nothing else; true, or validateOnly: false
    when: self.validateOnly
    must: self.validateFirst

    spec.steps | generateOnly | Conflict
        validateOnly scores the responses too; one of the two
    when: self.validateOnly

    spec | steps.generateOnly | Conflict
        rollout.replay generates nothing; false, or remove rollout.replay
    when: has(self.rollout.replay)

    spec | checkpoint.branch | Conflict
        a job that trains nothing has no checkpoints; an export of that run as model.path
    when: self.steps.validateOnly || self.steps.generateOnly

    spec | data.validation | Required
        the prompts are read there; a list of files, or `ppojob generate --data FILE`
    when: self.steps.validateOnly || self.steps.generateOnly
    must: self.data.validation.size() > 0

    spec.model.ropeScaling | highFreqFactor | OutOfRange | here
        it is not above lowFreqFactor ${self.lowFreqFactor}; a larger number
    must: self.highFreqFactor > self.lowFreqFactor

    spec | critic.warmupSteps | OutOfRange
        it leaves no step that trains the policy; below steps.total ${self.steps.total}
    must: self.critic.warmupSteps < self.steps.total

    spec.optimizer spec.critic.optimizer | warmupRatio | Conflict
        warmupSteps ${self.warmupSteps} says how long the warm-up is; one of the two
    when: self.warmupSteps > 0

    spec.optimizer spec.critic.optimizer | warmupStartRatio | NoEffect
        there is no warm-up; remove it, or warmupSteps or warmupRatio above 0
    when: self.warmupSteps == 0 && self.warmupRatio == 0.0

    spec.optimizer spec.critic.optimizer | decaySteps | OutOfRange
        the warm-up ${self.warmupSteps} takes them; above warmupSteps
    must: self.decaySteps > self.warmupSteps

    spec.optimizer spec.critic.optimizer | decayRatio | Conflict
        decaySteps ${self.decaySteps} says where the schedule ends; one of the two
    when: has(self.decaySteps)

    spec.optimizer spec.critic.optimizer | decayRatio | OutOfRange
        the warm-up ${self.warmupRatio} takes them; above warmupRatio
    when: self.warmupRatio > 0.0 && self.decayRatio < 1.0
    must: self.decayRatio > self.warmupRatio

    spec.model.lora spec.critic.lora | init | NoEffect
        the adapters of path are read; remove it, or path
    when: has(self.path)

    spec.model.lora spec.critic.lora | init | NotInThisVersion
        of experts, DoRA or QLoRA: not in this version; another, or none of these
    when: self.init in $FROM_BASE
    must: !self.experts && !self.weightDecomposed && !has(self.baseType)

    spec | model.lora.modulesToSave | NotInThisVersion | here
        with rollout.adapters: beside or type: reward_model: not in this version; remove it
    must: self.rollout.adapters == 'merged' && self.algorithm.type != 'reward_model'

    spec | critic.lora.modulesToSave | NotInThisVersion | here
        layers of the policy alone: not in this version; remove it

    spec.model.lora spec.critic.lora | dropoutPosition | NoEffect
        there is no dropout; remove it, or dropout above 0
    when: self.dropout == 0.0
    """,
    FROM_BASE=words(FROM_BASE),
) + rules(
    """
    spec | $OPTIMIZER.warmupSteps | OutOfRange
        the run makes fewer optimizer steps ${$UPDATES}; at most as many
    must: $UPDATES <= 0 || self.$FIELD <= $UPDATES

    spec | $OPTIMIZER.momentsDtype | NoEffect | here
        with model.dtype: bfloat16 the moments are bfloat16 already; remove it
    when: self.model.dtype == 'bfloat16' && !has(self.$LORA)

    spec | $OPTIMIZER.weightDecay | Conflict | here
        it would shrink the part of the base weights that $LORA.init takes; 0
    when: has(self.$LORA) && self.$LORA.init in $FROM_BASE
    must: self.$FIELD == 0.0

    spec | $OPTIMIZER.loraPlusRatio | NoEffect | here
        there are no adapters; remove it, or $LORA
    when: !has(self.$LORA)
    """,
    each=(
        {"OPTIMIZER": "optimizer", "LORA": "model.lora", "UPDATES": _POLICY_UPDATES},
        {"OPTIMIZER": "critic.optimizer", "LORA": "critic.lora", "UPDATES": _CRITIC_UPDATES},
    ),
    FROM_BASE=words(FROM_BASE),
)

CHECKPOINT_RULES = rules(
    """
    spec.checkpoint | background | NoEffect
        without every the only checkpoint is that of the last step; every: N, or remove it
    when: self.background
    must: has(self.every)

    spec.checkpoint | best.metric | BadForm
        it is not a metric of a validation; a name that begins with $NAMES, or $LOSS
    must: $IS_OF_VALIDATION || self.best.metric == '$LOSS'

    spec | checkpoint.best.metric | Conflict | here
        algorithm.type $GIVEN_NAMES validates by $LOSS, other types by scores; $LOSS with these,
        else a name that begins with $NAMES
    must: (self.checkpoint.best.metric == '$LOSS') == (self.algorithm.type in $GIVEN)

    spec.checkpoint | best.mode | Conflict | here
        the least loss is the best; min
    when: self.best.metric == '$LOSS'
    must: self.best.mode == 'min'

    spec | steps.validateEvery | Required
        checkpoint.best compares validations; a number of steps, or remove checkpoint.best
    when: has(self.checkpoint.best)

    spec | checkpoint.every | Conflict
        checkpoint.best needs a validation at each checkpoint; a multiple of steps.validateEvery
        ${self.steps.validateEvery}, or remove checkpoint.best
    when: has(self.checkpoint.best) && has(self.steps.validateEvery)
    must: has(self.checkpoint.every) && self.checkpoint.every % self.steps.validateEvery == 0

    spec.checkpoint.volume | | Conflict
        a run is stored on one PersistentVolumeClaim; exactly one of claimName and size
    must: $ONE_OF(claimName size)

    spec.checkpoint.volume | storageClassName | NoEffect
        a claim that is there has its class; remove it, or size instead of claimName
    must: has(self.size)

    spec.checkpoint | resume | NoEffect
        on a cluster a job always resumes from its own checkpoints; auto
    when: has(self.volume)
    """,
    LOSS=VALIDATION_LOSS,
    GIVEN=words(GIVEN),
    GIVEN_NAMES=", ".join(GIVEN),
    NAMES=" or ".join(VALIDATION_METRICS),
    IS_OF_VALIDATION=" || ".join(
        f"self.best.metric.startsWith('{name}')" for name in VALIDATION_METRICS
    ),
)

SAMPLING_RULES = rules(
    """
    spec.data | seed | NoEffect
        it has no effect with shuffle: false; remove it
    must: self.shuffle

    spec.data | shuffle | NoEffect | here
        data.sampler decides the order; remove one of the two
    when: has(self.sampler)
    must: self.shuffle

    spec | data.scoresKey | NoEffect | here
        it has no effect with another algorithm.type than spo and without data.sampler; remove it
    must: self.algorithm.type == 'spo' || has(self.data.sampler)

    spec | algorithm.spo.decay | Conflict | here
        with decay 1 new scores never change those of data.scoresKey; below 1, or no data.scoresKey
    when: has(self.data.scoresKey)
    must: self.algorithm.spo.decay < 1.0

    spec.data | sampler | Conflict | here
        data.curriculum decides the order; remove one of the two
    when: has(self.curriculum)

    spec.data | train | Conflict | here
        data.sampler chooses among all rows; no weight, or no sampler
    when: has(self.sampler)
    must: self.train.all(file, !has(file.weight))

    spec | data.sampler | Conflict | here
        type ${self.algorithm.type} scores nothing; remove it, or data.curriculum
    when: self.algorithm.type in $GIVEN

    spec | data.sampler | NotInThisVersion | here
        with rollout.maxStaleness ${self.rollout.maxStaleness} a step generates before the step
        before it is scored: not in this version; 0, or remove the sampler
    when: self.rollout.maxStaleness > 0

    spec.data | train | Conflict
    spec.data | demonstrations | Conflict | here
        a weight is a share beside other weights; a weight for each of these files, or for none
    must: self.$FIELD.all(file, has(file.weight)) || self.$FIELD.all(file, !has(file.weight))

    spec.data.validation[] | weight | NoEffect | here
        every validation reads all its rows; remove it

    spec | checkpoint.best | NoEffect
    spec | steps.validateEvery data.maxValidationRows rollout.validation | NoEffect | here
        it has no effect without data.validation; remove it, or give data.validation
    when: self.data.validation.size() == 0

    spec.rollout | temperature validation.temperature | Conflict
        engine vllm takes none above 2; at most 2, or engine: huggingface
    when: self.engine == 'vllm'
    must: self.$FIELD <= $LIMIT

    spec.rollout spec.rollout.validation | topK | OutOfRange
        no token would be left; -1 for all tokens, or at least 1
    must: self.topK != 0

    spec.rollout | temperature | OutOfRange
        the trainer divides logits by it, and only validations may be greedy; at least $LEAST
    must: self.temperature >= $LEAST

    spec.rollout.validation | temperature | OutOfRange
        engines would take it for 0; must be 0, or at least $LEAST and finite
    must: self.temperature == 0.0 || self.temperature >= $LEAST

    spec | rollout.topK | Conflict
        the samples of a prompt would be identical; -1 for all tokens, or at least 2
    when: self.algorithm.samplesPerPrompt > 1
    must: self.rollout.topK != 1

    spec.rollout.validation | | NoEffect
        greedy sampling has no topP, topK and minP; remove them, or a temperature above 0
    when: self.temperature == 0.0
    must: self.topP == 1.0 && self.topK == -1 && self.minP == 0.0

    spec.rollout.validation | samples | Conflict
        greedy samples are identical; 1, or a temperature above 0 and topK other than 1
    when: self.temperature == 0.0 || self.topK == 1

    spec | rollout.maxModelTokens | OutOfRange
        it is less than data.maxPromptTokens + data.maxResponseTokens; at least their sum
        ${self.data.maxPromptTokens + self.data.maxResponseTokens}, or remove it
    must: self.data.maxPromptTokens + self.data.maxResponseTokens <= self.rollout.maxModelTokens

    spec | data.minImagePixels | OutOfRange
        it is above the maximum; at most data.maxImagePixels ${self.data.maxImagePixels}
    must: self.data.minImagePixels <= self.data.maxImagePixels

    spec | agent.toolSteps | Conflict
        with rollout.maxStaleness ${self.rollout.maxStaleness} rollouts of several steps run at
        once, and -1 is a barrier for all of them; 0 or more
    when: self.agent.toolSteps == -1
    must: self.rollout.maxStaleness <= (has(self.roles.rollout) ? 1 : 0)

    spec | rollout.maxStaleness | NotInThisVersion
        algorithm.dynamicSampling chooses prompts by the scores of the step before, so rollout pods
        generate at most one step ahead: not in this version; 0 or 1, or remove roles.rollout
    when: has(self.algorithm.dynamicSampling) && has(self.roles.rollout)
    must: self.rollout.maxStaleness <= 1

    spec | rollout.drafts | NotInThisVersion | here
        with rollouts of several steps at once, speculative decoding would change which weights
        generate a token: not in this version; remove it, or maxStaleness ${has(self.roles.rollout)
        ? 1 : 0}
    must: self.rollout.maxStaleness <= (has(self.roles.rollout) ? 1 : 0)

    spec.rollout.drafts | shortestMatch | OutOfRange | here
        n-grams have at most longestMatch ${self.longestMatch} tokens; at most as many
    must: self.shortestMatch <= self.longestMatch

    spec.rollout | minP validation.minP | Conflict | here
        vLLM does not support it with speculative decoding; 0, or remove drafts
    when: has(self.drafts)

    spec.rollout.structuredOutput | | Conflict
        a response has one form; exactly one of regex, choices, jsonSchema and grammar
    must: $ONE_OF(regex choices jsonSchema grammar)

    spec.rollout | ignoreEos | Conflict | here
        responses end where structuredOutput is complete; false, or remove structuredOutput
    when: has(self.structuredOutput)

    spec.rollout | stopTokenIds stopStrings | Conflict | here
        responses end where structuredOutput is complete; remove it, or structuredOutput
    when: has(self.structuredOutput)

    spec | rollout.structuredOutput | NotInThisVersion | here
        turns of conversations in a form: not in this version; remove it, or agent
    when: has(self.agent)

    spec.rollout | gpuMemoryShare | Conflict
        kvCacheGib ${self.kvCacheGib} says how much the cache takes; one of the two
    when: has(self.kvCacheGib)

    spec.rollout | maxBatchedTokens | OutOfRange
        each of maxSequences ${self.maxSequences} needs a token; at least as many
    must: self.maxSequences <= self.maxBatchedTokens

    spec.rollout | parallelism.tensor | Conflict
        engine: huggingface has no tensor parallelism; 1, or engine: vllm
    when: self.engine == 'huggingface'

    spec.rollout | parallelism.expert | Conflict
        an engine shares experts by tensor or by expert; 1, or tensor ${self.parallelism.tensor}
    must: self.parallelism.expert == 1 || self.parallelism.expert == self.parallelism.tensor

    spec | rollout.adapters | NoEffect
        it has no effect without LoRA; merged, or model.lora
    when: self.rollout.adapters == 'beside'
    must: has(self.model.lora)

    spec | model.lora.rank | OutOfRange
        vLLM supports LoRA ranks up to $VLLM_LORA_RANK, with pissa and olora half of them; at most
        that, or rollout.adapters: merged
    when: self.rollout.adapters == 'beside' && self.rollout.engine == 'vllm'
    must: self.model.lora.rank * (self.model.lora.init in $FROM_BASE ? 2 : 1) <= $VLLM_LORA_RANK

    spec | training.autocast | Conflict
        float16 autocast needs float32 weights; model.dtype: float32, or autocast: bfloat16
    when: self.training.autocast == 'float16'
    must: self.model.dtype == 'float32'

    spec.model | trustRemoteCode | NotInThisVersion
        remote code of a model: not in this version; false

    spec.sandbox | level | NoEffect | here
        it has no effect with url: the service isolates programs itself; remove it
    when: has(self.url)

    spec.rewardModel spec.rewards[] | weight | NoEffect
        a reward of weight 0 has no effect; another weight, or remove the reward
    must: !has(self.weight) || self.weight != 0.0

    spec | judge | NoEffect | here
        no reward uses it; remove it, or name judge in rewards, or a function of your own
    must: !self.rewards.all(one, !has(one.source) && one.function != 'judge')

    spec | roles.judge | NoEffect | here
        it has no effect without judge; remove it, or give judge
    when: !has(self.judge)

    spec | roles.reward | NoEffect | here
        a reward model is the only reward; remove it, or name functions in rewards
    when: has(self.rewardModel) && self.rewards.size() == 0
    """,
    GIVEN=words(GIVEN),
    LEAST=str(LEAST_TEMPERATURE),
    LIMIT=str(VLLM_TEMPERATURE_LIMIT),
    VLLM_LORA_RANK=str(VLLM_LORA_RANK),
    FROM_BASE=words(FROM_BASE),
)
