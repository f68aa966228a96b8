"""Settings that the rest of the spec leaves without effect: refused, since someone meant them.

A value that equals its default is no setting: the API server writes defaults into every object,
so nobody can tell whether an author wrote it.
"""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from ppojob_api import topology
from ppojob_api.checks.check import MODEL_ROLE_PATHS, Check, no_effect
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.algorithm import ESTIMATORS, KlSpec
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.rollout import ValidationSamplingSpec

_KL = "spec.algorithm.kl"
_KL_FIELDS = ("estimator", "coefficient", "controller", "target", "horizon")


def member_of_other_type(job: PPOJob) -> Iterator[Problem]:
    """`type` names the one member that counts."""
    algorithm = job.spec.algorithm
    for kind in ESTIMATORS:
        options = algorithm.options_of(kind)
        if options is not None and algorithm.type != kind:
            where = f"spec.algorithm.{to_camel(kind)}"
            value = options.model_dump(mode="json")
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
        value = reference.model_dump(mode="json", exclude_unset=True)
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
    algorithm, critic = job.spec.algorithm, job.spec.critic
    parts = {algorithm.mini_batch_prompts, critic.mini_batch_prompts if critic else None}
    if algorithm.shuffle_mini_batches and parts <= {None, algorithm.prompts_per_step}:
        where = "spec.algorithm.shuffleMiniBatches"
        allowed = "false, or miniBatchPrompts below promptsPerStep"
        yield no_effect(where, True, "with one mini-batch a step", allowed)


def cosine_end(job: PPOJob) -> Iterator[Problem]:
    """A constant learning rate ends where it is."""
    optimizers = {"spec.optimizer": job.spec.optimizer}
    if job.spec.critic is not None:
        optimizers["spec.critic.optimizer"] = job.spec.critic.optimizer
    for section, optimizer in optimizers.items():
        ratio = optimizer.min_learning_rate_ratio
        if optimizer.schedule == "constant" and ratio != 0:
            where = f"{section}.minLearningRateRatio"
            allowed = "remove it, or schedule: cosine"
            yield no_effect(where, ratio, "with schedule: constant", allowed)


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
        ("spec.checkpoint.best.metric", spec.checkpoint.best and spec.checkpoint.best.metric),
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


def resumption_in_pods(job: PPOJob) -> Iterator[Problem]:
    """Pods that are made anew must go on, and never do from the commits of another job."""
    checkpoint = job.spec.checkpoint
    if checkpoint.volume is not None and checkpoint.resume == "never":
        why = "with spec.checkpoint.volume: a job on a cluster goes on from its own commits alone"
        yield no_effect("spec.checkpoint.resume", checkpoint.resume, why, "auto")


def critic(job: PPOJob) -> Iterator[Problem]:
    """Only an estimator that reads values has a value model."""
    spec = job.spec
    if spec.algorithm.estimator.has_critic:
        return
    why = f"with type: {spec.algorithm.type}, which has no value model"
    for where, section in (("spec.critic", spec.critic), ("spec.roles.critic", spec.roles.critic)):
        if section is not None:
            value = section.model_dump(mode="json", exclude_unset=True)
            yield no_effect(where, value, why, "remove it")


def reward_model(job: PPOJob) -> Iterator[Problem]:
    """A model of weight 0 is run for nothing; ranks without a model have nothing to do."""
    model, role = job.spec.reward_model, job.spec.roles.reward_model
    if model is not None and model.weight == 0:
        allowed = "another weight, or remove spec.rewardModel"
        yield no_effect("spec.rewardModel.weight", model.weight, "on the reward", allowed)
    if model is None and role is not None:
        value = role.model_dump(mode="json", exclude_unset=True)
        allowed = "remove it, or give spec.rewardModel"
        yield no_effect("spec.roles.rewardModel", value, "without spec.rewardModel", allowed)


def reward_pods(job: PPOJob) -> Iterator[Problem]:
    """Where a reward model alone scores, no pod runs functions."""
    if topology.scores_by_functions(job.spec):
        return
    allowed = "remove it, or name functions in spec.rewards"
    given = job.spec.roles.reward.model_dump(mode="json", exclude_defaults=True)
    for name, value in given.items():
        yield no_effect(f"spec.roles.reward.{name}", value, "beside a reward model alone", allowed)


def colocated_pods(job: PPOJob) -> Iterator[Problem]:
    """A role in another's ranks has no pods to set."""
    for role, guest in topology.colocatable_roles(job.spec.roles).items():
        if guest.colocate_with == "none":
            continue
        why = f"with colocateWith: {guest.colocate_with}"
        allowed = "remove it, or colocateWith: none for pods of its own"
        for name, value in guest.model_dump(mode="json", exclude_defaults=True).items():
            yield no_effect(f"spec.roles.{role}.{name}", value, why, allowed)


_DECAY = tuple(
    f"{section}.{name}"
    for section in ("spec.optimizer", "spec.critic.optimizer")
    for name in ("schedule", "minLearningRateRatio")
)

EFFECT_CHECKS = (
    Check(member_of_other_type, ("spec.algorithm.type",)),
    Check(shuffled_mini_batches, ("spec.algorithm", "spec.critic.miniBatchPrompts")),
    Check(loss_scale, ("spec.algorithm.lossAggregation", "spec.algorithm.lossScaleTokens")),
    Check(kl_without_place, (_KL, "spec.roles.reference")),
    Check(kl_controller, (_KL,)),
    Check(kl_of_weight_zero, (f"{_KL}.in", f"{_KL}.coefficient")),
    Check(cosine_end, _DECAY),
    Check(order_seed, ("spec.data.seed", "spec.data.shuffle")),
    Check(validation_without_data, ("spec.data.validation",)),
    Check(greedy_validation, ("spec.rollout.validation",)),
    Check(cache_size, ("spec.rollout.engine", "spec.rollout.kvCacheGib")),
    Check(resumption_in_pods, ("spec.checkpoint.resume", "spec.checkpoint.volume")),
    Check(reward_weights, ("spec.rewards",)),
    Check(critic, ("spec.algorithm.type", "spec.critic", "spec.roles.critic")),
    Check(reward_model, ("spec.rewardModel", "spec.roles.rewardModel")),
    Check(reward_pods, ("spec.roles.reward", "spec.rewards", "spec.rewardModel")),
    Check(colocated_pods, MODEL_ROLE_PATHS),
)
