"""Conversion of verl's algorithm settings: estimator, loss, KL, batches and critic."""

from typing import Any, Final

from pydantic.alias_generators import to_camel

from ppojob_cli.verl import unread
from ppojob_cli.verl.asynchronous import may_filter, step_prompts
from ppojob_cli.verl.draft import NOWHERE, Draft, Verl
from ppojob_cli.verl.recipes import tracks_values
from ppojob_cli.verl.trainers import FORKS, FULLY_ASYNC, OF_SEARCH_R1, OF_SFT, PRIME, TINY_ZERO

_ACTOR = "actor_rollout_ref.actor"
_LOSS = "spec.algorithm.policyLoss"
_TEACHING = "distillation"
_TEACHERS = f"{_TEACHING}.teacher_models"
_TEACHER = f"{_TEACHERS}.teacher_model.model_path"
_TEACHER_LOSS = f"{_TEACHING}.distillation_loss"

# The bounds of each loss, for which verl has one pair of keys.
_BOUNDS = {
    "clip": ("clipLow", "clipHigh"),
    "bypass": ("clipLow", "clipHigh"),
    "gspo": ("gspo.clipLow", "gspo.clipHigh"),
    "cispo": ("cispo.clipLow", "cispo.clipHigh"),
    "geo_mean": ("geoMean.clipLow", "geoMean.clipHigh"),
    "clip_cov": ("clipCov.clipLow", "clipCov.clipHigh"),
    "dppo_tv": ("dppoTv.divergenceLow", "dppoTv.divergenceHigh"),
    "dppo_kl": ("dppoKl.divergenceLow", "dppoKl.divergenceHigh"),
}
_LIMITS = {
    "clip": "dualClip",
    "bypass": "dualClip",
    "dppo_tv": "dppoTv.ratioLimit",
    "dppo_kl": "dppoKl.ratioLimit",
}
_OWN = {
    "sapo": ("tau_pos", "tau_neg"),
    "clip_cov": (
        "policy_loss.clip_cov_ratio",
        "policy_loss.clip_cov_lb",
        "policy_loss.clip_cov_ub",
    ),
    "kl_cov": ("policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef"),
    "dro": ("policy_loss.dro_beta",),
    "gvpo": ("gvpo_beta",),
}
_WITHOUT_AGGREGATION = ("gspo", "sapo", "geo_mean", "gvpo", "flowrl")
"""Losses of verl's that are means over responses, whatever loss_agg_mode says."""
_OF_ONE = {
    "grpo": "reinforce",
    "grpo_vectorized": "reinforce",
    "rloo": "reinforce",
    "opo": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus",
}
"""What estimators of groups are where a prompt has one response, which has no baseline then."""


def estimator(verl: Verl, job: Draft) -> None:
    """Convert the estimator and its settings."""
    if not _learns_from_teacher(verl) and not tracks_values(verl):
        _of_choice(verl, job)


def _of_choice(verl: Verl, job: Draft) -> None:
    """Convert the estimator of adv_estimator, or that of a trainer without this choice."""
    if verl.trainer in OF_SFT:
        job.set("spec.algorithm.type", "sft")
        return
    if verl.trainer is PRIME:
        job.set("spec.algorithm.type", "prime", "algorithm.adv_estimator")
        if verl["algorithm.adv_estimator"] != "rloo":
            job.leave_out("the recipe knows rloo alone", "algorithm.adv_estimator")
        return
    job.copy("algorithm.adv_estimator")
    if verl["algorithm.adv_estimator"] == "intuitor":  # of its authors' fork
        job.set("spec.algorithm.certaintyReward", {}, "algorithm.adv_estimator")
        why = "nothing is scored without spec.rewards, which measure beside certaintyReward"
        job.note(why, "algorithm.adv_estimator")
    _single_responses(verl, job)
    written = job.fields.get("spec.algorithm.type")
    kind = "" if written is None else str(written.value)
    section = f"spec.algorithm.{to_camel(str(kind))}"
    if kind in {"grpo", "grpo_passk", "gdpo"}:
        job.copy("algorithm.norm_adv_by_std_in_grpo", f"{section}.normalizeByStd")
    if kind in {"ppo", "reinforce_plus_plus"}:
        job.copy("algorithm.gamma", f"{section}.gamma")
    if kind == "ppo":
        job.copy("algorithm.lam")
    if kind == "gdpo":
        job.copy("algorithm.gdpo_reward_keys")
        if verl.is_given("algorithm.gdpo_reward_weights"):
            job.copy("algorithm.gdpo_reward_weights")


def further_tokens(verl: Verl, job: Draft) -> None:
    """Convert multi-token prediction layers, which are trained or exported unchanged."""
    enable, train, weight, detach = (
        f"actor_rollout_ref.model.mtp.{name}"
        for name in ("enable", "enable_train", "mtp_loss_scaling_factor", "detach_encoder")
    )
    job.keep(enable)
    if not verl[enable] or not verl[train]:
        job.keep(train)
        return
    job.set("spec.model.mtp", {}, train)
    job.copy(weight)
    job.copy(detach)


def router_losses(verl: Verl, job: Draft) -> None:
    """Convert the router losses and bias of mixtures of experts."""
    megatron = f"{_ACTOR}.megatron.override_transformer_config"
    balance, z = f"{megatron}.moe_aux_loss_coeff", f"{megatron}.moe_z_loss_coeff"
    kind = f"{megatron}.moe_router_load_balancing_type"
    router = f"{megatron}.moe_router"
    bias, rate = f"{router}_enable_expert_bias", f"{router}_bias_update_rate"
    job.keep(bias, rate)
    if verl[bias] and verl[rate]:
        job.set("spec.algorithm.routerBiasRate", verl[rate], bias, rate)
    elif verl.is_given(rate) and verl[rate]:
        why = "the bias stays without moe_router_enable_expert_bias, which is on in verl for some"
        job.leave_out(f"{why} models (DeepSeek-V3): routerBiasRate", rate)
    if verl[z]:
        job.copy(z)
        job.note("a mean over the tokens of a micro-batch there, over those of each row here", z)
    if not verl[balance]:
        job.keep(balance, kind)
    elif verl[kind] == "none":
        why = "verl sets moe_router_load_balancing_type: none, with which it has no effect"
        job.leave_out(why, balance, changes_numbers=False)
    elif verl[kind] in ("seq_aux_loss", "aux_loss", "global_aux_loss"):
        job.copy(balance)
        if verl[kind] != "seq_aux_loss":
            job.note("of the tokens of a micro-batch or a batch there, of each row here", kind)
    else:
        job.leave_out("the balance loss of a sequence alone is there", balance, kind)


def policy_loss(verl: Verl, job: Draft) -> None:
    """Convert the policy loss; distillation has its own."""
    if _learns_from_teacher(verl):
        job.copy(f"{_ACTOR}.loss_agg_mode")
    else:
        _policy_loss(verl, job)


def _policy_loss(verl: Verl, job: Draft) -> None:
    mode, bypass = f"{_ACTOR}.policy_loss.loss_mode", "algorithm.rollout_correction.bypass_mode"
    if verl[bypass]:
        job.set(f"{_LOSS}.type", "bypass", bypass)
    else:
        job.copy(mode)
    written = job.fields.get(f"{_LOSS}.type")
    kind = "clip" if written is None else str(written.value)
    form, of_form = _form(verl)
    if kind == "bypass":
        job.set(f"{_LOSS}.bypass.form", form, of_form)
    has_bounds = kind in _BOUNDS and (kind != "bypass" or form == "clip")
    for side, name in zip(_BOUNDS.get(kind, ()), ("low", "high"), strict=False):
        if has_bounds:
            job.copy(f"{_ACTOR}.clip_ratio_{name}", f"{_LOSS}.{side}")
    if kind in _LIMITS and has_bounds:
        job.copy(f"{_ACTOR}.clip_ratio_c", f"{_LOSS}.{_LIMITS[kind]}")
    for name in _OWN.get(kind, ()):
        job.copy(f"{_ACTOR}.{name}")
    if kind == "gvpo":
        why = (
            "a mean over prompts here; ppo_micro_batch_size_per_gpu / rollout.n times as much there"
        )
        job.note(f"{why}, which gradientClip sees, and what stands beside it", mode)
    _aggregation(verl, job, kind, mode)
    _one_bound(verl, job)
    for name in ("tau_pos", "tau_neg"):
        if verl.is_given(f"{_ACTOR}.policy_loss.{name}"):
            why = f"without effect in verl, which reads actor.{name}"
            job.note(why, f"{_ACTOR}.policy_loss.{name}")


def _form(verl: Verl) -> tuple[str, str]:
    """Return the form of the loss of the bypass mode, and the key that says it."""
    at = "algorithm.rollout_correction"
    if verl[former := f"{at}.use_policy_gradient"]:
        return "reinforce", former
    form = str(verl[f"{at}.loss_type"])
    return {"ppo_clip": "clip"}.get(form, form), f"{at}.loss_type"


def _one_bound(verl: Verl, job: Draft) -> None:
    """Convert a clip bound for both sides, which only forks of verl read."""
    both = (f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high")
    ratio = f"{_ACTOR}.clip_ratio"
    if verl.trainer in FORKS:
        job.copy(ratio, f"{_LOSS}.clipLow")
        job.copy(ratio, f"{_LOSS}.clipHigh")
    elif verl.is_given(ratio) and not any(map(verl.is_given, both)) and verl[ratio] != 0.2:
        job.note("without effect in verl, which reads clip_ratio_low and clip_ratio_high", ratio)


def _aggregation(verl: Verl, job: Draft, kind: str, mode: str) -> None:
    field = "spec.algorithm.lossAggregation"
    if kind in _WITHOUT_AGGREGATION:
        job.set(field, "sequence_mean_token_mean", mode)
    else:
        job.copy(f"{_ACTOR}.loss_agg_mode")


def _teachers(verl: Verl) -> list[str]:
    """Return the keys with models of teachers; custom names replace verl's default one.

    Several teachers each need a data source, else the result is empty.
    """
    found = [
        f"{_TEACHERS}.{path}" for path in verl.below(_TEACHERS) if path.endswith(".model_path")
    ]
    named = [key for key in found if key != _TEACHER] or found
    return named if len(named) == 1 or all(map(verl.is_given, map(_source, named))) else []


def _source(teacher: str) -> str:
    return teacher.removesuffix("model_path") + "key"


def _learns_from_teacher(verl: Verl) -> bool:
    is_on = verl[f"{_TEACHING}.enabled"] and _teachers(verl)
    return bool(is_on and not verl[f"{_TEACHER_LOSS}.use_task_rewards"])


def distillation(verl: Verl, job: Draft) -> None:
    """Convert distillation: instead of rewards, or as the reference of a KL in the loss."""
    if not verl[f"{_TEACHING}.enabled"]:
        return
    on, mode = f"{_TEACHING}.enabled", f"{_TEACHER_LOSS}.loss_mode"
    gradient = f"{_TEACHER_LOSS}.use_policy_gradient"
    teachers = _teachers(verl)
    if not teachers:
        job.leave_out("no teacher is named, or one of several has no key", on)
        return
    has_rewards = not _learns_from_teacher(verl)
    if has_rewards and (verl[gradient] or str(verl[mode]).startswith("forward")):
        why = "beside task rewards a teacher is the reference of a KL in the loss, by an estimator"
        job.leave_out(why, on)
        return
    _references(verl, job, teachers)
    _token_limit(verl, job, has_rewards=has_rewards)
    if has_rewards:
        section = "spec.algorithm.kl"
        job.set(f"{section}.in", "loss", on)
        _estimator(job, f"{section}.estimator", mode, "k3")
        job.copy(f"{_TEACHER_LOSS}.distillation_loss_coef", f"{section}.coefficient")
        _teacher_pods(verl, job)
        return
    job.set("spec.algorithm.type", "distillation", on)
    if "spec.data.validation" in job.fields and not {"spec.rewards", "spec.rewardModel"} & {
        *job.fields
    }:
        del job.fields["spec.data.validation"]
        why = "nothing is scored beside a teacher unless spec.rewards names a function"
        job.leave_out(why, "data.val_files", changes_numbers=False)
    field = "spec.algorithm.distillation.divergence"
    if verl[gradient]:
        job.set(field, "sampled_reverse_kl", gradient)
        for side in ("Low", "High"):
            job.copy(f"{_TEACHER_LOSS}.clip_ratio_{side.lower()}", f"{_LOSS}.clip{side}")
        if verl[mode] not in ("k1", "kl"):
            job.leave_out("as policy gradient the reward of a token is k1", mode)
        _teacher_pods(verl, job)
    else:
        job.set(field, verl[mode], mode)
        job.note("over the whole vocabulary here, where verl looks at some tokens of it", mode)
        if verl[f"{_TEACHING}.nnodes"]:
            why = "over the whole vocabulary the teacher lives in the ranks of the policy"
            job.leave_out(why, f"{_TEACHING}.nnodes", changes_numbers=False)


def _references(verl: Verl, job: Draft, teachers: list[str]) -> None:
    column, sources = f"{_TEACHING}.teacher_key", [_source(teacher) for teacher in teachers]
    # No engine of theirs counts, nor of one teacher the data source: it is a reference.
    entries = tuple(teacher.removesuffix("model_path") for teacher in teachers)
    read = {*teachers} if len(teachers) == 1 else {*teachers, *sources}
    job.keep(*(key for key in verl.typed if key.startswith(entries) and key not in read))
    if len(teachers) == 1:
        job.set("spec.reference.path", verl[teachers[0]], teachers[0])
        job.keep(column)
        return
    by_path: dict[str, list[str]] = {}
    for teacher, source in zip(teachers, sources, strict=True):
        by_path.setdefault(verl[teacher], []).append(verl[source])
    found = [{"path": path, "dataSources": own} for path, own in by_path.items()]
    job.set("spec.reference.teachers", found, *teachers, *sources)
    if verl[column] == verl["data.reward_fn_key"]:
        job.keep(column)
    else:
        why = "teachers and rewards are chosen by one column, spec.data.dataSourceKey"
        job.leave_out(why, column)


def _token_limit(verl: Verl, job: Draft, *, has_rewards: bool) -> None:
    limit = f"{_TEACHER_LOSS}.loss_max_clamp"
    if has_rewards and verl.is_given(limit):
        job.leave_out("a KL in the loss has no bound of a token", limit)
    elif verl.is_given(limit):
        job.copy(limit)


def _teacher_pods(verl: Verl, job: Draft) -> None:
    if verl[nodes := f"{_TEACHING}.nnodes"]:
        job.own_pods("reference", nodes, nodes, f"{_TEACHING}.n_gpus_per_node")


def _single_responses(verl: Verl, job: Draft) -> None:
    """Convert a group estimator with groups of one."""
    key = "algorithm.adv_estimator"
    alone, rollout = _OF_ONE.get(str(verl[key])), "actor_rollout_ref.rollout"
    is_known = not any(unread.marks(verl.raw(f"{rollout}.n")))
    has_peers = (
        not is_known
        or verl[f"{rollout}.n"] != 1
        or (verl.trainer in OF_SEARCH_R1 and verl[f"{rollout}.n_agent"] != 1)
    )
    if alone is not None and not has_peers:
        job.set("spec.algorithm.type", alone, key)
        job.note("a prompt has one response, which is compared with none", key)


def places_of_kl(verl: Verl) -> tuple[bool, bool]:
    """Return whether there is a KL penalty in the reward, and one in the loss."""
    in_reward = verl["algorithm.use_kl_in_reward"] and verl["algorithm.kl_ctrl.kl_coef"] != 0
    in_loss = verl[f"{_ACTOR}.use_kl_loss"] and verl[f"{_ACTOR}.kl_loss_coef"] != 0
    if verl.trainer in FORKS:
        in_reward = in_reward and not verl[f"{_ACTOR}.use_kl_loss"]
    in_reward = in_reward and verl.trainer is not PRIME
    return bool(in_reward), bool(in_loss)


def kl(verl: Verl, job: Draft) -> None:
    """Convert KL penalties: verl has a switch and a coefficient for reward and loss."""
    if verl[f"{_TEACHING}.enabled"] and _teachers(verl):
        return
    at, section = "algorithm.kl_ctrl", "spec.algorithm.kl"
    in_reward, in_loss = places_of_kl(verl)
    if verl.trainer is PRIME:
        keys = ("algorithm.use_kl_in_reward", "algorithm.kl_penalty", f"{at}.kl_coef", f"{at}.type")
        why = "the recipe reads a KL in the reward nowhere"
        job.leave_out(why, *keys, changes_numbers=False)
    elif (
        verl.trainer not in FORKS
        and verl.is_given(f"{at}.kl_coef")
        and verl[f"{at}.kl_coef"]
        and not (in_reward or in_loss or verl.is_given("algorithm.use_kl_in_reward"))
    ):
        why = "without effect in verl; in that of early 2025, as in TinyZero, it has: --of tinyzero"
        job.note(why, f"{at}.kl_coef")
    if in_reward:
        job.set(f"{section}.in", "reward", "algorithm.use_kl_in_reward")
        _estimator(job, f"{section}.estimator", "algorithm.kl_penalty", "k1")
        job.copy(f"{at}.kl_coef", f"{section}.coefficient")
        job.copy(f"{at}.type")
        if verl[f"{at}.type"] == "adaptive":
            job.copy(f"{at}.target_kl")
            job.copy(f"{at}.horizon")
    if in_loss:
        if in_reward:
            section += ".lossTerm"
            job.set(section, {}, f"{_ACTOR}.use_kl_loss")
        else:
            job.set(f"{section}.in", "loss", f"{_ACTOR}.use_kl_loss")
        _estimator(job, f"{section}.estimator", f"{_ACTOR}.kl_loss_type", "k3")
        job.copy(f"{_ACTOR}.kl_loss_coef", f"{section}.coefficient")
        if verl.trainer is TINY_ZERO:
            why = "it has the sign that rewards a distance there, and is charged here"
            job.note(why, f"{_ACTOR}.use_kl_loss")


def _estimator(job: Draft, path: str, key: str, default: str) -> None:
    """Return the KL estimator, whose default differs between reward and loss."""
    if job.word(path, key) == default:
        job.keep(key)
    else:
        job.copy(key, path)


def resampling(verl: Verl, job: Draft) -> None:
    """Convert the resampling of responses by score."""
    if not verl["algorithm.use_pf_ppo"]:
        return
    job.set("spec.algorithm.resampling", {}, "algorithm.use_pf_ppo")
    job.copy("algorithm.pf_ppo.reweight_method")
    if verl["algorithm.pf_ppo.reweight_method"] == "pow":
        job.copy("algorithm.pf_ppo.weight_pow")


def filter_groups(verl: Verl, job: Draft) -> None:
    """Convert dynamic sampling; verl has no limit of rounds by default."""
    at, section = "algorithm.filter_groups", "spec.algorithm.dynamicSampling"
    drawn = "data.gen_batch_size"
    # fully_async_main draws prompt by prompt.
    is_own = verl.is_given(drawn) and verl.trainer is not FULLY_ASYNC
    is_own = is_own and verl[drawn] != step_prompts(verl)
    is_on = verl[f"{at}.enable"]
    if is_on and not may_filter(verl):
        job.leave_out(NOWHERE, f"{at}.enable", changes_numbers=False)
        return
    if not is_on:
        if is_own and not tracks_values(verl):
            job.leave_out("a number of prompts for dynamic sampling, which is off", drawn)
        return
    job.set(section, {}, f"{at}.enable")
    metric = verl[f"{at}.metric"]
    is_final = metric == "seq_final_reward"
    if is_final and verl["algorithm.use_kl_in_reward"]:
        job.leave_out("no two responses have the same score behind a KL", f"{at}.metric")
    else:
        word = "score" if is_final or metric == "seq_reward" else metric
        job.set(f"{section}.metric", word, f"{at}.metric")
    rounds = f"{at}.max_num_gen_batches"
    job.set(f"{section}.maxRounds", verl[rounds] if verl[rounds] > 0 else 1_000, rounds)
    if verl[rounds] > 0:
        why = "after these rounds prompts whose responses all score the same fill the batch"
        job.note(f"{why}; verl's DAPO trainer fails there", rounds)
    if is_own:
        job.copy(drawn)


def rollout_correction(verl: Verl, job: Draft) -> None:
    """Convert importance weights and rejection by the mismatch of engine and trainer."""
    at, section = "algorithm.rollout_correction", "spec.algorithm.rolloutCorrection"
    weights, modes = verl[f"{at}.rollout_is"], verl[f"{at}.rollout_rs"]
    is_reinforce = verl[f"{at}.bypass_mode"] and _form(verl)[0] == "reinforce"
    veto, cap = f"{at}.rollout_token_veto_threshold", f"{_ACTOR}.tis_imp_ratio_cap"
    if verl[cap] > 0:
        job.set(f"{section}.weights", "token", cap)
        job.set(f"{section}.weightLimit", verl[cap], cap)
    if not weights and not modes and not is_reinforce and not verl.is_given(veto):
        return
    job.set(section, {}, f"{at}.rollout_is")
    if weights:
        job.copy(f"{at}.rollout_is")
        low, high = _bounds(verl[f"{at}.rollout_is_threshold"])
        job.set(f"{section}.weightLimit", high, f"{at}.rollout_is_threshold")
        job.set(f"{section}.weightFloor", low, f"{at}.rollout_is_threshold")
        job.copy(f"{at}.rollout_is_batch_normalize")
    rejections, keys = list[dict[str, Any]](), list[str]()
    if modes:
        limits = f"{at}.rollout_rs_threshold"
        lower, keys = f"{limits}_lower", [f"{at}.rollout_rs", limits]
        rejections = _rejections(modes, verl[limits])
        if isinstance(modes, str) and modes in FORMER_MODES:
            rejections = [_former_rejection(modes, verl[limits], verl[lower])]
            keys += [lower] if verl.is_given(lower) else []
    if verl.is_given(veto):
        rejections = [*rejections, {"mode": "seq_max_k1", "high": _inverse(verl[veto])}]
        keys.append(veto)
    if rejections:
        job.set(f"{section}.rejection", rejections, *keys)


def _inverse(ratio: Any) -> Any:
    """Return the inverse of a ratio; invalid values are returned, and refused later."""
    try:
        return 1.0 / float(ratio)
    except (TypeError, ValueError, ZeroDivisionError):
        return ratio


FORMER_MODES: Final = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""What rejection was until verl 0.6, with bounds of the ratio of trainer to engine."""


def _former_rejection(mode: str, upper: Any, lower: Any) -> dict[str, Any]:
    """Convert one of `FORMER_MODES`, by the ratio of engine to trainer."""
    try:
        least, most = float(upper if lower is None else 1.0 / lower), float(upper)
        return {"mode": FORMER_MODES[mode], "low": 1.0 / most, "high": least}
    except (TypeError, ValueError, ZeroDivisionError):
        return {"mode": FORMER_MODES[mode], "high": upper}


def _rejections(modes: Any, thresholds: Any) -> list[dict[str, Any]]:
    """Return each rejection mode with its bounds; a single threshold applies to all."""
    names = modes if isinstance(modes, list) else str(modes).split(",")
    limits = thresholds if isinstance(thresholds, list) else str(thresholds).split(",")
    limits = limits * len(names) if len(limits) == 1 else limits
    found = []
    for name, limit in zip((str(one).strip() for one in names), limits, strict=False):
        low, high = _bounds(limit)
        has_low = low is not None and name.endswith("k1")
        found.append({"mode": name, **({"low": low} if has_low else {}), "high": high})
    return found


def _bounds(text: Any) -> tuple[float | None, Any]:
    """Parse `2.0` or `0.5_3.0` to numbers, the lower one may be None; else return it unchanged."""
    parts = str(text).strip().split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        return None, text
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (None, numbers[0])


def mini_batches(verl: Verl, job: Draft) -> None:
    """Convert the prompts per optimizer step; all of a step is our default."""
    key = f"{_ACTOR}.ppo_mini_batch_size"
    is_whole = verl[key] >= step_prompts(verl)
    job.set("spec.algorithm.miniBatchPrompts", None if is_whole else verl[key], key)


def same_as_policy(verl: Verl, job: Draft) -> None:
    """Convert settings of the critic that must equal those of the policy here."""
    others = {"fsdp.model_dtype": "fsdp_config.model_dtype"}
    for name in ("shuffle", "loss_agg_mode", "loss_scale_factor", "fsdp.model_dtype"):
        value, other = verl[f"critic.{name}"], verl[f"{_ACTOR}.{others.get(name, name)}"]
        if verl.is_on("critic.enable") and verl.is_given(f"critic.{name}") and value != other:
            job.leave_out("one for both models here, that of the policy", f"critic.{name}")


def layouts(verl: Verl, job: Draft) -> None:
    """Tell of a parallelism of critic or reference that differs from that of the policy."""
    for model, is_used in (
        ("critic", verl.has_critic),
        ("actor_rollout_ref.ref", any(places_of_kl(verl))),
    ):
        for kind in ("tensor", "pipeline", "expert"):
            name = f"megatron.{kind}_model_parallel_size"
            key = f"{model}.{name}"
            if is_used and verl.is_given(key) and verl[key] != verl[f"{_ACTOR}.{name}"]:
                why = "its model has the parallelism of the policy, or that of pods of its own"
                job.leave_out(f"{why} (spec.roles)", key, changes_numbers=False)
            elif is_used:
                job.keep(key)


def critic(verl: Verl, job: Draft) -> None:
    """Convert the value model of PPO, or the process reward model of PRIME."""
    if not verl.is_on("critic.enable"):
        return
    section = "spec.critic"
    if not verl.has_critic:
        job.leave_out("only ppo reads values", "critic.enable", changes_numbers=False)
        return
    path = "critic.model.path"
    is_other = verl.is_given(path) and verl[path] != verl["actor_rollout_ref.model.path"]
    job.set(f"{section}.path", verl[path] if is_other else None, path)
    for name in ("lr", "weight_decay", "betas", "min_lr_ratio", "num_cycles"):
        job.copy(f"critic.optim.{name}")
    if verl.trainer is PRIME:
        return
    job.copy("critic.cliprange_value")
    warmup_key = "trainer.critic_warmup"
    job.set(f"{section}.warmupSteps", max(0, verl[warmup_key] - 1), warmup_key)
    for name, other in (("ppo_epochs", "epochs"), ("ppo_mini_batch_size", "miniBatchPrompts")):
        key = f"critic.{name}"
        is_own = verl.is_given(key) and verl[key] != verl[f"{_ACTOR}.{name}"]
        job.set(f"{section}.{other}", verl[key] if is_own else None, key)
