"""Tells the reader of data which rows the job's rewards can score, before anything starts."""

from collections.abc import Sequence

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.routing import SCORERS, route


def row_checks(
    rewards: Sequence[RewardSpec], *, has_model: bool = False
) -> "RoutedChecks | NamedChecks | None":
    """What ``PromptDataset.open`` and ``check_files`` take as ``rewards``.

    Args:
        rewards: ``spec.rewards``.
        has_model: whether the job has a reward model, which alone scores where ``rewards`` is
            empty.

    Returns:
        None where only functions of the user's own judge rows: any row may be theirs.
    """
    if not rewards:
        return NamedChecks(()) if has_model else RoutedChecks()
    built_in = tuple(
        reward.function
        for reward in rewards
        if reward.source is None and reward.function in SCORERS
    )
    return NamedChecks(built_in) if built_in else None


class RoutedChecks:
    """Tells the reader of data which rows can be scored when rewards are routed.

    Fulfils ``ppojob_trainer.data.scan.RewardChecks``.
    """

    def data_source_problem(self, data_source: str) -> str | None:
        """Say what is allowed, where no scorer knows the data source."""
        if route(data_source) is not None:
            return None
        return "one that docs/rewards.md lists, or functions in spec.rewards"

    def ground_truth_problem(self, data_source: str, ground_truth: Json) -> str | None:
        """Say what is allowed, where the ground truth is not of the scorer's form."""
        name = route(data_source)
        return None if name is None else SCORERS[name].ground_truth_problem(ground_truth)


class NamedChecks:
    """The same when ``spec.rewards`` names built-in scorers for every row.

    Args:
        names: the built-in scorers among the rewards.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._scorers = [SCORERS[name] for name in names]

    def data_source_problem(self, data_source: str) -> str | None:
        """Every data source is scored by all of them."""
        return None

    def ground_truth_problem(self, data_source: str, ground_truth: Json) -> str | None:
        """Say what is allowed, where the ground truth is not of a scorer's form."""
        found = (scorer.ground_truth_problem(ground_truth) for scorer in self._scorers)
        return next((problem for problem in found if problem is not None), None)
