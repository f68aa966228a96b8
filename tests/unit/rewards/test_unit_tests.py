"""Code by unit tests, against the scores that verl's prime_code gives the same responses."""

import json
import logging
import time
from pathlib import Path

import pytest

from ppojob_api.v1alpha1.rollout import RewardSpec, SandboxSpec
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem
from ppojob_trainer.rewards.unit_tests import code, ground_truth_problem, same_text, same_value
from ppojob_trainer.sandbox.executor import Sandbox
from ppojob_trainer.sandbox.process import Limits, Outcome, Program

TABLE = Path(__file__).parent / "prime_code_scores.jsonl"
"""Made outside this tree by verl b178a3cd5, ``prime_code.compute_score(..., continuous=True)``.
Where ``here`` differs from ``verl``, the docstring of `code` says why."""

CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
SUMS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
ADD = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox()


@pytest.mark.processes
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
def test_scores_are_those_of_verl(case: dict[str, object], sandbox: Sandbox) -> None:
    found = code(str(case["response"]), str(case["ground_truth"]), sandbox)
    assert found["score"] == pytest.approx(case["here"], abs=1e-9)


@pytest.mark.processes
def test_what_goes_with_a_score(sandbox: Sandbox) -> None:
    many = [str(number) for number in range(12)]
    truth = {"inputs": many, "outputs": many}
    right = {"score": 1.0, "acc": 1.0, "over_time": 0.0, "not_python": 0.0}
    assert code("print(input())", truth, sandbox) == right
    late = code("n = int(input())\nprint(n if n < 10 else 0)", truth, sandbox)
    assert late == right | {"acc": 0.0}
    assert code("prose is no code", truth, sandbox) == right | {
        "score": 0.0,
        "acc": 0.0,
        "not_python": 1.0,
    }


@pytest.mark.processes
def test_the_first_test_that_takes_too_long_is_the_last() -> None:
    response = "n = int(input())\nwhile n:\n    pass\nprint(n)"
    numbers = ["0", *["1"] * 9]
    truth = {"inputs": numbers, "outputs": numbers}
    start = time.monotonic()
    found = code(response, truth, Sandbox(Limits(seconds=3.0)))
    assert found == {"score": 0.1, "acc": 0.0, "over_time": 1.0, "not_python": 0.0}
    assert time.monotonic() - start < 20  # all nine would take 27 s


@pytest.mark.processes
@pytest.mark.parametrize(
    ("response", "given", "wanted"),
    [
        ("inf = nan = 5\ndef f(a): return a > 5", "Infinity", True),
        ("import json\njson.loads = None\ndef f(a): return a is None", "null", True),
        ("def f(a): return a.get(-1)", '{"-1": 7}', 7),
        ("def f(a): return len(a)", json.dumps(list(range(1_000_000))), 1_000_000),
    ],
    ids=["names", "modules", "integer keys", "many"],
)
def test_arguments_are_what_the_truth_says(response, given, wanted, sandbox):
    truth = {"fn_name": "f", "inputs": [given], "outputs": [json.dumps(wanted)]}
    start = time.monotonic()
    assert code(response, truth, sandbox)["score"] == 1.0  # type: ignore[arg-type]
    assert time.monotonic() - start < 20


class Echo:
    """Runs nothing: what a program would read, it has printed."""

    def run(self, program: Program) -> Outcome:
        return Outcome(program.stdin.encode(), b"", b"", 0, "")


def test_a_hundred_tests_are_run() -> None:
    truth = {"inputs": ["1"] * 100 + ["2"], "outputs": ["1"] * 101}
    assert code("print(input())", truth, Echo())["acc"] == 1.0
    truth["inputs"][99] = "2"
    found = code("print(input())", truth, Echo())
    assert (found["score"], found["acc"]) == (1.0, 0.0)


@pytest.mark.processes
@pytest.mark.parametrize("rewards", [[], [RewardSpec(function="code")]], ids=["routed", "named"])
def test_rows_are_scored_in_the_processes_of_rewards(rewards, caplog):
    responses = (ADD, "print(3)", "while True: pass", ADD)
    items = [RewardItem(n, "apps", one, json.dumps(SUMS)) for n, one in enumerate(responses)]
    sandbox = SandboxSpec(time_limit_seconds=1.0)
    with caplog.at_level(logging.INFO), ScoringPool(rewards, sandbox=sandbox) as pool:
        results = pool.score(items)
    assert " sandbox level " in caplog.text
    assert [result.score for result in results] == [1.0, 0.5, 0.0, 1.0]
    assert results[2].extras == {"acc": 0.0, "over_time": 1.0, "not_python": 0.0}


@pytest.mark.parametrize(
    ("truth", "is_good"),
    [
        (SUMS, True),
        (json.dumps(SUMS), True),
        ({"inputs": [["1", "2"]], "outputs": [["3"]]}, True),
        ({"inputs": ["1\n[2]"], "outputs": ["3"], "fn_name": "f"}, True),
        ({"inputs": [[1, [2]]], "outputs": [3], "fn_name": "f"}, True),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": None}, True),
        ({"inputs": [], "outputs": []}, False),
        ({"inputs": ["1"], "outputs": []}, False),
        ({"inputs": "1", "outputs": "1"}, False),
        ({"inputs": [1], "outputs": ["1"]}, False),
        ({"inputs": ["one"], "outputs": ["1"], "fn_name": "f"}, False),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": "f()"}, False),
        ({"inputs": ["1"]}, False),
        ("print(1)", False),
        ("[" * 100_000, False),
        (None, False),
    ],
)
def test_ground_truths(truth: object, is_good: bool) -> None:
    assert (ground_truth_problem(truth) is None) is is_good  # type: ignore[arg-type]


def test_numbers_are_compared_as_numbers_unless_all_are_digits() -> None:
    assert same_text("0.30000001\n2", "0.3\n2.0")
    assert not same_text("7.1", "7")
    assert not same_text("10000000000000000001", "10000000000000000000")
    assert not same_text("nan", "nan or so")
    assert not same_text("nan", "0.5")
    assert not same_text("inf", "0.5")


def test_a_value_may_be_expected_in_a_list() -> None:
    assert same_value([1], [1])
    assert same_value(1, [1])
    assert not same_value(1, [2, 1])
    assert not same_value([], [1])
