"""Conversions of optimizers, and of the schedules that verl's trainers have for them."""

import math
from typing import Any, Final

from ppojob_cli.verl.asynchronous import fetched_prompts
from ppojob_cli.verl.draft import Draft, Verl, is_count
from ppojob_cli.verl.recipes import mini_batch_prompts
from ppojob_cli.verl.settings import value_of
from ppojob_cli.verl.trainers import FORKS, FSDP_SFT, PRIME

_ACTOR: Final = "actor_rollout_ref.actor"
_OF_PYTORCH: Final = {
    "momentum": "momentum",
    "nesterov": "muon.nesterov",
    "ns_steps": "muon.nsSteps",
}
_OF_MEGATRON: Final = {
    "momentum": "momentum",
    "nesterov": "muon.nesterov",
    "num_ns_steps": "muon.nsSteps",
    "coefficient_type": "muon.coefficients",
    "scale_mode": "muon.scaleMode",
}
"""Settings of Megatron's Muon by their names behind `muon_`."""


def warmup(verl: Verl, job: Draft) -> None:
    """Convert the warm-up, in training steps of verl, and its initial rate."""
    for model, section in _models(verl):
        at, updates = f"{model}.optim", _updates(verl, model)
        steps, ratio = f"{at}.lr_warmup_steps", f"{at}.lr_warmup_steps_ratio"
        last = verl[f"{at}.lr_decay_steps"]
        if verl[steps] > 0:
            job.set(f"{section}.warmupSteps", verl[steps] * updates, steps)
        elif is_count(last) and verl[ratio]:
            # Megatron's share is one of its schedule, not of the run.
            job.set(f"{section}.warmupSteps", int(verl[ratio] * last) * updates, ratio)
        else:
            job.copy(ratio, f"{section}.warmupRatio")
        if verl[share := f"{at}.init_lr_ratio"]:
            job.set(f"{section}.warmupStartRatio", verl[share], share)
        _as_shares(verl, job, at, f"{section}.warmupStartRatio", ("lr_warmup_init", "lr_start"))


def least_rate(verl: Verl, job: Draft) -> None:
    """Convert the final rate of a schedule of Megatron or VeOmni."""
    for model, section in _models(verl):
        names = ("min_lr", "lr_min")
        _as_shares(verl, job, f"{model}.optim", f"{section}.minLearningRateRatio", names)


def _as_shares(verl: Verl, job: Draft, at: str, path: str, names: tuple[str, ...]) -> None:
    highest = verl[f"{at}.lr"]
    *others, last = [f"{at}.{name}" for name in names if highest and verl[f"{at}.{name}"]] or [""]
    if last:
        job.set(path, round(verl[last] / highest, 9), last)  # 1e-6 of 1e-5 is 0.1
    for key in others:
        job.leave_out(f"{last} says it too", key)


def schedule(verl: Verl, job: Draft) -> None:
    """Convert the schedule after the warm-up, and its end; forks do not read this key."""
    for model, section in () if verl.trainer in FORKS else _models(verl):
        at = f"{model}.optim"
        kind, last, share = (
            f"{at}.{one}" for one in ("lr_scheduler_type", "lr_decay_steps", "lr_decay_ratio")
        )
        if str(verl[kind]).lower() == "wsd" and verl.trainer is FSDP_SFT:
            job.set(f"{section}.schedule", "cosine", kind)
            job.set(f"{section}.stableRatio", 0.9, kind)
        elif str(verl[kind]).lower() == "wsd":
            _stable(verl, job, at, section)
        else:
            job.copy(kind, f"{section}.schedule")
        if str(verl[kind]).lower().startswith("inverse"):
            why = "an inverse root goes on to the least rate and has no end"
            job.leave_out(why, *(key for key in (last, share) if verl.is_given(key)))
        elif is_count(verl[last]):
            job.set(f"{section}.decaySteps", verl[last] * _updates(verl, model), last)
        else:
            job.copy(share, f"{section}.decayRatio")


def _stable(verl: Verl, job: Draft, at: str, section: str) -> None:
    """Convert Megatron's WSD, which decays at the end."""
    kind, form, fall = (
        f"{at}.{one}" for one in ("lr_scheduler_type", "lr_wsd_decay_style", "lr_wsd_decay_steps")
    )
    last = verl[f"{at}.lr_decay_steps"] or verl["trainer.total_training_steps"]
    begin, ratio = verl[f"{at}.lr_warmup_steps"], verl[f"{at}.lr_warmup_steps_ratio"]
    if is_count(last) and begin <= 0:
        begin = int(ratio * last)
    is_within = is_count(last) and is_count(verl[fall]) and verl[fall] <= last - begin
    if verl[form] not in ("linear", "cosine") or not is_within:
        why = "stable steps and a fall, linear or cosine, of a schedule whose steps are given"
        job.leave_out(why, kind)
        return
    job.set(f"{section}.schedule", verl[form], kind, form)
    job.set(f"{section}.stableRatio", round(1 - verl[fall] / (last - begin), 9), fall)


def _updates(verl: Verl, model: str) -> int:
    if verl.trainer is PRIME and model == "critic":
        part = mini_batch_prompts(verl) or verl[f"{_ACTOR}.ppo_mini_batch_size"]
        return int(-(-verl["data.train_batch_size"] // part))
    epochs, part = (
        verl[f"{model}.{name}"] if is_count(verl[f"{model}.{name}"]) else verl[f"{_ACTOR}.{name}"]
        for name in ("ppo_epochs", "ppo_mini_batch_size")
    )
    return int(epochs * max(1, -(-fetched_prompts(verl) // max(1, part))))


def _models(verl: Verl) -> list[tuple[str, str]]:
    critic = [("critic", "spec.critic.optimizer")] if verl.has_critic else []
    return [(_ACTOR, "spec.optimizer"), *critic]


def gradient_clip(verl: Verl, job: Draft) -> None:
    """Convert the gradient clip norm, under its two names."""
    for model, section in _models(verl):
        name = f"{model}.optim.clip_grad"
        if not verl.is_given(name) and verl.is_given(f"{model}.grad_clip"):
            name = f"{model}.grad_clip"
        job.copy(name, f"{section}.gradientClip")
        if name == f"{model}.grad_clip" and verl[name] != 1:
            job.note("verl's main reads optim.clip_grad alone, and clips at 1", name)


def betas(verl: Verl, job: Draft) -> None:
    """Convert AdamW's betas, which may be text because of nested quotes in shells."""
    key, path = f"{_ACTOR}.optim.betas", "spec.optimizer.betas"
    job.set(path, _betas(verl, _ACTOR), key)
    if verl.engine == "megatron" and path in job.fields:
        job.note("verl hands them to no optimizer of Megatron's, which has 0.9 and 0.999", key)


def _betas(verl: Verl, model: str) -> Any:
    given = verl[f"{model}.optim.betas"]
    return value_of(given) if isinstance(given, str) else given


def weights_type(verl: Verl, job: Draft) -> None:
    """Convert the data type of the weights, with possible float32 copies of a fused optimizer."""
    key = f"{_ACTOR}.fsdp_config.model_dtype"
    if verl[f"{_ACTOR}.optim.master_weights"]:
        job.note("in float32, as optim.master_weights keeps them", key)
    else:
        job.copy(key)


def moments_type(verl: Verl, job: Draft) -> None:
    """Convert the data type of both moments, if it is supported."""
    for at, section in _models(verl):
        keys = [f"{at}.optim.{name}" for name in ("exp_avg_dtype", "exp_avg_sq_dtype")]
        types = {str(verl[key]).removeprefix("torch.").lower() for key in keys}
        if types <= {"bf16", "bfloat16"}:
            job.set(f"{section}.momentsDtype", "bfloat16", *keys)
        elif types <= {"fp32", "float32"}:
            job.keep(*keys)
        else:
            job.leave_out("both moments in bf16, or both in fp32", *keys)


def optimizer_kind(verl: Verl, job: Draft) -> None:
    """Convert the optimizer, by the names of verl's trainers, and its momentum."""
    for at, section in _models(verl):
        key, given = f"{at}.optim.optimizer", f"{at}.optim.override_optimizer_config"
        kind, momentum = str(verl[key]).lower(), f"{given}.momentum"
        if kind == "sgd":
            job.set(f"{section}.type", kind, key)
            job.set(f"{section}.momentum", verl[momentum] or 0.0, momentum)
            if verl[nesterov := f"{given}.nesterov"]:
                job.leave_out("Nesterov momentum with type: muon alone", nesterov)
        elif kind == "muon":
            job.set(f"{section}.type", kind, key)
            # PyTorch's class, by its name, would refuse weights that are no matrices.
            is_pytorch = verl.engine != "megatron" and verl[key] == "Muon"
            (_muon_of_pytorch if is_pytorch else _muon_of_megatron)(verl, job, at, section)
        elif kind in {"adamw", "adam", "fusedadam"}:
            decoupled = f"{given}.decoupled_weight_decay"
            # PyTorch's class of this name adds weight decay to the gradient, Megatron's does not.
            is_adam = verl.engine != "megatron" and verl[key] == "Adam"
            is_decoupled = verl[decoupled] if verl.is_given(decoupled) else not is_adam
            job.set(f"{section}.decoupledWeightDecay", is_decoupled, key, decoupled)
        else:
            job.leave_out("adamw, muon and sgd alone", key)


def _muon_of_pytorch(verl: Verl, job: Draft, model: str, section: str) -> None:
    given = f"{model}.optim.override_optimizer_config"
    rate = f"{given}.adjust_lr_fn"
    is_as_adamw = verl[rate] == "match_rms_adamw"
    job.set(f"{section}.muon.scaleMode", "spectral" if is_as_adamw else "shape_scaling", rate)
    for name, field in _OF_PYTORCH.items():
        if verl.is_given(key := f"{given}.{name}"):
            job.copy(key, f"{section}.{field}")


def _muon_of_megatron(verl: Verl, job: Draft, model: str, section: str) -> None:
    at = f"{model}.optim.muon_"
    job.note("Megatron has gate and up in one matrix, here each is one", f"{model}.optim.optimizer")
    for name, field in _OF_MEGATRON.items():
        job.copy(f"{at}{name}", f"{section}.{field}")
    factor, key = verl[f"{at}extra_scale_factor"], f"{at}extra_scale_factor"
    if verl[match := f"{at}match_adamw_update_rms"]:
        first, _ = _betas(verl, model)
        factor, key = round(math.sqrt((1.0 - first) / (1.0 + first)), 9), match
    job.set(f"{section}.muon.extraScaleFactor", factor, key)
    if not verl[split := f"{at}split_qkv"]:
        job.leave_out("q, k and v are matrices of their own", split)
