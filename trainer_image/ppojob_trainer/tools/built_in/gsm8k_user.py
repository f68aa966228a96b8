"""User simulator that knows the answer of a GSM8K problem: verl's `Gsm8kInteraction`.

A row has the answer in its ``extra_info``: ``interaction_kwargs.ground_truth``.
"""

from collections.abc import Mapping
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.gsm8k import ground_truth_problem
from ppojob_trainer.tools.built_in.answer_tools import gsm8k_score
from ppojob_trainer.tools.built_in.tool import BuiltInUser
from ppojob_trainer.tools.wire import Conversation

RIGHT = "Your response is correct!"
WRONG = "Your response is incorrect! You need to reflect on your answer and try again."
_TRUTH = "ground_truth"


def answer(
    conversation: Conversation, arguments: dict[str, Json], _row: str
) -> tuple[bool, str, float]:
    """Return whether the last turn is right: if so, score 1 and the end, else score 0.

    The answer is extracted by our `flexible` method, which departs from verl's.
    """
    turns = [str(one["content"]) for one in conversation.messages if one["role"] == "assistant"]
    is_right = gsm8k_score(turns[-1], arguments[_TRUTH]) == 1.0
    return (True, RIGHT, 1.0) if is_right else (False, WRONG, 0.0)


def problem(arguments: Mapping[str, Json]) -> tuple[str, str] | None:
    """Return the problem of a missing or invalid ground truth."""
    allowed = ground_truth_problem(arguments.get(_TRUTH))
    return None if allowed is None else (_TRUTH, allowed)


USER: Final = BuiltInUser(answer, problem)
