"""Answer tools for GSM8K and Geometry3K: verl's `Gsm8kTool` and `Geo3kTool`.

A row has the answer in its ``extra_info``: ``tools_kwargs.NAME.create_kwargs.ground_truth``. As in
verl, calls share no state, so repeating a right answer also counts as an improvement.
"""

from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.geometry3k import geometry3k
from ppojob_trainer.rewards.gsm8k import gsm8k
from ppojob_trainer.tools.built_in.tool import BuiltIn, Call, parameters

_PENALTY = -0.05
_DOES = "Checks an answer to the problem: 1.0 where it is right, 0.0 where it is not."


def calc_gsm8k_reward(call: Call) -> tuple[str, float]:
    """Return whether an answer is right; the reward is 0 if it is, else a penalty.

    The answer is extracted by our `flexible` method, which departs from verl's.
    """
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


GSM8K: Final = BuiltIn(calc_gsm8k_reward, _DOES, parameters(answer="The answer, digits only."))
GEO3K: Final = BuiltIn(calc_geo3k_reward, _DOES, parameters(answer="The answer, without a box."))
