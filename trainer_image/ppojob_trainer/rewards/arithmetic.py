"""Values of small arithmetic expressions, computed exactly and never by eval."""

import ast
import re
from dataclasses import dataclass
from fractions import Fraction

_MAX_CHARACTERS = 1_000
_ALLOWED = re.compile(r"[0-9+\-*/() \t\n]+")


class NotArithmetic(ValueError):  # noqa: N818  it says what happened
    """The text is no expression of integers, + - * /, and parentheses, or divides by zero."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An expression's value and the integers written in it, in order."""

    value: Fraction
    numbers: tuple[int, ...]


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
