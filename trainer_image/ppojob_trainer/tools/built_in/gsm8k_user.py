"""User simulator that knows the answer of a GSM8K problem: verl's `Gsm8kInteraction`.

A row has the answer in its ``extra_info``: ``interaction_kwargs.ground_truth``.
"""

from collections.abc import Mapping
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.gsm8k import ground_truth_problem, gsm8k
from ppojob_trainer.tools.built_in.tool import BuiltInUser
from ppojob_trainer.tools.wire import Conversation

RIGHT = "Your response is correct!"
WRONG = "Your response is incorrect! You need to reflect on your answer and try again."
_TRUTH = "ground_truth"


def answer(conversation: Conversation, told: dict[str, Json], _row: str) -> tuple[bool, str, float]:
    """Say whether the last turn is right; 1 and the end where it is, else 0.

    The answer is found by our `flexible` method, which departs from verl's.
    """
    spoken = [str(one["content"]) for one in conversation.messages if one["role"] == "assistant"]
    last = spoken[-1]
    form = last if last.startswith("#### ") else f"#### {last}"
    is_right = gsm8k(form, told[_TRUTH], method="flexible")["score"] == 1.0
    return (True, RIGHT, 1.0) if is_right else (False, WRONG, 0.0)


def problem(told: Mapping[str, Json]) -> tuple[str, str] | None:
    """It cannot judge without the truth."""
    allowed = ground_truth_problem(told.get(_TRUTH))
    return None if allowed is None else (_TRUTH, allowed)


USER: Final = BuiltInUser(answer, problem)
