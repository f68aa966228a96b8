"""Search-R1's own settings, which its fork of verl has (Jin et al. 2025, arXiv:2503.09516)."""

from ppojob_cli.verl.draft import Draft, Verl
from ppojob_cli.verl.trainers import SEARCH_R1, SEARCH_R1_FORMAT

_CHARACTERS = 4
"""Of a token, about, in English."""


def searches(verl: Verl, job: Draft) -> None:
    """Turns with a search: its limits count the turns with a call, and tokens of each part."""
    if verl.trainer not in (SEARCH_R1, SEARCH_R1_FORMAT) or not verl["do_search"]:
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
    whole = min((turns + 1) * verl[each] + turns * longest, verl["data.max_prompt_length"])
    job.set("spec.data.maxResponseTokens", whole, each, "data.max_obs_length", "max_turns")
    job.set("spec.data.maxPromptTokens", verl[start], start)
    job.set("spec.data.overlongPrompts", "truncate_left", start)
    if not verl["actor_rollout_ref.actor.state_masking"]:
        why = "what a search found is never trained on"
        job.leave_out(why, "actor_rollout_ref.actor.state_masking")


def format_scores(verl: Verl, job: Draft) -> None:
    """Scores of the form of a response, which `main_ppo_format` gives."""
    if verl.trainer != SEARCH_R1_FORMAT:
        return
    names = ("structure_format_score", "final_format_score", "retrieval_score")
    given = {name: verl[f"reward_model.{name}"] for name in names}
    reward = {"function": "search_r1_format", "arguments": given}
    job.set("spec.rewards", [reward], *(f"reward_model.{name}" for name in names))
