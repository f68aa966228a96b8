"""GSM8K's answer, handed in as a call: verl's `Gsm8kTool`.

A row says what the answer is, in its ``extra_info``:
``tools_kwargs.calc_gsm8k_reward.create_kwargs.ground_truth``.
"""

from typing import Final

from ppojob_trainer.rewards.gsm8k import gsm8k
from ppojob_trainer.tools.built_in.tool import BuiltIn, Call, parameters

_PENALTY = -0.05


def calc_gsm8k_reward(call: Call) -> tuple[str, float]:
    """Say whether an answer is right; the reward is 0 where it is, and a penalty where it is not.

    In verl too a call knows of no earlier one, so an answer that was right before is no less an
    improvement. The answer is found by our `flexible` method, which departs from verl's.
    """
    answer = str(call.arguments["answer"])
    truth = call.created.get("ground_truth")
    if truth is None:
        raise ValueError("create_kwargs of the row: got no ground_truth")
    form = answer if answer.startswith("#### ") else f"#### {answer}"
    reward = gsm8k(form, truth, method="flexible")["score"]
    return f"Current parsed {answer=} {reward=}", 0.0 if reward > 0.0 else _PENALTY


TOOL: Final = BuiltIn(
    calc_gsm8k_reward,
    "Checks an answer to the problem: 1.0 where it is right, 0.0 where it is not.",
    parameters(answer="The answer, digits only."),
)
