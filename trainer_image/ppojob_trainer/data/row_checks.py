"""What rewards and tokenizer say of a row that can be read."""

from typing import Protocol

from ppojob_api.problem import ABSENT, shown
from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.columns import GROUND_TRUTH, Cells, Prompt
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.json_value import Json


class RewardChecks(Protocol):
    """What the reward side knows about rows: which it can score."""

    def data_source_problem(self, data_source: str) -> str | None:
        """Say what is allowed, where no scorer knows the data source."""
        ...

    def ground_truth_problem(self, data_source: str, ground_truth: Json) -> str | None:
        """Say what is allowed, where the ground truth is not of the scorer's form."""
        ...


def unrewarded(cells: Cells, rewards: RewardChecks | None, spec: DataSpec) -> DataProblem | None:
    """Say why nothing can score a row; None where something can, or nobody knows."""
    if rewards is None:
        return None
    allowed = rewards.data_source_problem(cells.data_source)
    if allowed is not None:
        got, why = repr(cells.data_source), "no scorer knows it"
        return DataProblem(spec.data_source_key, got, why, allowed)
    allowed = rewards.ground_truth_problem(cells.data_source, cells.ground_truth)
    if allowed is None:
        return None
    why = f"the reward of {cells.data_source} needs it"
    truth = cells.ground_truth
    got = ABSENT if truth is None else shown(truth)
    return DataProblem(spec.answer_key or GROUND_TRUTH, got, why, allowed)


def truthless(cells: Cells, spec: DataSpec) -> DataProblem | None:
    """Tell of a row without ground truth, which a function of the user's may not need."""
    if cells.ground_truth is not None:
        return None
    return DataProblem(
        spec.answer_key or GROUND_TRUTH,
        ABSENT,
        "reward functions are given None",
        "fine where they need no ground truth",
    )


def with_control_token(
    prompt: Prompt, control: tuple[str, ...], spec: DataSpec
) -> DataProblem | None:
    """Tell of a message that holds a control token; prompts that are text bring their own."""
    if isinstance(prompt, str):
        return None
    for message in prompt:
        content = str(message["content"])
        found = next((token for token in control if token in content), None)
        if found is not None:
            return DataProblem(
                spec.prompt_key,
                repr(found),
                "a control token within a message is tokenised as one",
                "fine where it is meant",
            )
    return None
