"""Checks whether the job's rewards can score a row, for the data checks before the start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.json_value import Json, plain_text
from ppojob_trainer.rewards.routing import SCORERS, route

_PAGE: Final = "docs/rewards.md"


@dataclass(frozen=True, slots=True)
class RowChecks:
    """Implements ``data.row_checks.RewardChecks``."""

    # Built-in scorers that score every row; None if the data source selects one.
    names: tuple[str, ...] | None = None
    needs_answer: bool = False  # whether the probability of the ground truth is a reward

    def data_source_problem(self, data_source: str) -> str | None:
        """Return what is allowed, if no scorer supports the data source."""
        if self.names is not None or route(data_source) is not None:
            return None
        # `gsm8k` or `my/gsm8k` is meant to be `openai/gsm8k`, or names the scorer.
        word = data_source.rpartition("/")[2].lower()
        for name, scorer in SCORERS.items():
            near = [one for one in scorer.data_sources if one.rpartition("/")[2].lower() == word]
            if near or name == word:
                other = f"{near[0]}, or another" if near else "one"
                return f"{other} that {_PAGE} lists, or spec.rewards: [{{function: {name}}}]"
        return f"one that {_PAGE} lists, or functions in spec.rewards"

    def ground_truth_problem(self, data_source: str, ground_truth: Json) -> str | None:
        """Return what is allowed, if the ground truth does not have a scorer's form."""
        is_answer = isinstance(ground_truth, str | int | float) and plain_text(ground_truth).strip()
        if self.needs_answer and not is_answer:
            return "the answer whose probability is the reward, as text or a number"
        routed = route(data_source)
        names = self.names if self.names is not None else (routed,) if routed else ()
        found = (SCORERS[name].ground_truth_problem(ground_truth) for name in names)
        return next((problem for problem in found if problem is not None), None)


def row_checks(rewards: Sequence[RewardSpec], *, has_model: bool = False) -> RowChecks | None:
    """Return the checks for rewards; None if only custom functions score, which may take any row.

    If ``spec.rewards`` is empty and the job has a reward model, only the model scores.
    """
    if not rewards:
        return RowChecks(()) if has_model else RowChecks()
    built_in = tuple(
        reward.function
        for reward in rewards
        if reward.source is None and reward.function in SCORERS
    )
    return RowChecks(built_in) if built_in else None


def checks_of(spec: PPOJobSpec) -> RowChecks | None:
    """Return the checks of a job; no scorer in a generation-only job, or one with a teacher."""
    if spec.steps.generate_only:
        return RowChecks(())
    is_model = spec.reward_model is not None
    found = row_checks(spec.rewards, has_model=is_model) if spec.is_scored else RowChecks(())
    if spec.algorithm.answer_reward is None:
        return found
    return replace(found or RowChecks(()), needs_answer=True)
