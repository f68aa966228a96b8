"""What CEL can say about the numbers of a run: lengths, periods, batches, sampling."""

from ppojob_api.checks.arithmetic import LEAST_TEMPERATURE, VLLM_TEMPERATURE_LIMIT
from ppojob_api.checks.schedule import VALIDATION_METRICS
from ppojob_api.rules.rule import Rule, either, given, implies

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

RUN_RULES = (
    Rule(
        "spec.steps",
        f"self.validateOnly ? !({given('total')} && {given('epochs')})"
        f" : {given('total')} != {given('epochs')}",
        "a run has one length; exactly one of total and epochs",
    ),
    Rule(
        "spec.steps",
        implies("self.validateOnly", "self.validateFirst"),
        "validateOnly runs the first validation and nothing else; true, or validateOnly: false",
        "validateFirst",
    ),
    Rule(
        "spec",
        implies("self.steps.validateOnly", "self.data.validation.size() > 0"),
        "steps.validateOnly has no rows to validate on; files in data.validation, or validateOnly:"
        " false",
    ),
    *(
        Rule(
            f"spec.{section}",
            implies("self.schedule == 'constant'", "self.minLearningRateRatio == 0.0"),
            "it has no effect with schedule: constant; remove it, or schedule: cosine",
            "minLearningRateRatio",
        )
        for section in ("optimizer", "critic.optimizer")
    ),
    Rule(
        "spec",
        implies(
            f"{given('critic')} && {given('critic.miniBatchPrompts')}",
            "self.critic.miniBatchPrompts <= self.algorithm.promptsPerStep"
            " && self.algorithm.promptsPerStep % self.critic.miniBatchPrompts == 0",
        ),
        "critic.miniBatchPrompts cuts promptsPerStep into equal parts; a divisor of"
        " algorithm.promptsPerStep",
    ),
    *(
        Rule(
            "spec",
            implies(condition, f"{updates} <= 0 || self.{warmup} <= {updates}"),
            f"{warmup} is longer than the run; at most the optimizer steps that steps.total makes",
        )
        for warmup, condition, updates in (
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
        implies(
            f"{given('critic')} && {given('steps.total')}",
            "self.critic.warmupSteps < self.steps.total",
        ),
        "critic.warmupSteps leaves no step that trains the policy; below steps.total",
    ),
    Rule(
        "spec.checkpoint",
        implies(
            given("best"),
            " || ".join(f"self.best.metric.startsWith('{name}')" for name in VALIDATION_METRICS),
        ),
        f"best.metric is not one of a validation; a name that begins with"
        f" {' or '.join(VALIDATION_METRICS)}",
        "best",
    ),
    Rule(
        "spec",
        implies(
            given("checkpoint.best"),
            f"self.data.validation.size() > 0 && {given('steps.validateEvery')}"
            f" && {given('checkpoint.every')}"
            " && self.checkpoint.every % self.steps.validateEvery == 0",
        ),
        "checkpoint.best needs a validation at each commit; data.validation, steps.validateEvery,"
        " and checkpoint.every as a multiple of it",
    ),
    Rule(
        "spec.rollout",
        f"self.temperature >= {LEAST_TEMPERATURE}",
        "the trainer divides logits by the temperature, and greedy sampling is for validation; at"
        f" least {LEAST_TEMPERATURE}",
        "temperature",
    ),
    Rule(
        "spec.rollout.validation",
        f"self.temperature == 0.0 || self.temperature >= {LEAST_TEMPERATURE}",
        "engines take such a temperature for 0, or divide by almost nothing; must be 0, or at"
        f" least {LEAST_TEMPERATURE} and finite",
        "temperature",
    ),
    Rule(
        "spec.rollout",
        implies(
            "self.engine == 'vllm'",
            f"self.temperature <= {VLLM_TEMPERATURE_LIMIT}"
            f" && self.validation.temperature <= {VLLM_TEMPERATURE_LIMIT}",
        ),
        "engine vllm takes no temperature above 2; at most 2, or engine: huggingface",
    ),
    Rule(
        "spec.rollout",
        "self.topK != 0 && self.validation.topK != 0",
        "topK 0 would leave no token; -1 for all tokens, or at least 1",
    ),
    Rule(
        "spec",
        implies("self.algorithm.samplesPerPrompt > 1", "self.rollout.topK != 1"),
        "the samples of a prompt would be identical; topK other than 1",
    ),
    Rule(
        "spec",
        implies(
            given("rollout.maxModelTokens"),
            "self.data.maxPromptTokens + self.data.maxResponseTokens"
            " <= self.rollout.maxModelTokens",
        ),
        "rollout.maxModelTokens is less than data.maxPromptTokens + data.maxResponseTokens;"
        " at least their sum, or remove it",
    ),
    Rule(
        "spec.rewards[]",
        implies(given("source"), f"{given('source.path')} != {given('source.configMap')}"),
        "exactly one of path and configMap",
        "source",
    ),
)
