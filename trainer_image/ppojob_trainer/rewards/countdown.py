"""Countdown: reach a target with given numbers, each used exactly once (TinyZero)."""

import ast
import re
from dataclasses import dataclass
from fractions import Fraction

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.answer_tag import last_answer
from ppojob_trainer.rewards.records import Verdict, verdict

_INTEGER = re.compile(r"-?[0-9]{1,1000}")
_MAX_CHARACTERS = 1_000
_ALLOWED = re.compile(r"[0-9+\-*/() \t\n]+")


class NotArithmetic(ValueError):  # noqa: N818  it says what happened
    """The text is no expression of integers, + - * /, and parentheses, or divides by zero."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An expression's value and the integers written in it, in order."""

    value: Fraction
    numbers: tuple[int, ...]


def countdown(
    response: str, ground_truth: Json, *, score: float = 1.0, format_score: float = 0.1
) -> Verdict:
    """Score the equation in the last <answer> block.

    ``score`` when it uses every number once and reaches the target, ``format_score`` for any other
    block, 0 without a block. TinyZero's numbers (``reward_score/countdown.py``), but:

    Departs from TinyZero: the block is found anywhere in the response (see ``last_answer``); "1.5"
    is not the numbers 1 and 5; ``**`` and ``//`` are not among the four operations that the prompt
    names; values are exact fractions, not floats within 1e-5, and no text is ever evaluated as
    Python; "24" is the number 24, where TinyZero finds no equation right.

    Args:
        response: text of the response.
        ground_truth: ``{"target": 24, "numbers": [4, 6, 1]}``; 24.0 and "24" are 24 too. What is no
            integer, 2.5 say, is reported when the data is read.
        score: for a right equation.
        format_score: for a wrong one.
    """
    target, numbers = _read(ground_truth)
    answer = last_answer(response)
    is_right = False
    if answer is not None:
        try:
            found = evaluate(answer)
            is_right = sorted(found.numbers) == sorted(numbers) and found.value == target
        except NotArithmetic:
            is_right = False
    return verdict(answer, is_right=is_right, score=score, format_score=format_score)


def ground_truth_problem(ground_truth: Json) -> str | None:
    """Say what is wrong with a ground truth, before anything is started."""
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
    """The integer that a JSON value says; None where it says none."""
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


def evaluate(text: str) -> Arithmetic:
    """Evaluate an expression of integers, ``+ - * /``, signs and parentheses.

    Raises:
        NotArithmetic: it is anything else.
    """
    if len(text) > _MAX_CHARACTERS or not _ALLOWED.fullmatch(text):
        raise NotArithmetic(text[:80])
    numbers: list[int] = []
    try:
        tree = ast.parse(text.strip(), mode="eval")
        value = _value(tree.body, numbers)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise NotArithmetic(text[:80]) from error
    return Arithmetic(value, tuple(numbers))


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right):
            return _combine(op, _value(left, numbers), _value(right, numbers))
    raise NotArithmetic(ast.dump(node)[:80])


def _combine(op: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
    raise NotArithmetic(type(op).__name__)
