"""Settings that the rest of the spec leaves without effect: refused, since someone meant them.

A value that equals its default is no setting: the API server writes defaults into every object,
so nobody can tell whether an author wrote it.
"""

from collections.abc import Iterator

from ppojob_api.checks.check import Check, no_effect
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.algorithm import KlSpec
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.rollout import ValidationSamplingSpec

_KL = "spec.algorithm.kl"
_KL_FIELDS = ("estimator", "coefficient", "controller", "target", "horizon")


def member_of_other_type(job: PPOJob) -> Iterator[Problem]:
    """`type` names the one member that counts."""
    algorithm = job.spec.algorithm
    members = (
        ("grpo", "grpo", algorithm.grpo),
        ("reinforce_plus_plus", "reinforcePlusPlus", algorithm.reinforce_plus_plus),
    )
    for kind, name, member in members:
        if member is not None and algorithm.type != kind:
            where = f"spec.algorithm.{name}"
            value = member.model_dump(mode="json")
            why = f"with type: {algorithm.type}"
            yield no_effect(where, value, why, f"remove it, or type: {kind}")


def kl_without_place(job: PPOJob) -> Iterator[Problem]:
    """`in: none` switches the whole section off."""
    kl = job.spec.algorithm.kl
    if kl.in_ != "none":
        return
    for name in _KL_FIELDS:
        if getattr(kl, name) != KlSpec.model_fields[name].default:
            allowed = "remove it, or in: loss or in: reward"
            yield no_effect(f"{_KL}.{name}", getattr(kl, name), "with in: none", allowed)
    reference = job.spec.roles.reference
    if reference is not None:
        value = reference.model_dump(mode="json")
        allowed = "remove it, or spec.algorithm.kl.in: loss or reward"
        yield no_effect("spec.roles.reference", value, "with spec.algorithm.kl.in: none", allowed)


def kl_controller(job: PPOJob) -> Iterator[Problem]:
    """Only KL in the reward is controlled, and only an adaptive controller has a target."""
    kl = job.spec.algorithm.kl
    if kl.in_ == "none":
        return
    if kl.controller == "adaptive" and kl.in_ == "loss":
        allowed = "fixed, or in: reward"
        yield no_effect(f"{_KL}.controller", kl.controller, "with in: loss", allowed)
    elif kl.controller == "fixed":
        for name in ("target", "horizon"):
            if getattr(kl, name) != KlSpec.model_fields[name].default:
                allowed = "remove it, or controller: adaptive"
                why = "with controller: fixed"
                yield no_effect(f"{_KL}.{name}", getattr(kl, name), why, allowed)


def kl_of_weight_zero(job: PPOJob) -> Iterator[Problem]:
    """A reference model that only multiplies by zero costs a forward pass a step."""
    kl = job.spec.algorithm.kl
    if kl.in_ != "none" and kl.coefficient == 0:
        yield no_effect(
            f"{_KL}.in", kl.in_, "with coefficient: 0", "none, or a coefficient above 0"
        )


def loss_scale(job: PPOJob) -> Iterator[Problem]:
    """One aggregation has a divisor of its own."""
    algorithm = job.spec.algorithm
    mode = "sequence_mean_token_sum_norm"
    if algorithm.loss_scale_tokens is not None and algorithm.loss_aggregation != mode:
        yield no_effect(
            "spec.algorithm.lossScaleTokens",
            algorithm.loss_scale_tokens,
            f"with lossAggregation: {algorithm.loss_aggregation}",
            f"remove it, or lossAggregation: {mode}",
        )


def shuffled_mini_batches(job: PPOJob) -> Iterator[Problem]:
    """One mini-batch has no order."""
    algorithm = job.spec.algorithm
    part = algorithm.mini_batch_prompts
    if algorithm.shuffle_mini_batches and part in (None, algorithm.prompts_per_step):
        where = "spec.algorithm.shuffleMiniBatches"
        allowed = "false, or miniBatchPrompts below promptsPerStep"
        yield no_effect(where, True, "with one mini-batch a step", allowed)


def cosine_end(job: PPOJob) -> Iterator[Problem]:
    """A constant learning rate ends where it is."""
    optimizer = job.spec.optimizer
    if optimizer.schedule == "constant" and optimizer.min_learning_rate_ratio != 0:
        where = "spec.optimizer.minLearningRateRatio"
        value = optimizer.min_learning_rate_ratio
        yield no_effect(where, value, "with schedule: constant", "remove it, or schedule: cosine")


def order_seed(job: PPOJob) -> Iterator[Problem]:
    """An order that is not drawn needs no seed."""
    data = job.spec.data
    if data.seed is not None and not data.shuffle:
        yield no_effect("spec.data.seed", data.seed, "with shuffle: false", "remove it")


def validation_without_data(job: PPOJob) -> Iterator[Problem]:
    """Validation needs rows."""
    spec = job.spec
    if spec.data.validation:
        return
    allowed = "remove it, or give spec.data.validation"
    why = "without spec.data.validation"
    settings = [
        ("spec.steps.validateEvery", spec.steps.validate_every),
        ("spec.data.maxValidationRows", spec.data.max_validation_rows),
    ]
    for where, value in settings:
        if value is not None:
            yield no_effect(where, value, why, allowed)
    if spec.rollout.validation != ValidationSamplingSpec():
        given = spec.rollout.validation.model_dump(mode="json", exclude_defaults=True)
        yield no_effect("spec.rollout.validation", given, why, allowed)


def greedy_validation(job: PPOJob) -> Iterator[Problem]:
    """Greedy sampling takes the likeliest token whatever else is cut off."""
    validation = job.spec.rollout.validation
    if validation.temperature != 0:
        return
    for name, value, neutral in (("topP", validation.top_p, 1.0), ("topK", validation.top_k, -1)):
        if value not in (neutral, 0):
            where = f"spec.rollout.validation.{name}"
            allowed = "remove it, or a temperature above 0"
            yield no_effect(where, value, "with temperature: 0", allowed)


def cache_size(job: PPOJob) -> Iterator[Problem]:
    """The fall-back engine keeps no cache of a fixed size."""
    rollout = job.spec.rollout
    if rollout.engine == "huggingface" and rollout.kv_cache_gib is not None:
        where = "spec.rollout.kvCacheGib"
        allowed = "remove it, or engine: vllm"
        yield no_effect(where, rollout.kv_cache_gib, "with engine: huggingface", allowed)


def reward_weights(job: PPOJob) -> Iterator[Problem]:
    """A reward of weight 0 is computed for nothing."""
    for index, reward in enumerate(job.spec.rewards):
        if reward.weight == 0:
            where = f"spec.rewards[{index}].weight"
            yield no_effect(where, reward.weight, "on the reward", "another weight, or remove it")


def critic(job: PPOJob) -> Iterator[Problem]:
    """Only ppo has a value model."""
    algorithm, role = job.spec.algorithm, job.spec.roles.critic
    if role is not None and algorithm.type != "ppo":
        value = role.model_dump(mode="json", exclude_unset=True)
        why = f"with type: {algorithm.type}, which has no value model"
        yield no_effect("spec.roles.critic", value, why, "remove it")


EFFECT_CHECKS = (
    Check(member_of_other_type, ("spec.algorithm.type",)),
    Check(shuffled_mini_batches, ("spec.algorithm",)),
    Check(loss_scale, ("spec.algorithm.lossAggregation", "spec.algorithm.lossScaleTokens")),
    Check(kl_without_place, (_KL, "spec.roles.reference")),
    Check(kl_controller, (_KL,)),
    Check(kl_of_weight_zero, (f"{_KL}.in", f"{_KL}.coefficient")),
    Check(cosine_end, ("spec.optimizer.schedule", "spec.optimizer.minLearningRateRatio")),
    Check(order_seed, ("spec.data.seed", "spec.data.shuffle")),
    Check(validation_without_data, ("spec.data.validation",)),
    Check(greedy_validation, ("spec.rollout.validation",)),
    Check(cache_size, ("spec.rollout.engine", "spec.rollout.kvCacheGib")),
    Check(reward_weights, ("spec.rewards",)),
    Check(critic, ("spec.algorithm.type", "spec.roles.critic")),
)
