"""Majority vote: the most common answer to a prompt as its ground truth (TTRL).

Zuo et al. 2025, arXiv:2504.16084, section 2.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.addition import addition
from ppojob_trainer.rewards.gsm8k import gsm8k
from ppojob_trainer.rewards.math_dapo import math_dapo
from ppojob_trainer.rewards.math_reward import math_reward
from ppojob_trainer.rewards.math_verify import math_verify
from ppojob_trainer.rewards.records import NO_ANSWER, Verdict, text_problem

READERS: Final[dict[str, Callable[[str, str], Verdict]]] = {
    "addition": addition,
    "gsm8k": gsm8k,
    "math_dapo": math_dapo,
    "math_reward": math_reward,
    "math_verify": math_verify,
}
"""Scorers whose ground truths have the form of the answers that they extract."""
_ANY_TRUTH: Final = "0"


def majority_vote(
    responses: list[str],
    ground_truth: str | None,
    *,
    scorer: Literal["addition", "gsm8k", "math_dapo", "math_reward", "math_verify"] = "math_verify",
) -> list[dict[str, float | str]]:
    """Score 1 if a response has the majority answer, as `scorer` extracts and compares answers.

    Votes are counted by the text of answers; the first answer wins a tie. Responses without an
    answer, or with an empty one, have no vote, and score 0. ``majority_ratio`` is the share of all
    responses with the majority answer. With a ground truth, ``acc`` is 1 for a right response, and
    ``label_accuracy`` is 1 if the majority answer is right. The numbers are those of TTRL's code,
    which fails if no response has an answer.
    """
    compared = READERS[scorer]
    truth = _ANY_TRUTH if ground_truth is None else ground_truth
    verdicts = [compared(response, truth) for response in responses]
    votes = Counter(one["pred"] for one in verdicts if one["pred"].strip() not in ("", NO_ANSWER))
    label, count = votes.most_common(1)[0] if votes else (None, 0)
    is_right = next((one["acc"] for one in verdicts if one["pred"] == label), 0.0)
    found = list[dict[str, float | str]]()
    for response, one in zip(responses, verdicts, strict=True):
        if label is None or one["pred"] == label:
            score = float(label is not None)
        else:
            score = compared(response, label)["acc"]
        values: dict[str, float | str] = {"score": score, "pred": one["pred"]}
        values["majority_ratio"] = count / len(responses)
        if ground_truth is not None:
            values |= {"acc": one["acc"], "label_accuracy": is_right}
        found.append(values)
    return found


def truth_problem(ground_truth: Json) -> str | None:
    """Return what is allowed, if an optional ground truth does not have this form."""
    return None if ground_truth is None else text_problem(ground_truth)
