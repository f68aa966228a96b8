"""Countdown: reach a target with given numbers, each used exactly once (TinyZero)."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Verdict, last_answer, verdict

_INTEGER = re.compile(r"-?[0-9]{1,1000}")
_MAX_CHARACTERS = 1_000
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_ALLOWED = re.compile(r"[0-9+\-*/() \t\n]+")


class NotArithmetic(ValueError):  # noqa: N818  it says what happened
    """The text is not an expression of integers, + - * / and parentheses, or divides by zero."""


def countdown(
    response: str, ground_truth: Json, *, score: float = 1.0, format_score: float = 0.1
) -> Verdict:
    """Score the equation in the last <answer> block.

    ``score`` when it uses every number once and reaches the target, ``format_score`` for any other
    block, 0 without a block. TinyZero's numbers (``reward_score/countdown.py``), but:

    Departs from TinyZero: the block is found anywhere in the response (see ``last_answer``); "1.5"
    is not the numbers 1 and 5; ``**`` and ``//`` are not among the four operations that the prompt
    names; values are exact fractions, not floats within 1e-5, and no text is evaluated as Python;
    a target "24" is the number 24, where TinyZero accepts no equation.

    The truth is ``{"target": 24, "numbers": [4, 6, 1]}``; 24.0 and "24" are 24 too. Other values,
    such as 2.5, are reported when the data is read.
    """
    target, numbers = _read(ground_truth)
    answer = last_answer(response)
    is_right = False
    if answer is not None:
        try:
            value, used = evaluate(answer)
            is_right = sorted(used) == sorted(numbers) and value == target
        except NotArithmetic:
            pass
    return verdict(answer, is_right=is_right, score=score, format_score=format_score)


def ground_truth_problem(ground_truth: Json) -> str | None:
    """Return what is allowed, if a ground truth does not have this form."""
    try:
        _read(ground_truth)
    except TypeError as error:
        return str(error)
    return None


def _read(ground_truth: Json) -> tuple[int, list[int]]:
    match ground_truth:
        case {"target": target, "numbers": [_, *_] as numbers}:
            wanted, *integers = [_integer(number) for number in (target, *numbers)]
            if wanted is not None and None not in integers:
                return wanted, [number for number in integers if number is not None]
    raise TypeError('a target and its numbers, such as {"target": 24, "numbers": [4, 6, 1]}')


def _integer(value: Json) -> int | None:
    """Convert a JSON value to an integer; None if it is none."""
    match value:
        case bool():
            return None
        case int(number):
            return number
        case float(number) if number.is_integer():
            return int(number)
        case str(text) if _INTEGER.fullmatch(text):
            return int(text)
    return None


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """Evaluate an expression of integers, ``+ - * /``, signs and parentheses.

    Returns its value, and the integers written in it, in order. Raises NotArithmetic if it is
    anything else.
    """
    if len(text) > _MAX_CHARACTERS or not _ALLOWED.fullmatch(text):
        raise NotArithmetic(text[:80])
    numbers: list[int] = []
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _value(tree.body, numbers), numbers
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise NotArithmetic(text[:80]) from error


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
    raise NotArithmetic(ast.dump(node)[:80])
