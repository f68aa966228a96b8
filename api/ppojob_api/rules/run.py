"""How long a run is, what happens within it, and how responses are sampled and scored."""

from typing import Final

from ppojob_api.problem import ReasonCode
from ppojob_api.rules.rule import Rule, either, given, untouched
from ppojob_api.v1alpha1.roles import RewardRole
from ppojob_api.v1alpha1.rollout import ValidationSamplingSpec

VALIDATION_METRICS: Final = ("val-core/", "val-aux/")

# Below this the vLLM engine lifts a temperature to it in silence; the trainer refuses it too.
LEAST_TEMPERATURE: Final = 0.01

# vLLM's own limit; what is above it would fail the first generation.
VLLM_TEMPERATURE_LIMIT: Final = 2.0

_NO_EFFECT = ReasonCode.NO_EFFECT
_OUT_OF_RANGE = ReasonCode.OUT_OF_RANGE
_HAS_VALIDATION = "self.data.validation.size() > 0"
_WITHOUT_VALIDATION = "self.data.validation.size() == 0"
_SAMPLING = "spec.rollout.validation"

# Optimizer steps that steps.total makes; none at all is refused by rules of their own.
_PROMPTS = "self.algorithm.promptsPerStep"
_PART = either("algorithm.miniBatchPrompts", _PROMPTS)
_POLICY_UPDATES = (
    f"(self.steps.total - ({given('critic')} ? self.critic.warmupSteps : 0))"
    f" * self.algorithm.epochs * ({_PROMPTS} / {_PART})"
)
_CRITIC_UPDATES = (
    f"self.steps.total * {either('critic.epochs', 'self.algorithm.epochs')}"
    f" * ({_PROMPTS} / {either('critic.miniBatchPrompts', _PART)})"
)

LENGTH_RULES = (
    Rule(
        "spec.steps",
        "total",
        f"{given('total')} || {given('epochs')}",
        "the run would have no end; exactly one of total and epochs",
        ReasonCode.REQUIRED,
        when="!self.validateOnly",
    ),
    Rule(
        "spec.steps",
        "epochs",
        f"!({given('total')} && {given('epochs')})",
        "total ${self.total} gives the length already; exactly one of total and epochs",
    ),
    Rule(
        "spec.steps",
        "validateFirst",
        "self.validateFirst",
        "validateOnly runs the first validation and nothing else; true, or validateOnly: false",
        when="self.validateOnly",
    ),
    Rule(
        "spec",
        "data.validation",
        _HAS_VALIDATION,
        "steps.validateOnly has no rows to validate on; a list of files, or validateOnly: false",
        ReasonCode.REQUIRED,
        when="self.steps.validateOnly",
    ),
    *(
        Rule(
            "spec",
            field,
            f"self.{field} <= self.steps.total",
            "it would never happen in the steps of the run ${self.steps.total}; at most"
            " steps.total, or remove it",
            _OUT_OF_RANGE,
            when=f"{given('steps.total')} && {given(field)}",
        )
        for field in ("steps.validateEvery", "checkpoint.every")
    ),
    *(
        Rule(
            "spec",
            field,
            f"{updates} <= 0 || self.{field} <= {updates}",
            f"the run makes fewer optimizer steps ${{{updates}}}; at most as many",
            _OUT_OF_RANGE,
            when=condition,
        )
        for field, condition, updates in (
            ("optimizer.warmupSteps", given("steps.total"), _POLICY_UPDATES),
            (
                "critic.optimizer.warmupSteps",
                f"{given('steps.total')} && {given('critic')}",
                _CRITIC_UPDATES,
            ),
        )
    ),
    Rule(
        "spec",
        "critic.warmupSteps",
        "self.critic.warmupSteps < self.steps.total",
        "it leaves no step that trains the policy; below steps.total ${self.steps.total}",
        _OUT_OF_RANGE,
        when=f"{given('critic')} && {given('steps.total')}",
    ),
    *(
        Rule(
            f"spec.{section}",
            "minLearningRateRatio",
            "self.minLearningRateRatio == 0.0",
            "it has no effect with schedule: constant; remove it, or schedule: cosine",
            _NO_EFFECT,
            when="self.schedule == 'constant'",
        )
        for section in ("optimizer", "critic.optimizer")
    ),
)

CHECKPOINT_RULES = (
    Rule(
        "spec.checkpoint",
        "best.metric",
        " || ".join(f"self.best.metric.startsWith('{name}')" for name in VALIDATION_METRICS),
        "it is not a metric of a validation; a name that begins with"
        f" {' or '.join(VALIDATION_METRICS)}",
        ReasonCode.BAD_FORM,
        when=given("best"),
    ),
    Rule(
        "spec",
        "steps.validateEvery",
        given("steps.validateEvery"),
        "checkpoint.best compares validations, and there are none in between; a number of steps, or"
        " remove checkpoint.best",
        ReasonCode.REQUIRED,
        when=given("checkpoint.best"),
    ),
    Rule(
        "spec",
        "checkpoint.every",
        f"{given('checkpoint.every')} && self.checkpoint.every % self.steps.validateEvery == 0",
        "checkpoint.best needs a validation at each commit; a multiple of steps.validateEvery"
        " ${self.steps.validateEvery}, or remove checkpoint.best",
        when=f"{given('checkpoint.best')} && {given('steps.validateEvery')}",
    ),
    Rule(
        "spec.checkpoint",
        "resume",
        "self.resume == 'auto'",
        "it has no effect with volume: a job on a cluster goes on from its own commits alone; auto",
        _NO_EFFECT,
        when=given("volume"),
    ),
)

_WITHOUT_ROWS = "it has no effect without data.validation; remove it, or give data.validation"

SAMPLING_RULES = (
    Rule(
        "spec.data",
        "seed",
        "self.shuffle",
        "it has no effect with shuffle: false; remove it",
        _NO_EFFECT,
        when=given("seed"),
    ),
    *(
        Rule(
            "spec",
            field,
            f"!{given(field)}",
            _WITHOUT_ROWS,
            _NO_EFFECT,
            when=_WITHOUT_VALIDATION,
            at_admission=field == "checkpoint.best",
        )
        for field in ("steps.validateEvery", "data.maxValidationRows", "checkpoint.best")
    ),
    Rule(
        "spec",
        "rollout.validation",
        untouched(ValidationSamplingSpec, prefix="rollout.validation."),
        _WITHOUT_ROWS,
        _NO_EFFECT,
        when=_WITHOUT_VALIDATION,
        at_admission=False,
    ),
    Rule(
        "spec.rollout",
        "temperature",
        f"self.temperature >= {LEAST_TEMPERATURE}",
        "the trainer divides logits by it, and greedy sampling is for rollout.validation; at least"
        f" {LEAST_TEMPERATURE}",
        _OUT_OF_RANGE,
    ),
    Rule(
        _SAMPLING,
        "temperature",
        f"self.temperature == 0.0 || self.temperature >= {LEAST_TEMPERATURE}",
        "engines take it for 0, or divide by almost nothing; must be 0, or at least"
        f" {LEAST_TEMPERATURE} and finite",
        _OUT_OF_RANGE,
    ),
    *(
        Rule(
            "spec.rollout",
            field,
            f"self.{field} <= {VLLM_TEMPERATURE_LIMIT}",
            "engine vllm takes none above 2; at most 2, or engine: huggingface",
            when="self.engine == 'vllm'",
        )
        for field in ("temperature", "validation.temperature")
    ),
    *(
        Rule(
            section,
            "topK",
            "self.topK != 0",
            "no token would be left; -1 for all tokens, or at least 1",
            _OUT_OF_RANGE,
        )
        for section in ("spec.rollout", _SAMPLING)
    ),
    Rule(
        "spec",
        "rollout.topK",
        "self.rollout.topK != 1",
        "the samples of a prompt would be identical; -1 for all tokens, or at least 2",
        when="self.algorithm.samplesPerPrompt > 1",
    ),
    Rule(
        _SAMPLING,
        "",
        "self.topP == 1.0 && self.topK == -1",
        "topP and topK have no effect with temperature: 0; remove them, or a temperature above 0",
        _NO_EFFECT,
        when="self.temperature == 0.0",
    ),
    Rule(
        _SAMPLING,
        "samples",
        "self.samples == 1",
        "greedy samples of a prompt are identical; 1, or a temperature above 0 and topK other than"
        " 1",
        when="self.temperature == 0.0 || self.topK == 1",
    ),
    Rule(
        "spec",
        "rollout.maxModelTokens",
        "self.data.maxPromptTokens + self.data.maxResponseTokens <= self.rollout.maxModelTokens",
        "it is less than data.maxPromptTokens + data.maxResponseTokens; at least their sum"
        " ${self.data.maxPromptTokens + self.data.maxResponseTokens}, or remove it",
        _OUT_OF_RANGE,
        when=given("rollout.maxModelTokens"),
    ),
    Rule(
        "spec.rollout",
        "kvCacheGib",
        "self.engine != 'huggingface'",
        "it has no effect with engine: huggingface; remove it, or engine: vllm",
        _NO_EFFECT,
        when=given("kvCacheGib"),
    ),
    Rule(
        "spec.rollout.parallelism",
        "tensor",
        "self.tensor == 1",
        "tensor parallel generation: not in this version; 1",
        ReasonCode.NOT_IN_THIS_VERSION,
    ),
    Rule(
        "spec.model",
        "trustRemoteCode",
        "!self.trustRemoteCode",
        "code that comes with a model: not in this version; false",
        ReasonCode.NOT_IN_THIS_VERSION,
    ),
    *(
        Rule(
            section,
            "weight",
            "self.weight != 0.0",
            "a reward of weight 0 has no effect; another weight, or remove the reward",
            _NO_EFFECT,
        )
        for section in ("spec.rewardModel", "spec.rewards[]")
    ),
    Rule(
        "spec",
        "roles.reward",
        untouched(RewardRole, prefix="roles.reward."),
        "it has no effect beside a reward model alone; remove it, or name functions in rewards",
        _NO_EFFECT,
        when=f"{given('rewardModel')} && self.rewards.size() == 0",
        at_admission=False,
    ),
)
