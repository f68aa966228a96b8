"""What CEL can say about settings that the rest of the spec leaves without effect."""

from ppojob_api.rules.rule import Rule, given, implies, words
from ppojob_api.v1alpha1.algorithm import ESTIMATORS

_HAVE_CRITIC = frozenset(name for name, one in ESTIMATORS.items() if one.has_critic)

EFFECT_RULES = (
    Rule(
        "spec",
        implies(
            "self.algorithm.shuffleMiniBatches",
            f"{given('algorithm.miniBatchPrompts')}"
            " && self.algorithm.miniBatchPrompts < self.algorithm.promptsPerStep"
            f" || {given('critic')} && {given('critic.miniBatchPrompts')}"
            " && self.critic.miniBatchPrompts < self.algorithm.promptsPerStep",
        ),
        "algorithm.shuffleMiniBatches has no effect with one mini-batch a step; false, or"
        " miniBatchPrompts below promptsPerStep",
    ),
    Rule(
        "spec",
        implies(given("roles.reference"), "self.algorithm.kl.__in__ != 'none'"),
        "roles.reference has no effect with algorithm.kl.in: none; remove it, or in: loss or"
        " in: reward",
    ),
    *(
        Rule(
            "spec",
            implies(given(section), f"self.algorithm.type in {words(_HAVE_CRITIC)}"),
            f"{section} has no effect with another algorithm.type than"
            f" {', '.join(sorted(_HAVE_CRITIC))}; remove it",
        )
        for section in ("critic", "roles.critic")
    ),
    Rule(
        "spec",
        implies(given("roles.rewardModel"), given("rewardModel")),
        "roles.rewardModel has no effect without rewardModel; remove it, or give rewardModel",
    ),
    Rule(
        "spec.rewardModel",
        "self.weight != 0.0",
        "a reward of weight 0 has no effect; another weight, or remove rewardModel",
        "weight",
    ),
    Rule(
        "spec.data",
        implies(given("seed"), "self.shuffle"),
        "it has no effect with shuffle: false; remove it",
        "seed",
    ),
    Rule(
        "spec.rollout",
        implies(given("kvCacheGib"), "self.engine != 'huggingface'"),
        "it has no effect with engine: huggingface; remove it, or engine: vllm",
        "kvCacheGib",
    ),
    Rule(
        "spec.rollout.validation",
        implies(
            "self.temperature == 0.0", "self.samples == 1 && self.topP == 1.0 && self.topK == -1"
        ),
        "samples, topP and topK have no effect with temperature: 0; remove them, or a temperature"
        " above 0",
    ),
    Rule(
        "spec.checkpoint",
        implies(given("volume"), "self.resume == 'auto'"),
        "it has no effect with volume: a job on a cluster goes on from its own commits alone; auto",
        "resume",
    ),
    Rule(
        "spec.rewards[]",
        "self.weight != 0.0",
        "a reward of weight 0 has no effect; another weight, or remove it",
        "weight",
    ),
    Rule(
        "spec.loggers",
        "self.all(one, self.exists_one(other, other == one))",
        "each logger once",
    ),
    Rule(
        "spec",
        implies(
            given("steps.total"),
            f"(!{given('steps.validateEvery')} || self.steps.validateEvery <= self.steps.total)"
            f" && (!{given('checkpoint.every')} || self.checkpoint.every <= self.steps.total)",
        ),
        "steps.validateEvery or checkpoint.every would never happen; at most steps.total, or"
        " remove it",
    ),
)
