"""Integer arithmetic of bash, `$(( ))`, from text: the grammar of scripts reads `-3+4` as `-(3+4)`.

Without assignments (`=`, `++`), arrays and other bases (`16#ff`).
"""

import re
from collections.abc import Callable, Mapping
from operator import add, and_, eq, ge, gt, invert, le, lt, mul, ne, neg, not_, or_, pos, sub, xor
from typing import Final

_TOKEN: Final = re.compile(r"\s*(\w+|\*\*|<<|>>|[<>=!]=|&&|\|\||[-+*/%<>!~&^|?:(),])\s*", re.ASCII)
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
_ASSIGNMENT: Final = re.compile(r"\+\+|--|(?<![<>=!])=(?!=)|(<<|>>)=")
_LEVELS: Final = (
    *((",",), ("?",), ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=")),
    *(("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"), ("**",)),
)
_LEVEL: Final = {one: level for level, names in enumerate(_LEVELS) for one in names}
"""How tightly operators bind; `?` and `**` from the right."""


def _quotient(a: int, b: int) -> int:
    whole = abs(a) // abs(b)
    return whole if (a < 0) == (b < 0) else -whole


_UNARY: Final[Mapping[str, Callable[[int], int]]] = {"-": neg, "+": pos, "!": not_, "~": invert}
_BINARY: Final[Mapping[str, Callable[[int, int], int]]] = {
    **{"+": add, "-": sub, "*": mul, "/": _quotient, "&": and_, "|": or_, "^": xor},
    **{"%": lambda a, b: a - b * _quotient(a, b), "**": lambda a, b: pow(a, b, 2**64)},
    **{"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne},
    **{"<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)},
}


def evaluate(text: str, value_of: Callable[[str], str | None]) -> int | None:
    """Return the value of an expression; None if it is unknown, or refused by bash.

    `value_of` returns the text of a variable, None if that is unknown.
    """
    if _ASSIGNMENT.search(text):
        return None
    tokens, place = [], 0
    while found := _TOKEN.match(text, place):
        tokens.append(found[1])
        place = found.end()
    if place < len(text):
        return None
    try:
        reader = _Reader(tokens, value_of)
        value = reader.expression(0) if tokens else 0
    except (ValueError, RecursionError):
        return None
    return value if not reader.tokens else None


class _Reader:
    """Precedence climbing; raises ValueError for what is no expression."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], str | None]) -> None:
        self.tokens = tokens[::-1]
        self._value_of = value_of

    def expression(self, level: int) -> int | None:
        """Read operands with operators between that bind at least so tightly."""
        value = self._operand()
        while self.tokens and _LEVEL.get(self.tokens[-1], -1) >= level:
            operator = self.tokens.pop()
            if operator == "?":
                one = self.expression(0)
                self._expect(":")
                other = self.expression(_LEVEL["?"])
                value = None if value is None else one if value else other
            else:
                is_left = operator != "**"
                value = _computed(operator, value, self.expression(_LEVEL[operator] + is_left))
        return value

    def _operand(self) -> int | None:
        if not self.tokens:
            raise ValueError("it ends")
        token = self.tokens.pop()
        if token in _UNARY:
            inner = self._operand()
            return None if inner is None else int(_UNARY[token](inner))
        if token == "(":
            value = self.expression(0)
            self._expect(")")
            return value
        if token[0].isdigit():
            return _number(token)
        if not token[0].isalpha() and token[0] != "_":
            raise ValueError(token)
        text = self._value_of(token)
        if text is None:
            return None
        text = text.strip()
        return -_number(text[1:]) if text.startswith("-") else _number(text or "0")

    def _expect(self, token: str) -> None:
        if not self.tokens or self.tokens.pop() != token:
            raise ValueError(token)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    is_octal = text[0] == "0" and text.isdigit()
    return int(text, 8 if is_octal else 0)


def _computed(operator: str, one: int | None, other: int | None) -> int | None:
    """Return a 64-bit result; None if it is unknown."""
    if operator == ",":
        return other
    if operator in {"&&", "||"}:
        if one is not None and bool(one) == (operator == "||"):
            return int(bool(one))
        return None if one is None or other is None else int(bool(other))
    if one is None or other is None or (operator == "**" and other < 0):
        return None
    try:
        result = int(_BINARY[operator](one, other))
    except ZeroDivisionError:
        return None
    return (result + 2**63) % 2**64 - 2**63
