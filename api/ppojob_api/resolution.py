"""Defaults that depend on other fields or on the processor, written out."""

from typing import Final, TypeVar

from ppojob_api import topology
from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.policy_loss import RATIO_MODES
from ppojob_api.v1alpha1.roles import CriticRole, DevicePods, FrozenRole, RolePods, RolesSpec
from ppojob_api.v1alpha1.rollout import JudgeSpec, RolloutSpec
from ppojob_api.v1alpha1.section import Section
from ppojob_api.v1alpha1.training import CriticSpec

S = TypeVar("S", bound=Section)
_JUDGE_CACHE_GIB: Final = 1.0
"""KV cache of a judge on CPUs; on GPUs gpuMemoryShare decides."""
_TEMPLATE_TOKENS: Final = 256
"""Tokens of a teacher's prompt besides the prompt and a response."""


def resolved_spec(spec: PPOJobSpec) -> PPOJobSpec:
    """Write out every default of a valid spec that depends on another field; idempotent."""
    data, model, reward_model = spec.data, spec.model, spec.reward_model
    if data.seed is None and data.shuffle:  # without a drawn order a seed has no effect
        data = _with(data, seed=spec.seed)
    has_made = spec.algorithm.reprompt is not None
    if has_made or data.teacher_prompt_key is not None:
        more = data.max_response_tokens + _TEMPLATE_TOKENS if has_made else 0
        longest = data.max_teacher_prompt_tokens or data.max_prompt_tokens + more
        data = _with(data, max_teacher_prompt_tokens=longest)
    if reward_model is not None:
        reward_model = _with(
            reward_model, tokenizer_path=reward_model.tokenizer_path or reward_model.path
        )
    return _with(
        spec,
        model=_with(model, tokenizer_path=model.tokenizer_path or model.path),
        data=data,
        algorithm=_resolved_algorithm(spec),
        rollout=spec.rollout if spec.algorithm.given else _resolved_rollout(spec),
        critic=_resolved_critic(spec),
        reward_model=reward_model,
        roles=_resolved_roles(spec),
    )


def with_number_types(spec: PPOJobSpec, *, native_bfloat16: bool | None) -> PPOJobSpec:
    """Resolve dtypes that are `auto`.

    On GPUs bfloat16; on CPUs bfloat16 if they multiply it natively, else float32, which is up to
    seven times as fast there.

    Args:
        spec: A resolved spec.
        native_bfloat16: Whether the ranks' CPUs multiply bfloat16 natively; None: unknown, then
            dtypes that depend on it stay auto.
    """
    own = topology.model_pods(spec.roles)
    on_gpus = {role: pods.gpus_per_replica > 0 for role, pods in own.items()}
    # All roles except a reward model have the policy's device, since rows move between devices.
    policy = on_gpus["actorRollout"]
    update: dict[str, object] = {}
    for name, field, on_gpu, otherwise in (
        ("training", "autocast", policy, "none"),
        ("rollout", "dtype", policy, "float32"),
        ("reward_model", "dtype", on_gpus.get("rewardModel", policy), "float32"),
        ("judge", "dtype", spec.roles.judge.gpus_per_replica > 0, "float32"),
    ):
        if name == "rollout" and spec.algorithm.given:
            continue  # it has no effect
        section, takes_bfloat16 = getattr(spec, name), on_gpu or native_bfloat16
        if takes_bfloat16 is not None and getattr(section, field, None) == "auto":
            chosen = "bfloat16" if takes_bfloat16 else otherwise
            update[name] = _with(section, **{field: chosen})
    judge = update.get("judge", spec.judge)
    if isinstance(judge, JudgeSpec) and not spec.roles.judge.gpus_per_replica:
        update["judge"] = _with(judge, kv_cache_gib=judge.kv_cache_gib or _JUDGE_CACHE_GIB)
    return _with(spec, **update)


def _with(section: S, **fields: object) -> S:
    """A copy of the section with other values of these fields."""
    return section.model_copy(update=fields)


def _resolved_algorithm(spec: PPOJobSpec) -> AlgorithmSpec:
    algorithm, loss, kl = spec.algorithm, spec.algorithm.policy_loss, spec.algorithm.kl
    update: dict[str, object] = {
        "mini_batch_prompts": algorithm.mini_batch_prompts or algorithm.prompts_per_step
    }
    if algorithm.estimator.options is not None and algorithm.options is None:
        update[algorithm.type] = algorithm.estimator.options()
    if (pairs := algorithm.pairs) is not None:
        update[algorithm.type] = _with(pairs, sft_weight=pairs.own_sft_weight)
    if (rounds := algorithm.dynamic_sampling) is not None:
        per_round = rounds.prompts_per_round or algorithm.prompts_per_step
        update["dynamic_sampling"] = _with(rounds, prompts_per_round=per_round)
    if (supervised := algorithm.supervised) is not None:
        rows = supervised.rows_per_step or algorithm.prompts_per_step
        update["supervised"] = _with(supervised, rows_per_step=rows)
    if loss.loss.options is not None and not algorithm.given:
        own = loss.options or loss.loss.options()
        update["policy_loss"] = _with(loss, **{loss.type: own})
    if (correction := algorithm.rollout_correction) is not None:
        rejection = tuple(
            _with(one, low=one.low or 1.0 / one.high) if one.mode in RATIO_MODES else one
            for one in correction.rejection
        )
        update["rollout_correction"] = _with(correction, rejection=rejection)
    if algorithm.loss_aggregation == "sequence_mean_token_sum_norm":
        update["loss_scale_tokens"] = algorithm.loss_scale_tokens or spec.data.max_response_tokens
    if kl.in_ != "none":
        # In the reward k1 gives the gradient of the KL; in the loss it would give none, so k3.
        estimator = kl.estimator or ("k1" if kl.in_ == "reward" else "k3")
        update["kl"] = _with(kl, estimator=estimator)
    return _with(algorithm, **update)


def _resolved_rollout(spec: PPOJobSpec) -> RolloutSpec:
    data, rollout, layout = spec.data, spec.rollout, spec.rollout.parallelism
    ranks = topology.world_size(spec.roles.rollout or spec.roles.actor_rollout)
    tokens = rollout.max_model_tokens or data.max_prompt_tokens + data.max_response_tokens
    engines = layout.data or max(1, ranks // layout.tensor)
    return _with(rollout, max_model_tokens=tokens, parallelism=_with(layout, data=engines))


def _resolved_critic(spec: PPOJobSpec) -> CriticSpec | None:
    critic, algorithm = spec.critic, spec.algorithm
    if critic is None and not algorithm.estimator.has_critic:
        return None
    critic = critic or CriticSpec()
    prompts = algorithm.mini_batch_prompts or algorithm.prompts_per_step
    return _with(
        critic,
        path=critic.path or spec.model.path,
        epochs=critic.epochs or algorithm.epochs,
        mini_batch_prompts=critic.mini_batch_prompts or prompts,
    )


def _resolved_roles(spec: PPOJobSpec) -> RolesSpec:
    roles = spec.roles
    update: dict[str, object] = {"actor_rollout": _resolved_pods(roles.actor_rollout)}
    if roles.rollout is not None:
        update["rollout"] = _resolved_pods(roles.rollout)
    needed = (
        ("reference", roles.reference, FrozenRole, spec.algorithm.has_reference),
        ("critic", roles.critic, CriticRole, spec.algorithm.estimator.has_critic),
        ("reward_model", roles.reward_model, FrozenRole, spec.reward_model is not None),
    )
    for name, role, kind, is_needed in needed:
        if role is None and is_needed:
            update[name] = kind()
        elif role is not None and role.colocate_with == "none":
            update[name] = _resolved_pods(role)
    return _with(roles, **update)


def _resolved_pods(pods: DevicePods) -> DevicePods:
    ranks = topology.ranks_per_replica(pods)
    update: dict[str, object] = {
        "ranks_per_replica": ranks,
        "threads_per_rank": topology.threads_per_rank(pods),
    }
    if isinstance(pods, RolePods):
        layout = pods.parallelism
        within = layout.pipeline * layout.sequence * layout.tensor
        shards = layout.data_shard or pods.replicas * ranks // within
        update["parallelism"] = _with(layout, data_shard=shards)
    return _with(pods, **update)
