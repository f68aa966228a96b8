"""Defaults that depend on other fields or on the processor, written out."""

from typing import TypeVar

from ppojob_api import topology
from ppojob_api.v1alpha1.algorithm import (
    AlgorithmSpec,
    KlSpec,
)
from ppojob_api.v1alpha1.critic import CriticSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.roles import ColocatableRole, DevicePods, RolePods, RolesSpec
from ppojob_api.v1alpha1.rollout import RewardModelSpec, RolloutSpec
from ppojob_api.v1alpha1.rollout_correction import RATIO_MODES, RolloutCorrectionSpec
from ppojob_api.v1alpha1.training import DataSpec

Pods = TypeVar("Pods", bound=DevicePods)


def resolved_spec(spec: PPOJobSpec) -> PPOJobSpec:
    """Write out every default of a valid spec that depends on another field; idempotent."""
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(
                update={"tokenizer_path": spec.model.tokenizer_path or spec.model.path}
            ),
            "data": _resolved_data(spec),
            "algorithm": _resolved_algorithm(spec),
            "rollout": _resolved_rollout(spec),
            "critic": _resolved_critic(spec),
            "reward_model": _resolved_reward_model(spec.reward_model),
            "roles": _resolved_roles(spec),
        }
    )


def with_number_types(spec: PPOJobSpec, *, native_bfloat16: bool | None) -> PPOJobSpec:
    """Write out the types of numbers that are `auto`.

    A GPU takes bfloat16. A processor takes it where it multiplies it natively: elsewhere float32 is
    up to seven times as fast.

    Args:
        spec: A resolved spec.
        native_bfloat16: Whether the processors of the ranks do; None where that is not known: then
            what depends on it stays auto.
    """
    own = topology.model_pods(spec.roles)
    on_gpus = {role: pods.gpus_per_replica > 0 for role, pods in own.items()}
    # All but a reward model are where the policy is: rows go from device to device.
    policy = on_gpus["actorRollout"]
    update: dict[str, object] = {}
    for name, field, on_gpu, otherwise in (
        ("training", "autocast", policy, "none"),
        ("rollout", "dtype", policy, "float32"),
        ("reward_model", "dtype", on_gpus.get("rewardModel", policy), "float32"),
    ):
        section, takes_bfloat16 = getattr(spec, name), on_gpu or native_bfloat16
        if takes_bfloat16 is not None and getattr(section, field, None) == "auto":
            chosen = "bfloat16" if takes_bfloat16 else otherwise
            update[name] = section.model_copy(update={field: chosen})
    return spec.model_copy(update=update)


def _resolved_data(spec: PPOJobSpec) -> DataSpec:
    data = spec.data
    # Without a drawn order a seed would be a setting without effect.
    if data.seed is not None or not data.shuffle:
        return data
    return data.model_copy(update={"seed": spec.seed})


def _resolved_algorithm(spec: PPOJobSpec) -> AlgorithmSpec:
    algorithm = spec.algorithm
    update: dict[str, object] = {
        "mini_batch_prompts": algorithm.mini_batch_prompts or algorithm.prompts_per_step
    }
    if algorithm.estimator.options is not None and algorithm.options is None:
        update[algorithm.type] = algorithm.estimator.options()
    if algorithm.dynamic_sampling is not None:
        rounds = algorithm.dynamic_sampling
        per_round = rounds.prompts_per_round or algorithm.prompts_per_step
        update["dynamic_sampling"] = rounds.model_copy(update={"prompts_per_round": per_round})
    loss = algorithm.policy_loss
    if loss.loss.options is not None:
        own = loss.options or loss.loss.options()
        update["policy_loss"] = loss.model_copy(update={loss.type: own})
    if algorithm.rollout_correction is not None:
        update["rollout_correction"] = _resolved_correction(algorithm.rollout_correction)
    if algorithm.loss_aggregation == "sequence_mean_token_sum_norm":
        update["loss_scale_tokens"] = algorithm.loss_scale_tokens or spec.data.max_response_tokens
    if algorithm.kl.in_ != "none":
        update["kl"] = _resolved_kl(algorithm.kl)
    return algorithm.model_copy(update=update)


def _resolved_correction(correction: RolloutCorrectionSpec) -> RolloutCorrectionSpec:
    rejection = tuple(
        one.model_copy(update={"low": one.low or 1.0 / one.high})
        if one.mode in RATIO_MODES
        else one
        for one in correction.rejection
    )
    return correction.model_copy(update={"rejection": rejection})


def _resolved_kl(kl: KlSpec) -> KlSpec:
    # As a penalty k1 gives the gradient of the KL, as a loss it gives none: there it needs k3.
    return kl.model_copy(
        update={"estimator": kl.estimator or ("k1" if kl.in_ == "reward" else "k3")}
    )


def _resolved_rollout(spec: PPOJobSpec) -> RolloutSpec:
    data, rollout = spec.data, spec.rollout
    ranks = topology.world_size(spec.roles.rollout or spec.roles.actor_rollout)
    layout = rollout.parallelism
    engines = layout.data or max(1, ranks // layout.tensor)
    return rollout.model_copy(
        update={
            "max_model_tokens": rollout.max_model_tokens
            or data.max_prompt_tokens + data.max_response_tokens,
            "parallelism": layout.model_copy(update={"data": engines}),
        }
    )


def _resolved_critic(spec: PPOJobSpec) -> CriticSpec | None:
    critic, algorithm = spec.critic, spec.algorithm
    if critic is None and not algorithm.estimator.has_critic:
        return None
    critic = critic or CriticSpec()
    return critic.model_copy(
        update={
            "path": critic.path or spec.model.path,
            "epochs": critic.epochs or algorithm.epochs,
            "mini_batch_prompts": critic.mini_batch_prompts
            or algorithm.mini_batch_prompts
            or algorithm.prompts_per_step,
        }
    )


def _resolved_reward_model(model: RewardModelSpec | None) -> RewardModelSpec | None:
    if model is None:
        return None
    return model.model_copy(update={"tokenizer_path": model.tokenizer_path or model.path})


def _resolved_roles(spec: PPOJobSpec) -> RolesSpec:
    roles = spec.roles
    update: dict[str, object] = {"actor_rollout": _resolved_pods(roles.actor_rollout)}
    if roles.rollout is not None:
        update["rollout"] = _resolved_pods(roles.rollout)
    needed = (
        ("reference", roles.reference, spec.algorithm.kl.in_ != "none"),
        ("critic", roles.critic, spec.algorithm.estimator.has_critic),
        ("reward_model", roles.reward_model, spec.reward_model is not None),
    )
    for name, role, is_needed in needed:
        if role is None and is_needed:
            update[name] = ColocatableRole()
        elif role is not None and role.colocate_with == "none":
            update[name] = _resolved_pods(role)
    return roles.model_copy(update=update)


def _resolved_pods(pods: Pods) -> Pods:
    ranks = topology.ranks_per_replica(pods)
    update: dict[str, object] = {
        "ranks_per_replica": ranks,
        "threads_per_rank": topology.threads_per_rank(pods),
    }
    if isinstance(pods, RolePods):
        layout = pods.parallelism
        shards = layout.data_shard or pods.replicas * ranks // layout.tensor
        update["parallelism"] = layout.model_copy(update={"data_shard": shards})
    return pods.model_copy(update=update)
