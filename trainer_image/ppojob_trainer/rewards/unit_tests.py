"""Code by unit tests: programs that read stdin, or functions that are called.

The rules are those of verl's ``prime_code`` (PRIME, Cui et al. 2025, arXiv:2502.01456; its tests
and comparisons come from APPS, Hendrycks et al. 2021, arXiv:2105.09938). The code runs in a
sandbox, in one process per test, which never gets the expected output; it is compared here.
"""

import itertools
import json
import math
from collections.abc import Iterator

from ppojob_trainer.json_value import Json
from ppojob_trainer.sandbox.executor import Runner
from ppojob_trainer.sandbox.process import Outcome, Program

SCORED_TESTS = 10
"""Tests whose share is the score, as in verl."""
MOST_TESTS = 100
"""Tests per response at most; a number, so that scores do not depend on the machine's speed."""
_START_SECONDS = 1.0
"""Time to start a process, in addition to that of its program."""
_RELATIVE, _ABSOLUTE = 1e-5, 1e-8
"""Tolerances of numbers, as in numpy's ``allclose``."""

_MODULES = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random",
    "statistics", "itertools", "functools", "operator", "io", "sys", "json",
)  # fmt: skip
_PRELUDE = "\n".join(
    [
        *(f"from {module} import *" for module in (*_MODULES, "builtins", "typing")),
        f"import {', '.join(_MODULES)}",
        "sys.setrecursionlimit(600_000)",
    ]
)
"""Imports that solutions may rely on, as in verl."""


def code(response: str, ground_truth: Json, sandbox: Runner) -> dict[str, float]:
    """Score the last fenced block of Python, or the whole response without one.

    The score is the share of the first ten tests that pass, as in verl, even if a later test fails.
    ``acc`` is 1 only if all tests pass, of the first hundred.

    Departs from verl: there all tests share one process and its modules, with ``open`` and
    ``sys.stdin`` replaced, and the expected values are in that process's memory. Here each test is
    a separate program with a real stdin. There a function that fails one test fails all (its tests
    are then run as programs), and tests whose lines are lists always fail; here they count like
    others. Tuples at any depth are lists; in verl only at the first level. verl runs all tests with
    a time limit each; here the first timeout ends the response, and later tests count as failed.

    The truth has ``inputs`` and ``outputs``, lists of equal length, and ``fn_name`` if a function
    is called; as an object or as JSON text.
    """
    text = response.split("```python")[-1].split("```")[0]
    tests = list(itertools.islice(_tests(text, ground_truth), MOST_TESTS))
    scored = min(len(tests), SCORED_TESTS)
    passed, is_over_time, is_python = 0, False, bool(text.strip())
    for number, (program, expected) in enumerate(tests if is_python else ()):
        outcome = sandbox.run(program)
        is_over_time = outcome.stopped == "time"
        is_python = outcome.is_python or number >= scored
        passed += outcome.is_well and _is_expected(program, outcome, expected)
        if is_over_time or not is_python or (number >= scored - 1 and passed <= number):
            break
    return {
        "score": min(passed, scored) / scored if is_python and scored else 0.0,
        "acc": float(0 < passed == len(tests)),
        "over_time": float(is_over_time),
        "not_python": float(not is_python),
    }


def longest_seconds(program_seconds: float) -> float:
    """Return the longest time of all programs of a response, from the limit of each."""
    return MOST_TESTS * (program_seconds + _START_SECONDS)


def ground_truth_problem(ground_truth: Json) -> str | None:
    """Return what is allowed, if a ground truth does not have this form."""
    try:
        tests = list(_tests("", ground_truth))
    except (ValueError, TypeError, KeyError, RecursionError):
        tests = []
    if tests:
        return None
    return (
        'an object, or its JSON, with "inputs" and "outputs", lists of one length above 0: texts, '
        'or with "fn_name" lines of JSON'
    )


def same_text(printed: str, expected: str) -> bool:
    """Whether a program printed the expected lines, as text or as numbers.

    White space at both ends and around lines is ignored, and so are empty lines. Numbers, one per
    line, are compared as floats unless all consist of digits only.
    """
    lines = printed.splitlines()
    if expected.strip() in ("\n".join(lines).strip(), "\n".join(map(str.strip, lines)).strip()):
        return True
    wanted = [line.strip() for line in expected.split("\n") if line]
    found = [line for line in lines if line]
    return wanted in (lines, found) or _same_numbers(found, wanted)


def same_value(value: Json, expected: Json) -> bool:
    """Whether a function returned the expected value, which may be wrapped in a list."""
    return value == expected or (isinstance(expected, list) and value in expected[:1])


def _tests(text: str, ground_truth: Json) -> Iterator[tuple[Program, Json]]:
    truth = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
    if not isinstance(truth, dict):
        raise TypeError("tests are an object")
    pairs = zip(_listed(truth["inputs"]), _listed(truth["outputs"]), strict=True)
    function = truth.get("fn_name") or ""
    for given, expected in pairs:
        if function:
            wanted = json.loads(expected) if isinstance(expected, str) else expected
            yield _call(text, function, given), wanted
        else:
            yield Program(text, _PRELUDE, _joined(given)), _joined(expected)


def _listed(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError("inputs and outputs are lists")
    return value


def _joined(value: Json) -> str:
    lines = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str) for line in lines):
        raise TypeError("what is read and printed is text")
    return "\n".join(map(str, lines))


def _call(text: str, function: Json, given: Json) -> Program:
    """Build the call of a function, or of a method of ``Solution``."""
    if not isinstance(function, str) or not function.isidentifier():
        raise TypeError("fn_name is a name")
    values = list(map(json.loads, given.split("\n"))) if isinstance(given, str) else _listed(given)
    owner = "Solution()." if "class Solution" in text else ""
    first = values[0] if values else None
    # In JSON integer keys became text; those of the first argument are converted back.
    has_integers = isinstance(first, dict) and all(key.lstrip("-").isdecimal() for key in first)
    return Program(
        text,
        _PRELUDE,
        function=f"{owner}{function}",
        arguments=json.dumps(values),
        integer_keys=has_integers,
    )


def _is_expected(program: Program, outcome: Outcome, expected: Json) -> bool:
    if not program.function:
        return same_text(outcome.stdout.decode(errors="replace"), str(expected))
    try:
        return same_value(json.loads(outcome.answer), expected)
    except (ValueError, RecursionError):  # no answer, or none that is JSON
        return False


def _same_numbers(found: list[str], wanted: list[str]) -> bool:
    if len(found) != len(wanted) or all(map(str.isdigit, found + wanted)):
        return False
    try:
        pairs = [(float(one), float(other)) for one, other in zip(found, wanted, strict=True)]
    except ValueError:
        return False
    return all(one == other or _is_near(one, other) for one, other in pairs)


def _is_near(one: float, other: float) -> bool:
    is_finite = math.isfinite(one) and math.isfinite(other)
    return is_finite and abs(one - other) <= _ABSOLUTE + _RELATIVE * abs(other)
