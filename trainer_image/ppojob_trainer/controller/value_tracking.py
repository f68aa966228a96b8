"""Tracked values of prompts, the baselines of SPO."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from ppojob_trainer.algorithms.prompt_values import Belief, after_visits, first_belief, value
from ppojob_trainer.data.prompt_store import PromptRow


def tracked_values(
    prompts: Sequence[PromptRow], beliefs: Mapping[str, Belief], decay: float
) -> list[Belief]:
    """Return (prompts,) the tracked values; the initial value is that of the data row."""
    first = [first_belief(prompt.known_scores, decay=decay) for prompt in prompts]
    return [
        beliefs.get(prompt.prompt_digest, own) for prompt, own in zip(prompts, first, strict=True)
    ]


def after_step(
    prompts: Sequence[PromptRow],
    beliefs: Mapping[str, Belief],
    visits: Iterable[tuple[str, Sequence[float]]],
    decay: float,
) -> dict[str, Belief]:
    """Return the tracked values of all prompts after a step."""
    known = tracked_values(prompts, beliefs, decay)
    drawn = {prompt.prompt_digest: own for prompt, own in zip(prompts, known, strict=True)}
    return {**beliefs, **after_visits(drawn, visits, decay=decay)}


def metrics(known: Sequence[Belief]) -> dict[str, float]:
    """Return the means of tracked values and of their effective counts, under verl's names."""
    if not known:
        return {}
    return {"spo/p_hats": fmean(map(value, known)), "spo/Neff": fmean(map(sum, known))}
