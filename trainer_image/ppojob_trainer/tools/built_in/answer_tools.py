"""verl's `Gsm8kTool`, `Geo3kTool` and `Gsm8kInteraction`: tools and a user that check answers.

A row has the answer in its ``extra_info``: ``tools_kwargs.NAME.create_kwargs.ground_truth``, for
the user ``interaction_kwargs.ground_truth``. As in verl, calls share no state, so repeating a right
answer also counts as an improvement. Answers of GSM8K are extracted by our `flexible` method, which
departs from verl's.
"""

from collections.abc import Mapping
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.geometry3k import geometry3k
from ppojob_trainer.rewards.gsm8k import ground_truth_problem, gsm8k
from ppojob_trainer.tools.built_in.tool import BuiltIn, BuiltInUser, Call, parameters
from ppojob_trainer.tools.wire import Conversation

RIGHT = "Your response is correct!"
WRONG = "Your response is incorrect! You need to reflect on your answer and try again."
_TRUTH = "ground_truth"
_PENALTY = -0.05
_DOES = "Checks an answer to the problem: 1.0 where it is right, 0.0 where it is not."


def calc_gsm8k_reward(call: Call) -> tuple[str, float]:
    """Return whether an answer is right; the reward is 0 if it is, else a penalty."""
    answer, truth = _given(call)
    return _result(answer, gsm8k_score(answer, truth))


def calc_geo3k_reward(call: Call) -> tuple[str, float]:
    """Return the same for an answer without further text, compared as by `geometry3k`."""
    answer, truth = _given(call)
    return _result(answer, geometry3k(f"\\boxed{{{answer}}}", truth, format_score=0.0)["score"])


def gsm8k_score(answer: str, truth: Json) -> float:
    """Score an answer, or a text that ends with it, by `gsm8k` as verl's tool and user do."""
    text = answer if answer.startswith("#### ") else f"#### {answer}"
    return gsm8k(text, truth, method="flexible")["score"]


def _given(call: Call) -> tuple[str, str]:
    truth = call.created.get("ground_truth")
    if truth is None:
        raise ValueError("create_kwargs of the row: got no ground_truth")
    return str(call.arguments["answer"]), str(truth)


def _result(answer: str, reward: float) -> tuple[str, float]:
    return f"Current parsed {answer=} {reward=}", 0.0 if reward > 0.0 else _PENALTY


def answer(
    conversation: Conversation, arguments: dict[str, Json], _row: str
) -> tuple[bool, str, float]:
    """Return whether the last turn is right: if so, score 1 and the end, else score 0."""
    turns = [str(one["content"]) for one in conversation.messages if one["role"] == "assistant"]
    is_right = gsm8k_score(turns[-1], arguments[_TRUTH]) == 1.0
    return (True, RIGHT, 1.0) if is_right else (False, WRONG, 0.0)


def problem(arguments: Mapping[str, Json]) -> tuple[str, str] | None:
    """Return the problem of a missing or invalid ground truth."""
    allowed = ground_truth_problem(arguments.get(_TRUTH))
    return None if allowed is None else (_TRUTH, allowed)


GSM8K: Final = BuiltIn(calc_gsm8k_reward, _DOES, parameters(answer="The answer, digits only."))
GEO3K: Final = BuiltIn(calc_geo3k_reward, _DOES, parameters(answer="The answer, without a box."))
USER: Final = BuiltInUser(answer, problem)
