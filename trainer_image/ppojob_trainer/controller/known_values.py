"""What prompts are known to score, where an estimator compares responses with it (SPO)."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from ppojob_trainer.algorithms.prompt_values import Belief, after_visits, first_belief, value
from ppojob_trainer.data.prompt_store import PromptRow


def known_of(
    prompts: Sequence[PromptRow], beliefs: Mapping[str, Belief], decay: float
) -> list[Belief]:
    """(prompts,) what each is known to score; by what rows bring where it was never drawn."""
    first = [first_belief(prompt.known_scores, decay=decay) for prompt in prompts]
    return [beliefs.get(prompt.asks, own) for prompt, own in zip(prompts, first, strict=True)]


def after_step(
    prompts: Sequence[PromptRow],
    beliefs: Mapping[str, Belief],
    visits: Iterable[tuple[str, Sequence[float]]],
    decay: float,
) -> dict[str, Belief]:
    """What all prompts are known to score behind a step that has drawn some."""
    known = known_of(prompts, beliefs, decay)
    drawn = {prompt.asks: own for prompt, own in zip(prompts, known, strict=True)}
    return {**beliefs, **after_visits(drawn, visits, decay=decay)}


def metrics(known: Sequence[Belief]) -> dict[str, float]:
    """What prompts were known to score, and by how many responses; the names are verl's."""
    if not known:
        return {}
    return {"spo/p_hats": fmean(map(value, known)), "spo/Neff": fmean(map(sum, known))}
