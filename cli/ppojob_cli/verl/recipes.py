"""Conversion of recipes of verl: SPO, PRIME, and Search-R1's fork (arXiv:2503.09516)."""

from typing import Final

from ppojob_cli.verl.draft import Draft, Verl, is_count
from ppojob_cli.verl.trainers import OF_SEARCH_R1, PRIME, SEARCH_R1_FORMAT

_SPO: Final = "trainer.spo"
_PRM: Final = "reward_model.model"
_PRIME: Final = "spec.algorithm.prime"
_PRM_SIZE: Final = "reward_model.mini_batch_size"
_PROMPTS: Final = "data.train_batch_size"
_CHARACTERS = 4  # of a token, about, in English
_ROLLOUT = "actor_rollout_ref.rollout"
_MASKS = "actor_rollout_ref.actor.state_masking"


def tracks_values(verl: Verl) -> bool:
    """Return whether SPO's values of prompts replace an estimator."""
    return bool(verl[f"{_SPO}.enable"])


def tracked_values(verl: Verl, job: Draft) -> None:
    """Convert the estimator, its decay and initial value, and note differences."""
    if not tracks_values(verl):
        return
    job.set("spec.algorithm.type", "spo", f"{_SPO}.enable")
    kind, decay = f"{_SPO}.rho.type", f"{_SPO}.rho.value"
    if verl[kind] == "constant":
        job.keep(kind)
        job.copy(decay)
    else:
        why = "what was known of a prompt fades by a constant at each visit"
        job.leave_out(why, kind)
        job.note(f"{why} here, by the KL since the last one there", f"{_SPO}.enable")
    drawn, values = f"{_SPO}.offline_N", f"{_SPO}.offline_values"
    if verl[drawn] == 0:
        job.keep(drawn)
        why = "with offline_N=0 all prompts are known alike at first, as here"
        job.leave_out(why, values, changes_numbers=False)
    else:
        job.leave_out(
            "a column of the rows has these scores here: write spec.data.scoresKey", values
        )
    if verl["algorithm.use_kl_in_reward"]:
        why = "advantages there are without that KL; without spec.algorithm.kl they are here"
        job.note(why, "algorithm.use_kl_in_reward")
    _prompts(verl, job)


def _prompts(verl: Verl, job: Draft) -> None:
    """Convert the prompts per step: SPO chooses among more, so an epoch has fewer steps."""
    fetched, kept = "data.gen_batch_size", "data.train_batch_size"
    if not verl.is_given(fetched) or verl[fetched] == verl[kept]:
        return
    job.set("spec.data.sampler.function", "uncertain", fetched)
    job.note("chosen by the same weights, of all rows and not of so many that come next", fetched)
    if not verl.is_given("trainer.total_training_steps"):
        why = (
            f"a step there reads {verl[fetched]} prompts and trains on {verl[kept]}, so a pass "
            "there has fewer steps than here; write spec.steps.total"
        )
        job.note(why, "trainer.total_epochs")


def mini_batch_prompts(verl: Verl) -> int | None:
    """Convert the mini-batch size from responses to prompts.

    None if it is not a whole number, or does not divide a step.
    """
    size, samples, prompts = verl[_PRM_SIZE], verl[f"{_ROLLOUT}.n"], verl[_PROMPTS]
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
    job.copy(f"{_PRM}.beta_train")
    job.copy("algorithm.reward_gt_coef")
    if verl["algorithm.reward_dpo_coef"] > 0:
        job.copy("algorithm.reward_dpo_coef")
    else:
        job.leave_out("rloo is without rewards of tokens", "algorithm.reward_dpo_coef")
    norm = "reward_model.prime_norm"
    job.set(f"{_PRIME}.normalize", verl[norm] == "batch_norm", norm)
    _order(verl, job)
    for key, only, why in (
        (
            f"{_PRM}.loss_type",
            "ce",
            "cross entropy alone, as the recipe's configuration says",
        ),
        ("reward_model.prime_granularity", "token", "rewards of tokens; the recipe fails with it"),
        ("reward_model.lambda", 0, "a token has its own reward alone"),
    ):
        if verl[key] == only:
            job.keep(key)
        else:
            job.leave_out(why, key)
    reference = f"{_PRM}.ref_path"
    is_other = verl.is_given(reference) and verl[reference] != verl["critic.model.path"]
    job.set("spec.critic.referencePath", verl[reference] if is_other else None, reference)
    size = mini_batch_prompts(verl)
    if size is None:
        job.leave_out("responses there, whole prompts here, and equal parts of a step", _PRM_SIZE)
    else:
        job.set("spec.critic.miniBatchPrompts", size, _PRM_SIZE)
    if verl[epochs := "actor_rollout_ref.actor.ppo_epochs"] != 1:
        job.set("spec.critic.epochs", 1, epochs)


def _order(verl: Verl, job: Draft) -> None:
    update = f"{_PRM}.update"
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
    section, samples = "spec.algorithm.dynamicSampling", verl[f"{_ROLLOUT}.n"]
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


def samples(verl: Verl, job: Draft) -> None:
    """Convert responses per prompt, and the mini-batch size, which counts responses."""
    group, mini = f"{_ROLLOUT}.n_agent", "actor_rollout_ref.actor.ppo_mini_batch_size"
    each, prompts = verl[group], verl["data.train_batch_size"]
    if verl.trainer not in OF_SEARCH_R1 or each == 1:
        return
    path = "spec.algorithm.samplesPerPrompt"
    job.set(path, each * verl[f"{_ROLLOUT}.n"], group, f"{_ROLLOUT}.n")
    if all(map(is_count, (each, prompts, verl[mini]))):
        wanted = min(prompts, verl[mini] / each)
        divisors = (one for one in range(1, prompts + 1) if prompts % one == 0)
        nearest = min(divisors, key=lambda one: abs(one - wanted))
        path = "spec.algorithm.miniBatchPrompts"
        job.set(path, None if nearest == prompts else nearest, mini)
        if nearest != wanted:
            job.note(f"responses there, of {wanted:g} prompts; {nearest} prompts here", mini)
    if not verl["do_search"]:
        job.note("without a search each response is a group of its own there", group)


def searches(verl: Verl, job: Draft) -> None:
    """Convert searches: limits of turns with a call, and of tokens of each part."""
    if verl.trainer not in OF_SEARCH_R1 or not verl["do_search"]:
        return
    turns, longest = verl["max_turns"], verl["data.max_obs_length"]
    config = {"url": verl["retriever.url"], "topk": verl["retriever.topk"]}
    tool = {"name": "search", "config": config}
    job.set("spec.agent.tools", [tool], "do_search", "retriever.url", "retriever.topk")
    job.set("spec.agent.format", "search_r1", "do_search")
    # A last turn in which no search is made follows them.
    job.set("spec.agent.maxAssistantTurns", turns + 1, "max_turns")
    characters = "spec.agent.maxToolResponseCharacters"
    job.set(characters, _CHARACTERS * longest, "data.max_obs_length")
    job.note("in tokens there, characters here: four for each", "data.max_obs_length")
    job.set("spec.agent.toolResponseTruncateSide", "right", "data.max_obs_length")
    each, start = "data.max_response_length", "data.max_start_length"
    job.set("spec.agent.turnTokens", verl[each], each)
    limits = each, "data.max_obs_length", "max_turns", "data.max_prompt_length"
    whole = min((turns + 1) * verl[each] + turns * longest, verl[limits[-1]])
    job.set("spec.data.maxResponseTokens", whole, *limits)
    job.set("spec.agent.cutTurns", "go_on", each)
    job.set("spec.data.maxPromptTokens", verl[start], start)
    job.set("spec.data.overlongPrompts", "truncate_left", start)
    # Its rows of a validation lose the word that they are greedy.
    for name, key in (("temperature", f"{_ROLLOUT}.temperature"), ("topP", f"{_ROLLOUT}.top_p")):
        job.copy(key, f"spec.rollout.validation.{name}")
    if verl["algorithm.adv_estimator"] == "gae":
        why = "what a search found counts for the critic and its advantages there, and never here"
        job.note(why, "algorithm.adv_estimator")
    if not verl[_MASKS]:
        job.leave_out("what a search found is never trained on", _MASKS)
        if not verl.is_given(_MASKS):
            job.note("what a search found is trained on there, without state_masking", "max_turns")


def format_scores(verl: Verl, job: Draft) -> None:
    """Convert the format scores of `main_ppo_format`."""
    if verl.trainer != SEARCH_R1_FORMAT:
        return
    names = ("structure_format_score", "final_format_score", "retrieval_score")
    given = {name: verl[f"reward_model.{name}"] for name in names}
    reward = {"function": "search_r1_format", "arguments": given}
    keys = [f"reward_model.{name}" for name in names]
    job.set("spec.rewards", [reward], *keys)
    job.note("not in validations there; here acc is the number without it", *keys)
