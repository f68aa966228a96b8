"""Conversion of the recipe PRIME: its process reward model and its filter of prompts."""

from typing import Final

from ppojob_cli.verl.draft import Draft, Verl
from ppojob_cli.verl.trainers import PRIME

_MODEL: Final = "reward_model.model"
_SECTION: Final = "spec.algorithm.prime"
_SIZE: Final = "reward_model.mini_batch_size"
_PROMPTS: Final = "data.train_batch_size"
_ROLLOUTS: Final = "actor_rollout_ref.rollout.n"


def mini_batch_prompts(verl: Verl) -> int | None:
    """Convert the mini-batch size from responses to prompts.

    None if it is not a whole number, or does not divide a step.
    """
    size, samples, prompts = verl[_SIZE], verl[_ROLLOUTS], verl[_PROMPTS]
    if size >= samples * prompts:
        return int(prompts)
    fits = size > 0 and size % samples == 0 and prompts % (size // samples) == 0
    return int(size // samples) if fits else None


def process_rewards(verl: Verl, job: Draft) -> None:
    """Convert token rewards, and the training of their model."""
    if verl.trainer is not PRIME:
        return
    if not verl.is_on("critic.enable"):
        job.leave_out("without the model rloo, whose advantages would be whitened", "critic.enable")
    job.copy(f"{_MODEL}.beta_train")
    job.copy("algorithm.reward_gt_coef")
    if verl["algorithm.reward_dpo_coef"] > 0:
        job.copy("algorithm.reward_dpo_coef")
    else:
        job.leave_out("rloo is without rewards of tokens", "algorithm.reward_dpo_coef")
    norm = "reward_model.prime_norm"
    job.set(f"{_SECTION}.normalize", verl[norm] == "batch_norm", norm)
    _order(verl, job)
    for key, only, why in (
        (f"{_MODEL}.loss_type", "ce", "cross entropy alone, as the recipe's configuration says"),
        ("reward_model.prime_granularity", "token", "rewards of tokens; the recipe fails with it"),
        ("reward_model.lambda", 0, "a token has its own reward alone"),
    ):
        if verl[key] == only:
            job.keep(key)
        else:
            job.leave_out(why, key)
    reference = f"{_MODEL}.ref_path"
    is_other = verl.is_given(reference) and verl[reference] != verl["critic.model.path"]
    job.set("spec.critic.referencePath", verl[reference] if is_other else None, reference)
    size = mini_batch_prompts(verl)
    if size is None:
        job.leave_out("responses there, whole prompts here, and equal parts of a step", _SIZE)
    else:
        job.set("spec.critic.miniBatchPrompts", size, _SIZE)
    if verl[epochs := "actor_rollout_ref.actor.ppo_epochs"] != 1:
        job.set("spec.critic.epochs", 1, epochs)


def _order(verl: Verl, job: Draft) -> None:
    update = f"{_MODEL}.update"
    if verl[update] not in ("before", "after"):
        job.leave_out("the model learns before or after it rewards", update)
        return
    job.copy(update)
    if verl[update] == "after" and mini_batch_prompts(verl) != verl[_PROMPTS]:
        job.note("all rewards are of before the step; later mini-batches know more there", update)


def accuracy_filter(verl: Verl, job: Draft) -> None:
    """Convert the filter by accuracy: one round with more prompts than a step trains on."""
    if verl.trainer is not PRIME:
        return
    is_on, whole, factor = (
        f"data.{name}" for name in ("filter_accuracy", "filter_truncate", "oversample_factor")
    )
    section, samples = "spec.algorithm.dynamicSampling", verl[_ROLLOUTS]
    if not verl[is_on]:
        why = "prompts are drawn beyond those of a step where they are filtered by accuracy"
        if verl[whole] or verl[factor] != 1:
            job.leave_out(why, is_on, whole, factor)
        return
    job.set(f"{section}.maxRounds", 1, is_on)
    job.set(f"{section}.promptsPerRound", int(verl[_PROMPTS] * verl[factor]), factor)
    job.set(f"{section}.wholeResponses", verl[whole], whole)
    if verl[whole]:
        job.note("a token less than the limit counts as cut off there", whole)
    for side, name, sign in (("lower", "Above", -1), ("upper", "Below", 1)):
        key = f"data.accuracy_{side}_bound"
        bound = verl[key]
        # A bound is no part of what lies between, and there it is.
        if abs(bound * samples - round(bound * samples)) < 1e-6:
            bound = (round(bound * samples) + sign * 0.5) / samples
            job.set(f"{section}.mean{name}", bound, key)
            job.note("of scores of 0 and 1, a mean of exactly that passes too", key)
        else:
            job.copy(key)
        if not 0.0 < bound < 1.0:
            job.note("prompts whose responses all score the same never pass here", key)
