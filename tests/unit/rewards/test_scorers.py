"""Scores by table. What verl or TinyZero gives stands beside where that differs, on purpose."""

import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.rewards.addition import addition
from ppojob_trainer.rewards.answer_tag import last_answer
from ppojob_trainer.rewards.arithmetic import NotArithmetic, evaluate
from ppojob_trainer.rewards.countdown import countdown
from ppojob_trainer.rewards.gsm8k import gsm8k
from ppojob_trainer.rewards.multiply import multiply
from ppojob_trainer.rewards.records import NO_ANSWER
from ppojob_trainer.rewards.routing import SCORERS, route
from ppojob_trainer.rewards.row_checks import NamedChecks, RoutedChecks, row_checks

LONG = "x" * 400

STRICT = [
    ("#### 72", 1.0, "72"),
    ("so\n#### 72\n", 1.0, "72"),
    ("#### 71 no\n#### 72", 1.0, "72"),
    ("#### 72 no\n#### 71", 0.1, "71"),
    ("#### 7,2", 1.0, "72"),
    ("#### -72", 0.1, "-72"),
    ("#### 72.", 0.1, "72."),
    ("#### 72.0", 0.1, "72.0"),
    ("#### 072", 0.1, "072"),
    ("#### $72", 0.0, NO_ANSWER),
    ("####72", 0.0, NO_ANSWER),
    ("#### seventy-two", 0.0, NO_ANSWER),
    ("72", 0.0, NO_ANSWER),
    ("", 0.0, NO_ANSWER),
    ("#### 72" + LONG, 0.0, NO_ANSWER),
    (LONG + "#### 72", 1.0, "72"),
    ("#### 72" + "x" * 293, 1.0, "72"),
    ("#### 72" + "x" * 294, 0.0, NO_ANSWER),
    ("#### \uff17\uff12", 0.0, NO_ANSWER),
]


@pytest.mark.parametrize(("response", "score", "prediction"), STRICT)
def test_gsm8k_strict(response: str, score: float, prediction: str) -> None:
    expected = {"score": score, "acc": float(score == 1.0), "pred": prediction}
    assert gsm8k(response, "72", format_score=0.1) == expected


def test_gsm8k_gives_nothing_for_the_form_alone_unless_asked() -> None:
    assert gsm8k("#### 71", "72")["score"] == 0.0
    assert gsm8k("#### 72", "72", score=2.0)["score"] == 2.0


FLEXIBLE = [
    ("the answer is 72", "72", 1.0),
    ("72 or 71", "72", 0.0),
    ("72 .", "72", 1.0),
    ("it is -72", "-72", 1.0),
    ("none", "72", 0.0),
    # verl gives 0.0.
    ("it is 1,234", "1234", 1.0),
    ("it is 72.", "72", 1.0),
    ("it is \u221272", "-72", 1.0),
    ("72 ,", "72", 1.0),
    # verl gives 1.0.
    ("it is \u221272", "72", 0.0),
]


@pytest.mark.parametrize(("response", "truth", "score"), FLEXIBLE)
def test_gsm8k_flexible(response: str, truth: str, score: float) -> None:
    assert gsm8k(response, truth, method="flexible")["score"] == score


ADDITION = [
    ("9 + 9 = 18\n18 + 8 = 26\n#### 26", 1.0),
    ("####26", 1.0),
    ("#### 25\n#### 26", 1.0),
    ("#### 26\n#### 25", 0.1),
    ("#### 26\n### 25", 1.0),
    ("#### 260", 0.1),
    ("#### 26.5", 0.0),
    ("#### 26,000", 0.0),
    ("#### 26.", 1.0),
    ("#### -26", 0.1),
    ("#### 026", 0.1),
    ("#### \u0662\u0666", 0.0),
    ("26", 0.0),
    ("", 0.0),
]


@pytest.mark.parametrize(("response", "score"), ADDITION)
def test_addition(response: str, score: float) -> None:
    found = addition(response, "26")
    assert (found["score"], found["acc"]) == (score, float(score == 1.0))
    assert (found["pred"] == NO_ANSWER) == (score == 0.0)


TRUTH = {"target": 24, "numbers": [4, 6, 1]}
COUNTDOWN = [
    ("<think>4 * 6</think>\n<answer>4 * 6 * 1</answer>", 1.0),
    ("<answer> (4 * 6) / 1 </answer>", 1.0),
    ("<answer>6 / (1 / 4)</answer>", 1.0),
    ("<answer>-4 * -6 * 1</answer>", 1.0),
    ("<answer>1 + 6 + 4</answer>", 0.1),
    ("<answer>4 * 6</answer>", 0.1),
    ("<answer>4 * 6 * 1 * 1</answer>", 0.1),
    ("<answer>24</answer>", 0.1),
    ("<answer>4 * 6 * 1 = 24</answer>", 0.1),
    ("<answer>4 * 6 / (1 - 1)</answer>", 0.1),
    ("<answer>(4 * 6 * 1</answer>", 0.1),
    ("<answer>4 6 1</answer>", 0.1),
    ("<answer></answer>", 0.1),
    ("<answer>4 * 6 * 01</answer>", 0.1),
    ("<answer>1</answer> <answer>4 * 6 * 1</answer>", 1.0),
    ("<answer>4 * 6 * 1", 0.0),
    ("4 * 6 * 1", 0.0),
    # TinyZero gives 0.0.
    ("<answer>4 * 6 * 1</answer>\n", 1.0),
    ("<answer>4 *\n6 * 1</answer>", 0.1),
    ("<answer>(4 *\n6 * 1)</answer>", 1.0),
    # TinyZero gives 1.0.
    ("<answer>4 * 6 ** 1</answer>", 0.1),
    ("<answer>4 * 6 // 1</answer>", 0.1),
]


@pytest.mark.parametrize(("response", "score"), COUNTDOWN)
def test_countdown(response: str, score: float) -> None:
    found = countdown(response, TRUTH)  # type: ignore[arg-type]
    assert (found["score"], found["acc"]) == (score, float(score == 1.0))


def test_a_decimal_is_not_two_numbers() -> None:
    """To TinyZero it is."""
    response, truth = "<answer>1.5 * 4</answer>", {"target": 6, "numbers": [1, 5, 4]}
    assert countdown(response, truth)["score"] == 0.1  # type: ignore[arg-type]


MULTIPLY = [
    ("<answer>56</answer>", 1.0),
    ("<answer> 56 </answer>", 1.0),
    ("<answer>056</answer>", 1.0),
    ("<answer>57</answer>", 0.1),
    ("<answer>-56</answer>", 0.1),
    ("<answer>1</answer><answer>56</answer>", 1.0),
    ("<answer>5,6</answer>", 0.0),
    ("<answer>7 * 8</answer>", 0.0),
    ("<answer>56.0</answer>", 0.0),
    ("<answer></answer>", 0.0),
    ("56", 0.0),
    # TinyZero gives 1.0.
    ("<answer>5_6</answer>", 0.0),
    ("<answer>+56</answer>", 0.0),
    ("<answer>\uff15\uff16</answer>", 0.0),
    # TinyZero gives 0.0.
    ("<answer>56</answer>\n", 1.0),
]


@pytest.mark.parametrize(("response", "score"), MULTIPLY)
@pytest.mark.parametrize("truth", ["56", 56])
def test_multiply(response: str, score: float, truth: str | int) -> None:
    found = multiply(response, truth)
    assert (found["score"], found["acc"]) == (score, float(score == 1.0))


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "__import__('os').system('id')",
        "(" * 900 + "1" + ")" * 900,
        "-" * 999 + "1",
        "1" * 999,
        "1+" * 499 + "1",
        "9" * 5000,
        "1if 1else 2",
        "0x10",
        "1e5",
        "1_0",
        "True",
        "()",
        "(1, 2)",
        "1 < 2",
        "~1",
        "1 % 1",
        "1\\\n+1",
        "\uff11 + 1",
        "1 / 0",
    ],
)
def test_hostile_arithmetic_ends_at_once(text: str) -> None:
    started = time.process_time()
    with contextlib.suppress(NotArithmetic):
        evaluate(text)
    assert time.process_time() - started < 0.5
    assert countdown(f"<answer>{text}</answer>", TRUTH)["score"] == 0.1  # type: ignore[arg-type]


@pytest.mark.parametrize("response", ["<answer>" * 20_000, "<answer></answer>" * 20_000])
def test_a_response_full_of_tags_is_read_at_once(response: str) -> None:
    started = time.process_time()
    assert last_answer(response) == ("" if response.endswith("</answer>") else None)
    assert time.process_time() - started < 0.5


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "5", "\n", "<answer", " "])))
def test_the_last_whole_block_is_the_answer(pieces: list[str]) -> None:
    response = "".join(pieces)
    found = re.findall(r"<answer>(.*?)</answer>", response, re.DOTALL)
    assert last_answer(response) == (found[-1].strip() if found else None)


integers = st.integers(0, 99)
trees = st.recursive(
    integers.map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({' '.join(t)})"),
    max_leaves=8,
)


@given(trees)
def test_arithmetic_is_pythons(text: str) -> None:
    assert evaluate(text).value == eval(text)


@pytest.mark.parametrize(
    ("data_source", "name"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("ppojob/addition", "addition"),
        ("countdown", "countdown"),
        ("my-countdown-4", "countdown"),
        ("multiply", "multiply"),
        ("arithmetic_3digit", "multiply"),
        ("gsm8k", None),
        ("lighteval/MATH", None),
        ("", None),
    ],
)
def test_routes(data_source: str, name: str | None) -> None:
    assert route(data_source) == name
    told = RoutedChecks().data_source_problem(data_source)
    known = "openai/gsm8k, ppojob/addition, countdown, multiply"
    assert told == (None if name else f"one of {known}, or a function of your own in spec.rewards")


GROUND_TRUTHS = {
    "gsm8k": (["72", "-3", "2.5"], [None, 72, "1,234", "", "72 apples", True]),
    "addition": (["26", "-1"], [None, 26, "2.5", "", "x"]),
    "countdown": (
        [TRUTH],
        [None, "24", {"target": "24", "numbers": [1]}, {"target": 24, "numbers": []}, {}, [24]],
    ),
    "multiply": (["56", 56], [None, 5.6, "5.6", "", True, "9" * 2000]),
}


@pytest.mark.parametrize("name", GROUND_TRUTHS)
def test_ground_truths_are_judged_before_the_run(name: str) -> None:
    good, bad = GROUND_TRUTHS[name]
    data_source = SCORERS[name].data_sources[0]
    routed, named = RoutedChecks(), NamedChecks((name,))
    for checks in (routed, named):
        for truth in good:
            assert checks.ground_truth_problem(data_source, truth) is None  # type: ignore[arg-type]
        for truth in bad:
            assert checks.ground_truth_problem(data_source, truth), truth  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "truth"), [("gsm8k", 72), ("addition", None), ("countdown", "24"), ("multiply", 5.6)]
)
def test_a_ground_truth_of_another_type_is_an_error_and_no_zero(name: str, truth: object) -> None:
    with pytest.raises(TypeError):
        SCORERS[name].score("<answer>1</answer>", truth)


def test_which_rows_are_checked() -> None:
    mine = RewardSpec.model_validate({"function": "f", "source": {"path": "mine.py"}})
    gsm8k_spec = RewardSpec.model_validate({"function": "gsm8k"})
    assert isinstance(row_checks([]), RoutedChecks)
    alone = row_checks([], has_model=True)
    assert alone.ground_truth_problem("any", None) is None
    assert row_checks([mine]) is None
    named = row_checks([mine, gsm8k_spec])
    assert isinstance(named, NamedChecks)
    assert named.data_source_problem("anything") is None
    assert named.ground_truth_problem("anything", 5)
