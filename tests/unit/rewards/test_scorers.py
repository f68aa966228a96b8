"""Scores by table. ``theirs`` is what verl or TinyZero gives where that differs, on purpose."""

import contextlib
import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.rewards.addition import addition
from ppojob_trainer.rewards.countdown import NotArithmetic, countdown, evaluate
from ppojob_trainer.rewards.geometry3k import in_form
from ppojob_trainer.rewards.gsm8k import gsm8k
from ppojob_trainer.rewards.multiply import multiply
from ppojob_trainer.rewards.records import NO_ANSWER, last_answer
from ppojob_trainer.rewards.routing import SCORERS, route
from ppojob_trainer.rewards.row_checks import RowChecks, row_checks

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


FLEXIBLE = [
    ("the answer is 72", "72", 1.0, 1.0),
    ("72 or 71", "72", 0.0, 0.0),
    ("72 .", "72", 1.0, 1.0),
    ("it is -72", "-72", 1.0, 1.0),
    ("none", "72", 0.0, 0.0),
    ("it is 1,234", "1234", 1.0, 0.0),
    ("it is 72.", "72", 1.0, 0.0),
    ("it is \u221272", "-72", 1.0, 0.0),
    ("it is \u221272", "72", 0.0, 1.0),
    ("72 ,", "72", 1.0, 0.0),
]


@pytest.mark.parametrize(("response", "truth", "ours", "theirs"), FLEXIBLE)
def test_gsm8k_flexible(response: str, truth: str, ours: float, theirs: float) -> None:
    assert gsm8k(response, truth, method="flexible")["score"] == ours
    assert literal_flexible(response, truth) == theirs


def literal_flexible(response: str, truth: str) -> float:
    """verl's rule, letter by letter: the last run of digits, commas and points that is not "."."""
    runs: list[str] = []
    run = ""
    for position, letter in enumerate(response + " "):
        if letter in "0123456789.,":
            run = (run or ("-" if position and response[position - 1] == "-" else "")) + letter
        elif run:
            runs.append(run)
            run = ""
    runs = [found for found in runs if found != "."]
    return float(bool(runs) and runs[-1] == truth)


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
    ("<think>4 * 6</think>\n<answer>4 * 6 * 1</answer>", 1.0, 1.0),
    ("<answer> (4 * 6) / 1 </answer>", 1.0, 1.0),
    ("<answer>6 / (1 / 4)</answer>", 1.0, 1.0),
    ("<answer>-4 * -6 * 1</answer>", 1.0, 1.0),
    ("<answer>1 + 6 + 4</answer>", 0.1, 0.1),
    ("<answer>4 * 6</answer>", 0.1, 0.1),
    ("<answer>4 * 6 * 1 * 1</answer>", 0.1, 0.1),
    ("<answer>24</answer>", 0.1, 0.1),
    ("<answer>4 * 6 * 1 = 24</answer>", 0.1, 0.1),
    ("<answer>4 * 6 / (1 - 1)</answer>", 0.1, 0.1),
    ("<answer>(4 * 6 * 1</answer>", 0.1, 0.1),
    ("<answer>4 6 1</answer>", 0.1, 0.1),
    ("<answer></answer>", 0.1, 0.1),
    ("<answer>4 * 6 * 01</answer>", 0.1, 0.1),
    ("<answer>1</answer> <answer>4 * 6 * 1</answer>", 1.0, 1.0),
    ("<answer>4 * 6 * 1", 0.0, 0.0),
    ("4 * 6 * 1", 0.0, 0.0),
    ("<answer>4 * 6 * 1</answer>\n", 1.0, 0.0),
    ("<answer>4 *\n6 * 1</answer>", 0.1, 0.0),
    ("<answer>(4 *\n6 * 1)</answer>", 1.0, 0.0),
    ("<answer>4 * 6 ** 1</answer>", 0.1, 1.0),
    ("<answer>4 * 6 // 1</answer>", 0.1, 1.0),
]


@pytest.mark.parametrize(("response", "ours", "theirs"), COUNTDOWN)
def test_countdown(response: str, ours: float, theirs: float) -> None:
    found = countdown(response, TRUTH)  # type: ignore[arg-type]
    assert (found["score"], found["acc"]) == (ours, float(ours == 1.0))
    assert literal_countdown(response, 24, [4, 6, 1]) == theirs


@pytest.mark.parametrize(
    ("truth", "theirs"),
    [
        ({"target": 24.0, "numbers": [4, 6, 1]}, 1.0),
        ({"target": 24, "numbers": [4.0, 6.0, 1.0]}, 1.0),
        ({"target": "24", "numbers": [4, 6, 1]}, 0.1),
        ({"target": "24", "numbers": ["4", "6", "1"]}, 0.1),
    ],
)
def test_an_integer_may_be_written_as_a_decimal_or_as_text(truth, theirs: float) -> None:
    response = "<answer>4 * 6 * 1</answer>"
    assert countdown(response, truth)["score"] == 1.0
    assert countdown("<answer>4 + 6 + 1</answer>", truth)["score"] == 0.1
    assert literal_countdown(response, **truth) == theirs


def test_a_decimal_is_not_two_numbers() -> None:
    response, truth = "<answer>1.5 * 4</answer>", {"target": 6, "numbers": [1, 5, 4]}
    assert countdown(response, truth)["score"] == 0.1  # type: ignore[arg-type]
    assert literal_countdown(response, 6, [1, 5, 4]) == 1.0


def literal_countdown(response: str, target: int, numbers: list[int]) -> float:
    """TinyZero's rule on the last line: digits are numbers, anything Python can compute counts."""
    line = response.split("\n")[-1]
    if "<answer>" not in line or "</answer>" not in line.partition("<answer>")[2]:
        return 0.0
    equation = line.rpartition("<answer>")[2].partition("</answer>")[0].strip()
    digits = "".join(letter if letter.isdigit() else " " for letter in equation)
    is_plain = bool(equation) and all(letter in "0123456789+-*/(). " for letter in equation)
    if sorted(map(int, digits.split())) != sorted(numbers) or not is_plain:
        return 0.1  # also where numbers are text, which no number equals
    try:
        return 1.0 if abs(eval(equation) - target) < 1e-5 else 0.1
    except (SyntaxError, TypeError, ZeroDivisionError):
        return 0.1


MULTIPLY = [
    ("<answer>56</answer>", 1.0, 1.0),
    ("<answer> 56 </answer>", 1.0, 1.0),
    ("<answer>056</answer>", 1.0, 1.0),
    ("<answer>57</answer>", 0.1, 0.1),
    ("<answer>-56</answer>", 0.1, 0.1),
    ("<answer>1</answer><answer>56</answer>", 1.0, 1.0),
    ("<answer>5,6</answer>", 0.0, 0.0),
    ("<answer>7 * 8</answer>", 0.0, 0.0),
    ("<answer>56.0</answer>", 0.0, 0.0),
    ("<answer></answer>", 0.0, 0.0),
    ("56", 0.0, 0.0),
    ("<answer>5_6</answer>", 0.0, 1.0),
    ("<answer>+56</answer>", 0.0, 1.0),
    ("<answer>\uff15\uff16</answer>", 0.0, 1.0),
    ("<answer>56</answer>\n", 1.0, 1.0),
    ("<answer>\n56</answer>", 1.0, 0.0),
    ("<answer>5\n6</answer>", 0.0, 0.0),
    ("<answer>" + "0" * 999 + "56</answer>", 1.0, 1.0),
    ("<answer>" + "0" * 4298 + "56</answer>", 1.0, 1.0),
    ("<answer>" + "0" * 4299 + "56</answer>", 0.0, 0.0),
]


@pytest.mark.parametrize(("response", "ours", "theirs"), MULTIPLY)
@pytest.mark.parametrize("truth", ["56", 56])
def test_multiply(response: str, ours: float, theirs: float, truth: str | int) -> None:
    found = multiply(response, truth)
    assert (found["score"], found["acc"]) == (ours, float(ours == 1.0))
    assert literal_multiply(response, 56) == theirs


def literal_multiply(response: str, truth: int) -> float:
    """TinyZero's rule on the last block within a line: whatever Python's int() takes."""
    blocks = []
    for line in response.split("\n"):
        blocks += [part.partition("</answer>") for part in line.split("<answer>")[1:]]
    answers = [text for text, closing, _ in blocks if closing]
    try:
        answer = int(answers[-1].strip())
    except (IndexError, ValueError):
        return 0.0
    return 1.0 if answer == truth else 0.1


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
    assert time.process_time() - started < 10
    assert countdown(f"<answer>{text}</answer>", TRUTH)["score"] == 0.1  # type: ignore[arg-type]


@pytest.mark.parametrize("response", ["<answer>" * 400_000, "<answer></answer>" * 400_000])
def test_a_response_full_of_tags_is_read_at_once(response: str) -> None:
    started = time.process_time()
    assert last_answer(response) == ("" if response.endswith("</answer>") else None)
    assert time.process_time() - started < 10


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
    assert evaluate(text)[0] == eval(text)


@pytest.mark.parametrize(
    ("data_source", "name"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("my-countdown-4", "countdown"),
        ("arithmetic_3digit", "multiply"),
        ("lighteval/MATH", "math_reward"),
        ("math", "math_dapo"),
        ("aime2024", "math_dapo"),
        ("my/aime2024", None),
        ("gsm8k", None),
        ("", None),
    ],
)
def test_routes(data_source: str, name: str | None) -> None:
    assert route(data_source) == name
    told = RowChecks().data_source_problem(data_source)
    allowed = "one that docs/rewards.md lists, or functions in spec.rewards"
    if data_source == "gsm8k":
        allowed = "openai/gsm8k, or another that docs/rewards.md lists, or spec.rewards: "
        allowed += "[{function: gsm8k}]"
    assert told == (None if name else allowed)


GROUND_TRUTHS = {
    "gsm8k": (["72", "-3", "2.5"], [None, 72, "1,234", "", "72 apples", True]),
    "addition": (["26", "-1"], [None, 26, "2.5", "", "x"]),
    "countdown": (
        [TRUTH, {"target": "24", "numbers": [1]}, {"target": -3.0, "numbers": ["-1", 2.0]}],
        [
            *(None, "24", {"target": 24, "numbers": []}, {}, [24], {"target": 24}),
            *({"target": bad, "numbers": [1]} for bad in (2.5, "2.5", "x", "", True, None, "24 ")),
            *({"target": 24, "numbers": [1, bad]} for bad in (2.5, "x", True, None, "9" * 2000)),
        ],
    ),
    "multiply": (["56", 56], [None, 5.6, "5.6", "", True, "9" * 4301]),
}


@pytest.mark.parametrize("name", GROUND_TRUTHS)
def test_ground_truths_are_judged_before_the_run(name: str) -> None:
    good, bad = GROUND_TRUTHS[name]
    data_source = next(iter(SCORERS[name].data_sources), name)
    routed, named = RowChecks(), RowChecks((name,))
    for checks in (routed, named):
        for truth in good:
            assert checks.ground_truth_problem(data_source, truth) is None  # type: ignore[arg-type]
        for truth in bad:
            assert checks.ground_truth_problem(data_source, truth), truth  # type: ignore[arg-type]


def test_which_rows_are_checked() -> None:
    mine = RewardSpec.model_validate({"function": "f", "source": {"path": "mine.py"}})
    gsm8k_spec = RewardSpec.model_validate({"function": "gsm8k"})
    assert row_checks([]) == RowChecks()
    alone = row_checks([], has_model=True)
    assert alone is not None
    assert alone.ground_truth_problem("any", None) is None
    assert row_checks([mine]) is None
    named = row_checks([mine, gsm8k_spec])
    assert named == RowChecks(("gsm8k",))
    assert named.data_source_problem("anything") is None
    assert named.ground_truth_problem("anything", 5)


PIECES = ("<think>", "</think>", "\\boxed{", "}", "\n", "x")


def test_the_form_of_geometry3k_is_that_of_verl() -> None:
    form = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)
    for pieces in itertools.product(PIECES, repeat=6):
        response = "".join(pieces)
        assert in_form(response) == (form.fullmatch(response) is not None), response


def test_the_form_is_looked_for_in_linear_time() -> None:
    start = time.process_time()
    assert not in_form("<think>" + "</think>\\boxed{" * 100_000)
    assert time.process_time() - start < 20
