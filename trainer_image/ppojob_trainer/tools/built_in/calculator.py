"""Calculator: exact arithmetic with bounds on every number."""

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from ppojob_trainer.tools.built_in.tool import BuiltIn, Call, parameters

_MOST_CHARACTERS = 1_000
_MOST_BITS = 4_096
_MOST_DEPTH = 100
_DIGITS = 12
_SIGNS: Final = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "^": "**"})
"""Alternative operator signs."""
_OPERATORS: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class _Wrong(Exception):  # noqa: N818  the expression is wrong
    """The expression has no value."""


def calculator(call: Call) -> str:
    """Return the value of an expression, or an error."""
    try:
        return _shown(_value(_read(str(call.arguments["expression"])), 0))
    except _Wrong as wrong:
        return f"Error: {wrong}"
    except ZeroDivisionError:
        return "Error: division by zero"


def _read(text: str) -> ast.expr:
    if len(text) > _MOST_CHARACTERS:
        raise _Wrong(f"more than {_MOST_CHARACTERS} characters")
    try:
        return ast.parse(text.strip().translate(_SIGNS), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _Wrong("no arithmetic expression") from None


def _value(node: ast.expr, depth: int) -> Fraction:
    if depth > _MOST_DEPTH:
        raise _Wrong("too deeply nested")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            # By its decimal digits: 0.1 is 1/10.
            return _bounded(Fraction(str(number)) if abs(number) != float("inf") else None)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth + 1)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, depth + 1), _value(right, depth + 1))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            result = _OPERATORS[type(op)](_value(left, depth + 1), _value(right, depth + 1))
            return _bounded(Fraction(result))
    raise _Wrong("numbers, + - * / // % ** and brackets are known, and nothing else")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return _root(_float(base), _float(exponent))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if (bits - 1) * abs(exponent.numerator) > _MOST_BITS:
        raise _Wrong("a number that is too large")
    return _bounded(Fraction(base**exponent.numerator))


def _root(base: float, exponent: float) -> Fraction:
    try:
        root = base**exponent
    except OverflowError:
        raise _Wrong("a number that is too large") from None
    if isinstance(root, complex):
        raise _Wrong("a root of a negative number")
    return Fraction(root)


def _bounded(number: Fraction | None) -> Fraction:
    if number is None or max(number.numerator, -number.numerator, number.denominator) >= (
        1 << _MOST_BITS
    ):
        raise _Wrong("a number that is too large")
    return number


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        raise _Wrong("a number that is too large") from None


def _shown(number: Fraction) -> str:
    """Format all digits of an integer, twelve digits of a fraction."""
    if number.denominator == 1:
        return str(number.numerator)
    return f"{_float(number):.{_DIGITS}g}"


TOOL: Final = BuiltIn(
    calculator,
    "Evaluates an arithmetic expression.",
    parameters(expression="Numbers, + - * / // % ** and brackets, such as (3 + 4) * 12."),
)
