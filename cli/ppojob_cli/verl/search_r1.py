"""Conversion of settings of Search-R1's fork of verl (Jin et al. 2025, arXiv:2503.09516)."""

from ppojob_cli.verl.draft import Draft, Verl, is_count
from ppojob_cli.verl.trainers import OF_SEARCH_R1, SEARCH_R1_FORMAT

_CHARACTERS = 4  # of a token, about, in English


_ROLLOUT = "actor_rollout_ref.rollout"
_MASKS = "actor_rollout_ref.actor.state_masking"


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
