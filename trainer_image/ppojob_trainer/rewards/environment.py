"""The score that the row's environments, or its agent loop, gave it at its end, as its reward."""

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Row


def environment_score(_response: str, _ground_truth: Json, row: Row) -> float:
    """Return ``extra_info.environment_score``; raises LookupError if there is none."""
    score = row.extra_info.get("environment_score")
    if not isinstance(score, int | float):
        why = "no environment of spec.agent.tools has a method `score`, and no agent loop ran"
        raise LookupError(why)
    return score
